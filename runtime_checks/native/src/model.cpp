#include <torchferry/model.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "archive.hpp"
#include "cases.hpp"
#include "descriptors.hpp"
#include "engine.hpp"
#include "envelope.hpp"
#include "kernel.hpp"
#include "overlap.hpp"
#include "text.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace torchferry {
namespace {

/// Tensors that a C++ host brings: what the graph itself would not say, or not by name.
void check(const at::Tensor& given, const Role& role, int batch_ndim, const at::Device& device, Extent& extent) {
  if (!given.defined()) fail(TF_ERROR_ARGUMENT, {role.what() + " is undefined"});
  if (given.scalar_type() != scalar_type(role.dtype))
    fail(TF_ERROR_DTYPE, {role.what() + " has the wrong dtype", "", c10::toString(given.scalar_type()),
                          dtype_name(role.dtype)});
  if (given.device() != device)
    fail(TF_ERROR_DEVICE, {role.what() + " is on the wrong device", "", given.device().str(), device.str(),
                           "move it with .to(), or the model with to()"});
  const auto lead = given.dim() - static_cast<int64_t>(role.shape.size());
  if (lead < 0 || (batch_ndim == 0 && lead > 0) || !extent.fits(role.shape, given.sizes().data() + lead))
    fail(TF_ERROR_SHAPE, {role.what() + " has the wrong shape", "", shape_text(given.sizes().vec()),
                          (batch_ndim ? "any batch, then " : "") + extent.text(role.shape)});
}

/// The contract of the graphs in the file. Whatever the file runs is made later.
Contract checked_contract(const ArchiveFile& file, const std::string& path) {
  auto contract = contract_from_json(file.contract, path);
  if (!contract.graph.empty() && !file.library && contract.graph != file.graph_digest)
    fail(TF_ERROR_ARCHIVE, {"the contract names a different graph than the archive contains", path, contract.graph,
                            "the sha256 of the record extra/torchferry/graph.txt", "export the model again"});
  return contract;
}

/// By default glibc gives memory back to the system after a call of some thousand rows, and takes it again, page by
/// page, in the next.
void keep_memory() {
#ifdef __GLIBC__
  if (mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1 && mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1) return;
#endif
  fail(TF_ERROR_UNAVAILABLE, {"memory cannot be kept", "option 'keep_memory'", "a C library without mallopt", "glibc",
                              "load without it, and take an allocator that keeps memory"});
}

/// This thread's input tensors of the methods that it called last, for the next call. They own no memory.
struct Shells {
  uint64_t owner = 0;
  const Method* method = nullptr;
  Tensors tensors;
};

Shells& shells_of(uint64_t owner, const Method& method) {
  thread_local std::array<Shells, 8> recent;
  thread_local size_t next = 0;
  for (auto& one : recent)
    if (one.owner == owner && one.method == &method) return one;
  auto& oldest = recent[next++ % recent.size()];
  oldest = {owner, &method, Tensors(method.inputs.size())};
  return oldest;
}

}  // namespace

struct Model::State {
  State(std::string path, const Options& options, const at::Device& device, const ArchiveFile& file)
      : path(std::move(path)),
        options(options),
        contract(checked_contract(file, this->path)),
        cases(file.cases),
        records(file.records),
        device(device),
        engine(engine_of(file, this->path, device, options, contract)) {
    engine->check(contract, this->path);
    for (const auto& known : contract.parameters) {
      const auto held = engine->parameter(known.name);
      if (!held.defined() || held.sizes() != at::IntArrayRef(known.shape) ||
          held.scalar_type() != scalar_type(known.dtype))
        fail(TF_ERROR_ARCHIVE, {"the file has no parameter " + in_quotes(known.name) + " as its contract says", this->path,
                                held.defined() ? shape_text(held.sizes().vec()) : "none", shape_text(known.shape)});
    }
    prepare();
  }

  /// Ready as the module stands now, on its device.
  void prepare() {
    static std::atomic<uint64_t> next{1};
    id = next++;
    engine->prepare(contract);
  }

  Tensors execute(const Method& method, Tensors inputs) const {
    return engine->run(static_cast<size_t>(&method - contract.methods.data()), std::move(inputs));
  }

  /// The inputs as tensors, and the batch and the open sizes that they give together.
  Tensors wrap(const Method& method, const tf_tensor* inputs, Extent& extent) const {
    auto& shells = shells_of(id, method).tensors;
    Tensors tensors;
    tensors.reserve(method.inputs.size());
    for (size_t i = 0; i < method.inputs.size(); ++i) {
      const auto role = role_of(i, method.inputs[i]);
      tensors.push_back(as_tensor(inputs[i], role, contract.batch_ndim, device, shells[i], extent));
      if (contract.batch_ndim) broadcast_batch(extent.batch, tensors.back(), role);
    }
    return tensors;
  }

  /// The outputs of a call on the caller's memory. One that is that memory itself is copied: it may be overwritten.
  Tensors run(const Method& method, const tf_tensor* inputs, Tensors tensors) const {
    auto outputs = execute(method, std::move(tensors));
    for (auto& output : outputs)
      for (size_t i = 0; i < method.inputs.size(); ++i)
        if (inputs[i].data && output.storage().data() == inputs[i].data) output = output.clone();
    return outputs;
  }

  std::string path;
  Options options;
  Contract contract;
  std::string cases;
  /// Of the archive's, those that say nothing of the kernel that runs it.
  std::vector<std::string> left_out;
  size_t records;
  /// Of what is ready to run now; another one after a move.
  uint64_t id = 0;
  at::Device device;
  std::unique_ptr<Engine> engine;
  /// Calls share it; what changes the module has it alone. Whoever wants it passes the gate first, which a writer that
  /// waits keeps shut: the mutex itself lets readers overtake writers for ever.
  mutable std::shared_mutex mutex;
  mutable std::mutex gate;

  std::shared_lock<std::shared_mutex> share() const {
    { const std::lock_guard<std::mutex> pass(gate); }
    return std::shared_lock<std::shared_mutex>(mutex);
  }
  std::unique_lock<std::shared_mutex> own() const {
    const std::lock_guard<std::mutex> shut(gate);
    return std::unique_lock<std::shared_mutex>(mutex);
  }
};

namespace {

constexpr const char* kInfo = "newton_info";

/// What has not converged is NaN in the values, too.
bool has_nan(const Method& method, const Tensors& results) {
  for (size_t i = 0; i < results.size(); ++i)
    if (!method.outputs[i].by && results[i].is_floating_point() && results[i].isnan().any().item<bool>()) return true;
  return false;
}

/// Throws where `status`, of shape (*batch) or (*batch, solves), is not zero; the outputs are the caller's by then.
void refuse_not_converged(const Method& method, at::Tensor failed, int64_t batch_ndim) {
  failed = failed.ne(0);
  while (failed.dim() > batch_ndim) failed = failed.any(-1);
  if (!failed.any().item<bool>()) return;
  const auto which = failed.flatten().nonzero().flatten().cpu();
  std::string said;
  constexpr int64_t kShown = 10;
  for (int64_t i = 0; i < std::min(which.numel(), kShown); ++i)
    said += (i ? ", " : "") + std::to_string(which[i].item<int64_t>());
  if (which.numel() > kShown) said += ", ...";
  fail(TF_NOT_CONVERGED, {"Newton's method has not converged for " + std::to_string(which.numel()) + " of " +
                              std::to_string(failed.numel()) + " elements",
                          "method " + in_quotes(method.name), "elements " + said + " (from 0), which are NaN", "",
                          "take a smaller step there; the method 'newton_info' says why"});
}

}  // namespace

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::load(const std::string& path, const std::string& device, const Options& options) {
  const auto target = parse_device(device);
  const auto file = read_archive(path, options);
  auto state = std::make_unique<State>(path, options, target, file);
  if (options.keep_memory) keep_memory();
  Model model(std::move(state));
  if (options.engine == EngineKind::kKernel && !file.library) model.take_kernel(file.kernel);
  return model;
}

/// Lets the kernel run the model once it has given the numbers of the cases; else says why not.
void Model::take_kernel(const std::map<std::string, std::string>& files) {
  auto& state = *state_;
  std::string reason;
  auto script = std::move(state.engine);
  const auto tolerance = state.contract.output_tolerance;
  try {
    if (!state.device.is_cpu()) fail(TF_ERROR_DEVICE, {"a kernel runs on the CPU, and not on " + state.device.str()});
    auto carried = carried_engine(files, state.path, contract(), state.options, *script);
    state.engine = std::move(carried.engine);
    state.prepare();
    state.left_out = std::move(carried.left_out);
    for (const auto& [output, bounds] : carried.tolerance) state.contract.output_tolerance[output] = bounds;
    const auto results = run_cases();
    if (results.empty()) reason = "none of its cases is one that the kernel takes";
    for (const auto& one : results)
      if (!one.comparison.passed) {
        reason = "case " + in_quotes(one.name) + " does not pass: " + one.method + ", " + one.output + ": got " +
                 one.comparison.got + ", expected " + one.comparison.expected + " (" + one.comparison.reason + ")";
        break;
      }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (reason.empty()) return;
  state.left_out.clear();
  state.contract.output_tolerance = tolerance;
  state.engine = std::move(script);
  state.prepare();
  warn(state.options, state.path + " runs by TorchScript: " + reason);
}

const Contract& Model::contract() const { return state_->contract; }
const Options& Model::options() const { return state_->options; }
size_t Model::records() const { return state_->records; }
int64_t Model::nodes() const { return state_->engine->nodes(); }
bool Model::optimized() const { return state_->engine->optimized(); }
const char* Model::engine() const { return state_->engine->name(); }

at::Device Model::device() const {
  const auto lock = state_->share();
  return state_->device;
}

Tensors Model::call(const std::string& name, const Tensors& inputs) const {
  const auto& method = contract().method(name);
  if (inputs.size() != method.inputs.size())
    fail(TF_ERROR_COUNT, {"method " + in_quotes(name) + " takes another number of inputs", "argument 'inputs'",
                          std::to_string(inputs.size()), std::to_string(method.inputs.size())});
  const auto lock = state_->share();
  Extent extent(contract());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto role = role_of(i, method.inputs[i]);
    check(inputs[i], role, contract().batch_ndim, state_->device, extent);
    if (contract().batch_ndim) broadcast_batch(extent.batch, inputs[i], role);
  }
  hold_envelope(contract(), options(), method, inputs);
  return state_->execute(method, inputs);
}

std::map<std::string, at::Tensor> Model::call(const std::string& name,
                                              const std::map<std::string, at::Tensor>& inputs) const {
  const auto& method = contract().method(name);
  Tensors ordered;
  for (const auto& variable : method.inputs) {
    const auto found = inputs.find(variable.name);
    if (found == inputs.end())
      fail(TF_ERROR_NAME, {"input " + in_quotes(variable.name) + " is missing", "method " + in_quotes(name)});
    ordered.push_back(found->second);
  }
  for (const auto& [given, value] : inputs) {
    bool known = false;
    for (const auto& variable : method.inputs) known |= variable.name == given;
    if (!known)
      fail(TF_ERROR_NAME, {"there is no input " + in_quotes(given), "method " + in_quotes(name), in_quotes(given),
                           one_of(method.inputs, [](const Variable& v) { return v.name; })});
  }
  auto outputs = call(name, ordered);
  std::map<std::string, at::Tensor> named;
  for (size_t i = 0; i < outputs.size(); ++i) named[method.outputs[i].label()] = std::move(outputs[i]);
  return named;
}

void Model::call(const Method& method, const tf_tensor* inputs, const tf_tensor* const* outputs) const {
  const auto lock = state_->share();
  // No tensor of this call leaves it, so none needs what autograd would keep.
  const c10::InferenceMode inference(!method.needs_grad);
  Extent extent(contract());
  auto tensors = state_->wrap(method, inputs, extent);
  for (size_t i = 0; i < method.outputs.size(); ++i)
    if (outputs[i]) check_output(*outputs[i], role_of(i, method.outputs[i]), extent, state_->device);
  if (method.outputs.size() > 1) check_apart(method, outputs);
  hold_envelope(contract(), options(), method, tensors);
  const auto results = state_->run(method, inputs, std::move(tensors));
  for (size_t i = 0; i < results.size(); ++i)
    if (outputs[i]) write_output(*outputs[i], role_of(i, method.outputs[i]), results[i], state_->device);
  if (contract().nan_where_not_converged && method.name != kInfo && has_nan(method, results)) {
    const auto& info = contract().method(kInfo);
    Extent same(contract());
    const auto found = state_->run(info, inputs, state_->wrap(info, inputs, same));
    refuse_not_converged(method, found.back(), extent.batch.size());
  }
}

void Model::call(const std::string& name, const std::vector<tf_tensor>& inputs,
                 const std::vector<tf_tensor>& outputs) const {
  const auto& method = contract().method(name);
  if (inputs.size() != method.inputs.size() || outputs.size() != method.outputs.size())
    fail(TF_ERROR_COUNT, {"method " + in_quotes(name) + " takes another number of inputs and outputs", "",
                          std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()),
                          std::to_string(method.inputs.size()) + " and " + std::to_string(method.outputs.size())});
  std::vector<const tf_tensor*> targets;
  for (const auto& output : outputs) targets.push_back(&output);
  call(method, inputs.data(), targets.data());
}

Tensors Model::borrow(const Method& method, const tf_tensor* inputs) const {
  const auto lock = state_->share();
  const c10::InferenceMode inference(!method.needs_grad);
  Extent extent(contract());
  auto tensors = state_->wrap(method, inputs, extent);
  hold_envelope(contract(), options(), method, tensors);
  auto outputs = state_->run(method, inputs, std::move(tensors));
  // Memory that a parameter, a constant or another output has as well is not the caller's to keep.
  for (auto& output : outputs)
    if (output.storage().use_count() > 1) output = output.clone();
  return outputs;
}

void Model::to(const std::string& device) {
  const auto target = parse_device(device);
  const auto lock = state_->own();
  const auto before = state_->device;
  try {
    state_->engine->to(target);
    state_->device = target;
    state_->prepare();
  } catch (...) {
    state_->engine->to(before);
    state_->device = before;
    state_->prepare();
    throw;
  }
}

void Model::set_parameter(const std::string& name, const at::Tensor& value) {
  const auto lock = state_->own();
  auto held = state_->engine->parameter(name);
  if (!held.defined())
    fail(TF_ERROR_NAME, {"there is no parameter " + in_quotes(name), "argument 'name'", in_quotes(name),
                         one_of(contract().parameters, [](const Parameter& p) { return p.name; })});
  if (!state_->options.settable_parameters)
    fail(TF_ERROR_FROZEN, {"the parameters were folded into the graph at load", "parameter " + in_quotes(name), "", "",
                           "load the archive with the option settable_parameters"});
  if (!value.defined() || value.sizes() != held.sizes())
    fail(TF_ERROR_SHAPE, {"parameter " + in_quotes(name) + " has another shape", "argument 'value'",
                          value.defined() ? shape_text(value.sizes().vec()) : "nothing",
                          shape_text(held.sizes().vec())});
  if (value.scalar_type() != held.scalar_type())
    fail(TF_ERROR_DTYPE, {"parameter " + in_quotes(name) + " has another dtype", "argument 'value'",
                          c10::toString(value.scalar_type()), c10::toString(held.scalar_type())});
  at::NoGradGuard guard;
  held.copy_(value);
}

at::Tensor Model::parameter(const std::string& name) const {
  const auto lock = state_->share();
  const auto held = state_->engine->parameter(name);
  if (!held.defined())
    fail(TF_ERROR_NAME, {"there is no parameter " + in_quotes(name), "argument 'name'", in_quotes(name),
                         one_of(contract().parameters, [](const Parameter& p) { return p.name; })});
  return held.detach().clone();
}

void Model::synchronize() const {
  const auto held = device();
  if (!held.is_cpu()) c10::impl::VirtualGuardImpl(held.type()).synchronizeDevice(held.index());
}

std::vector<Case> Model::cases() const {
  auto found = unpack_cases(state_->cases, contract(), state_->path);
  const auto& names = state_->left_out;
  // Only of the two extreme magnitudes does rounding decide what a case gives.
  const auto is_left_out = [&](const Case& one) {
    const bool extreme = one.name.rfind("small_", 0) == 0 || one.name.rfind("large_", 0) == 0;
    return extreme && std::find(names.begin(), names.end(), one.name) != names.end();
  };
  found.erase(std::remove_if(found.begin(), found.end(), is_left_out), found.end());
  return found;
}
std::vector<CaseResult> Model::run_cases() const { return replay(*this, cases()); }

}  // namespace torchferry
