#include <set>
#include <sstream>
#include <utility>

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/serialization/import.h>

#include "descriptors.hpp"
#include "engine.hpp"
#include "executor.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

/// The names of exporter/common/operators.txt.
const std::set<std::string>& operators() {
  static const auto names = [] {
    std::istringstream lines(
#include "operators.inc"
    );
    std::set<std::string> all;
    for (std::string name; lines >> name;) all.insert(name);
    return all;
  }();
  return names;
}

void check_operators(const torch::jit::Block& block, const std::string& function, const std::string& path) {
  for (const auto* node : block.nodes()) {
    const std::string name = node->kind().toQualString();
    if (!operators().count(name))
      fail(TF_ERROR_ARCHIVE, {"the file calls an operator that does not only compute", path,
                              name + " in " + function, "torch's operators that compute from their arguments",
                              "do not load this file: nothing that torchferry writes has such calls"});
    for (const auto* output : node->outputs())
      if (output->type()->str().rfind("__torch__.torch.classes.", 0) == 0)
        fail(TF_ERROR_ARCHIVE, {"the file has an object of a C++ class, which does not only compute", path,
                                output->type()->str() + " in " + function, "values of TorchScript"});
    for (const auto* inner : node->blocks()) check_operators(*inner, function, path);
  }
}

torch::jit::Module load_module(const ArchiveFile& file, const std::string& path, const at::Device& device) {
  try {
    auto module = torch::jit::load(reader(file.bytes), device);
    // All of its code, whatever calls it: functions, and methods of all classes.
    for (auto* function : module._ivalue()->compilation_unit()->get_functions())
      check_operators(*torch::jit::toGraphFunction(*function).graph()->block(), function->name(), path);
    module.eval();
    return module;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail(TF_ERROR_ARCHIVE, {"the archive does not load", path, text.substr(0, text.find('\n')), "",
                            "compare its torch version with this libtorch's, or export it again"});
  }
}

class Script : public Engine {
 public:
  Script(const ArchiveFile& file, const std::string& path, const at::Device& device, const Options& options)
      : options_(options), module_(load_module(file, path, device)), nodes_(torchferry::count_nodes(module_)) {
    optimized_ = options.optimize && nodes_ <= kLargestOptimized;
  }

  void check(const Contract& contract, const std::string& path) const override {
    for (const auto& method : contract.methods) {
      const auto held = module_.find_method(method.name);
      // The first argument is the module itself.
      const auto arguments = held ? held->function().getSchema().arguments().size() - 1 : method.inputs.size();
      if (arguments != method.inputs.size())
        fail(TF_ERROR_ARCHIVE, {"method " + in_quotes(method.name) + " takes other inputs than its contract says", path,
                                std::to_string(arguments), std::to_string(method.inputs.size())});
      if (!held)
        fail(TF_ERROR_ARCHIVE, {"the file has no method " + in_quotes(method.name) + " that its contract names", path});
    }
  }

  void prepare(const Contract& contract) override {
    auto ready = module_;
    if (optimized_ && !options_.settable_parameters) {
      std::vector<std::string> kept;
      for (const auto& method : contract.methods) kept.push_back(method.name);
      ready = frozen(module_, kept);
    }
    std::vector<Executable> made;
    for (const auto& method : contract.methods) made.emplace_back(ready, method, options_, optimized_);
    executables_ = std::move(made);
  }

  at::Tensor parameter(const std::string& name) const override {
    for (const auto& held : module_.named_parameters())
      if (held.name == name) return held.value;
    return {};
  }

  void to(const at::Device& device) override { module_.to(device); }
  Tensors run(size_t method, Tensors inputs) const override { return executables_[method](std::move(inputs)); }
  int64_t nodes() const override { return nodes_; }
  bool optimized() const override { return optimized_; }
  const char* name() const override { return "torchscript"; }

 private:
  Options options_;
  torch::jit::Module module_;
  int64_t nodes_;
  bool optimized_ = true;
  std::vector<Executable> executables_;
};

}  // namespace

std::unique_ptr<Engine> script_engine(const ArchiveFile& file, const std::string& path, const at::Device& device,
                                      const Options& options) {
  return std::make_unique<Script>(file, path, device, options);
}

}  // namespace torchferry
