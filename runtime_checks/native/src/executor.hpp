#pragma once

#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

#include <torchferry/model.hpp>

namespace torchferry {

/// Graphs of more nodes than this run as they are: torch's optimiser takes minutes on them.
constexpr int64_t kLargestOptimized = 20000;

/// One method of a module, ready to run: its graph executor primed for small repeated calls.
class Executable {
 public:
  Executable(const torch::jit::Module& module, const Method& method, const Options& options, bool optimize);

  /// Throws `Error` (TF_ERROR_MODEL, TF_ERROR_MEMORY) where the model raises or does not return its outputs.
  Tensors operator()(Tensors inputs) const;

 private:
  torch::jit::Method method_;
  std::string name_;
  size_t outputs_;
  bool needs_grad_;
  bool optimize_;
  int threads_;
  int fusion_depth_;
};

/// The module with its parameters and constants folded into the graphs of `methods`.
torch::jit::Module frozen(const torch::jit::Module& module, const std::vector<std::string>& methods);

int64_t count_nodes(const torch::jit::Module& module);

}  // namespace torchferry
