#pragma once

#include <memory>
#include <string>

#include <torchferry/model.hpp>

#include "archive.hpp"

namespace torchferry {

/// What runs the methods of a file: its graphs, code that was compiled of them, or a kernel. Every function throws `Error`.
class Engine {
 public:
  virtual ~Engine() = default;
  /// Throws where the file does not have the methods and parameters that its contract names.
  virtual void check(const Contract& contract, const std::string& path) const = 0;
  /// Ready to run as it stands now, on its device.
  virtual void prepare(const Contract& contract) = 0;
  /// The tensor itself; undefined where there is none of that name.
  virtual at::Tensor parameter(const std::string& name) const = 0;
  virtual void to(const at::Device& device) = 0;
  /// `method` is the place in the contract's methods.
  virtual Tensors run(size_t method, Tensors inputs) const = 0;
  virtual int64_t nodes() const = 0;
  virtual bool optimized() const = 0;
  /// As `torchferry.load(engine=...)` has it in Python.
  virtual const char* name() const = 0;
};

/// What is to run a file; the kernel that a .pt carries comes later (`Model::take_kernel`).
std::unique_ptr<Engine> engine_of(const ArchiveFile& file, const std::string& path, const at::Device& device,
                                  const Options& options, const Contract& contract);

std::unique_ptr<Engine> script_engine(const ArchiveFile& file, const std::string& path, const at::Device& device,
                                      const Options& options);
/// Throws where the code was compiled for another machine.
std::unique_ptr<Engine> compiled_engine(const ArchiveFile& file, const std::string& path, const at::Device& device,
                                        const Options& options, const Contract& contract);

}  // namespace torchferry
