#include "engine.hpp"

#include "kernel.hpp"
#include "text.hpp"

namespace torchferry {

std::unique_ptr<Engine> engine_of(const ArchiveFile& file, const std::string& path, const at::Device& device,
                                  const Options& options, const Contract& contract) {
  if (file.library) {
    auto engine = library_engine(file, path, contract, options);
    engine->to(device);
    return engine;
  }
  if (options.engine == EngineKind::kKernel && file.compiled)
    fail(TF_ERROR_ARGUMENT, {"an engine is chosen for a .pt", "option 'engine'", path});
  if (file.compiled) return compiled_engine(file, path, device, options, contract);
  return script_engine(file, path, device, options);
}

}  // namespace torchferry
