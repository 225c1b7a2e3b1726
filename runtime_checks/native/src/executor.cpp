#include "executor.hpp"

#include <sstream>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "text.hpp"

// Of the OpenMP that torch runs on; a libtorch without one leaves them null.
extern "C" {
int omp_get_max_threads() __attribute__((weak));
void omp_set_num_threads(int) __attribute__((weak));
}

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

/// The number of OpenMP threads of the calling thread, for as long as this lives. The host may use OpenMP itself, and
/// finds its number as it was. at::set_num_threads would also replace torch's other pools, at every call.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int wanted) {
    if (wanted <= 0) return;
    if (!omp_get_max_threads || !omp_set_num_threads) {
      if (at::get_num_threads() != wanted) at::set_num_threads(wanted);
      return;
    }
    before_ = omp_get_max_threads();
    // A thread's first look sets its number to torch's own default: it must not come after ours.
    at::get_num_threads();
    if (omp_get_max_threads() != wanted) omp_set_num_threads(wanted);
  }
  ~IntraOpThreads() {
    if (before_ > 0 && omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  int before_ = 0;
};

/// The message of a TorchScript error is its last line; what comes before it is the traceback.
std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string line, last;
  while (std::getline(lines, line))
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return last;
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
  const IntraOpThreads threads(threads_);
  at::AutoGradMode grad(needs_grad_);
  torch::jit::GraphOptimizerEnabledGuard guard(optimize_);
  try {
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
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    fail(TF_ERROR_MEMORY, {"the device ran out of memory", "method " + in_quotes(name_), last_line(error.what())});
  } catch (const std::exception& error) {
    const auto* torchs = dynamic_cast<const c10::Error*>(&error);
    const std::string text = torchs ? torchs->what_without_backtrace() : error.what();
    const bool memory = text.find("can't allocate memory") != std::string::npos;
    fail(memory ? TF_ERROR_MEMORY : TF_ERROR_MODEL, {"the model failed while it ran", "method " + in_quotes(name_),
                                                     last_line(text)});
  }
}

}  // namespace torchferry
