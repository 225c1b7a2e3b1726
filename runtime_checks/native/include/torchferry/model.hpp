#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torchferry/compare.hpp>
#include <torchferry/contract.hpp>
#include <torchferry/error.hpp>
#include <torchferry/torchferry.h>

namespace torchferry {

using Tensors = std::vector<at::Tensor>;

enum class OutsideEnvelope { kOff = TF_ENVELOPE_OFF, kWarn = TF_ENVELOPE_WARN, kError = TF_ENVELOPE_ERROR };

/// What runs a .pt.
enum class EngineKind { kTorchScript = TF_ENGINE_TORCHSCRIPT, kKernel = TF_ENGINE_KERNEL };

/// What of a file may run.
enum class Trust { kGraphs = TF_TRUST_GRAPHS, kNative = TF_TRUST_NATIVE };

struct Options {
  bool settable_parameters = false;  ///< false: parameters are folded into the graph at load
  int intra_op_threads = 1;          ///< while the model runs; the host's number is restored. 0: the host's
  int fusion_depth = 0;              ///< specialisations by shape that torch may compile; -1: torch's own
  bool optimize = true;              ///< never for graphs of over 20,000 nodes: torch would take minutes on them
  bool check_integrity = true;       ///< every record against the manifest
  bool keep_memory = false;          ///< freed blocks to 32 MiB stay with the process (glibc's mallopt)
  OutsideEnvelope envelope = OutsideEnvelope::kOff;  ///< inputs outside the range that was checked
  /// The kernel that the file carries, once it was built here and has passed the cases; else `warn` is told why not.
  EngineKind engine = EngineKind::kTorchScript;
  /// kNative: also native code that this user has not exported or converted here.
  Trust trust = Trust::kGraphs;
  /// A public key of Ed25519, in PEM, that has to have signed the file: then native code that the file is may run.
  std::string public_key;
  std::function<void(const std::string&)> warn;  ///< without one, standard error
};

/// One output of one method of one stored case. `inputs` are the values at the worst element.
struct CaseResult {
  std::string name;
  std::string method;
  std::string output;
  Comparison comparison;
  std::map<std::string, std::string> inputs;
};

/// A stored case: what eager mode took and gave, in the contract's order.
struct Case {
  std::string name;
  std::string method;
  Tensors inputs;
  Tensors outputs;
};

/// Memory of the caller's as a descriptor; `shape` and `strides` must outlive it. Throws nothing.
inline tf_tensor view(double* data, const std::vector<int64_t>& shape, const int64_t* strides = nullptr) {
  return {data, TF_FLOAT64, static_cast<int32_t>(shape.size()), shape.data(), strides, {TF_CPU, 0}};
}
inline tf_tensor view(float* data, const std::vector<int64_t>& shape, const int64_t* strides = nullptr) {
  return {data, TF_FLOAT32, static_cast<int32_t>(shape.size()), shape.data(), strides, {TF_CPU, 0}};
}

/// A loaded archive, or a kernel's shared object. Calls may come from several threads at once; `to` and `set_parameter` wait for them.
/// Every function throws `Error`.
class Model {
 public:
  /// Checks the file's records and loads it to "cpu", "cuda" or "cuda:1".
  static Model load(const std::string& path, const std::string& device = "cpu", const Options& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const Contract& contract() const;
  const Options& options() const;
  at::Device device() const;
  size_t records() const;    ///< how many agree with the manifest
  int64_t nodes() const;     ///< of all graphs
  bool optimized() const;
  const char* engine() const;  ///< what runs it: "torchscript", "pt2" or "kernel"

  /// `forward`, in the contract's order.
  Tensors operator()(const Tensors& inputs) const { return call("forward", inputs); }
  Tensors call(const std::string& method, const Tensors& inputs) const;
  /// By name; a Jacobian block is "output/input".
  std::map<std::string, at::Tensor> call(const std::string& method,
                                         const std::map<std::string, at::Tensor>& inputs) const;
  /// Inputs are read in place, outputs written to the caller's memory, which must have the whole batch's shape.
  void call(const std::string& method, const std::vector<tf_tensor>& inputs,
            const std::vector<tf_tensor>& outputs) const;
  /// One of `contract().methods`, whose counts the arrays have; an output that is null is not wanted.
  void call(const Method& method, const tf_tensor* inputs, const tf_tensor* const* outputs) const;
  /// Inputs are read in place, outputs stay torch's: nobody else holds their memory. They are tensors of inference mode.
  Tensors borrow(const Method& method, const tf_tensor* inputs) const;

  void to(const std::string& device);
  void set_parameter(const std::string& name, const at::Tensor& value);
  at::Tensor parameter(const std::string& name) const;  ///< a copy
  void synchronize() const;

  std::vector<Case> cases() const;
  std::vector<CaseResult> run_cases() const;

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  void take_kernel(const std::map<std::string, std::string>& files);
  std::unique_ptr<State> state_;
};

}  // namespace torchferry
