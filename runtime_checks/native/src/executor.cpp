#include "executor.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "call_scope.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

int64_t count_nodes(at::ArrayRef<const torch::jit::Block*> blocks) {
  int64_t count = 0;
  for (const auto* block : blocks)
    for (const auto* node : block->nodes()) count += 1 + count_nodes(node->blocks());
  return count;
}

/// Freezing deletes the functions that it inlined, while nodes still point to them for their traceback: an error in the
/// model would then be a crash. The method itself, which lives as long as its module, takes their place.
void own_call_stacks(at::ArrayRef<torch::jit::Block*> blocks, torch::jit::Function& method) {
  for (auto* block : blocks)
    for (auto* node : block->nodes()) {
      if (node->callstack())
        node->setCallStack(c10::make_intrusive<torch::jit::InlinedCallStack>(&method, node->sourceRange()));
      own_call_stacks(node->blocks(), method);
    }
}

}  // namespace

int64_t count_nodes(const torch::jit::Module& module) {
  int64_t count = 0;
  for (const auto& child : module.modules())
    for (const auto& method : child.get_methods())
      if (const auto* function = torch::jit::tryToGraphFunction(method.function()))
        count += count_nodes({function->graph()->block()});
  return count;
}

torch::jit::Module frozen(const torch::jit::Module& module, const std::vector<std::string>& methods) {
  auto made = torch::jit::freeze_module(module, methods);
  for (const auto& name : methods) {
    auto& function = made.get_method(name).function();
    own_call_stacks({torch::jit::toGraphFunction(function).graph()->block()}, function);
  }
  return made;
}

Executable::Executable(const torch::jit::Module& module, const Method& method, const Options& options, bool optimize)
    : method_(module.get_method(method.name)),
      name_(method.name),
      outputs_(method.outputs.size()),
      needs_grad_(method.needs_grad),
      optimize_(optimize),
      threads_(options.intra_op_threads),
      fusion_depth_(options.fusion_depth) {
  if (!optimize_ || fusion_depth_ < 0) return;
  // The depth is fixed by the first plan. Asking for it here keeps torch's process-wide setting as the host has it.
  auto& executor = torch::jit::toGraphFunction(method_.function()).get_executor();
  torch::jit::GraphOptimizerEnabledGuard guard(true);
  at::AutoGradMode grad(needs_grad_);
  torch::jit::Stack none;
  executor.getPlanFor(none, static_cast<size_t>(fusion_depth_));
}

Tensors Executable::operator()(Tensors inputs) const {
  return guarded(name_, threads_, [&] {
    at::AutoGradMode grad(needs_grad_);
    torch::jit::GraphOptimizerEnabledGuard guard(optimize_);
    torch::jit::Stack stack;
    stack.reserve(inputs.size() + 1);
    stack.emplace_back(method_.owner()._ivalue());
    for (auto& input : inputs) stack.emplace_back(std::move(input));
    method_.function().run(stack);
    auto result = torch::jit::pop(stack);
    if (!result.isTuple()) fail(TF_ERROR_MODEL, {"method " + in_quotes(name_) + " returned no tuple", "", result.tagKind()});
    Tensors outputs;
    outputs.reserve(outputs_);
    for (const auto& value : result.toTupleRef().elements()) {
      if (!value.isTensor())
        fail(TF_ERROR_MODEL, {"method " + in_quotes(name_) + " returned something else than tensors", "", value.tagKind()});
      // Lazily conjugated or negated memory would be read as it lies.
      const auto& output = value.toTensor();
      outputs.push_back(output.is_conj() || output.is_neg() ? output.resolve_conj().resolve_neg() : output);
    }
    if (outputs.size() != outputs_)
      fail(TF_ERROR_MODEL, {"method " + in_quotes(name_) + " returned another number of outputs", "",
                            std::to_string(outputs.size()), std::to_string(outputs_)});
    return outputs;
  });
}

}  // namespace torchferry
