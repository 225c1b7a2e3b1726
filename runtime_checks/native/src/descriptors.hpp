#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torchferry/contract.hpp>

/// Between the caller's descriptors and torch's tensors. Every function throws `Error` that names the argument.
namespace torchferry {

/// Sizes, without an allocation.
using Sizes = c10::SmallVector<int64_t, 8>;

/// What a call decides: the batch, and the open sizes; -1 for one that no input has told yet.
struct Extent {
  explicit Extent(const Contract& contract) : names(contract.sizes), open(contract.sizes.size(), -1) {}

  /// Whether the first sizes at `got` are this shape; learns open sizes.
  bool fits(const std::vector<int64_t>& shape, const int64_t* got);
  /// The batch, and then this shape with the open sizes that are known.
  std::vector<int64_t> whole(const std::vector<int64_t>& shape) const;
  /// "[n, 3], n = 5"
  std::string text(const std::vector<int64_t>& shape) const;

  const std::vector<std::string>& names;
  Sizes batch;
  Sizes open;
};

at::ScalarType scalar_type(tf_dtype dtype);
tf_dtype dtype_of(at::ScalarType type);
tf_device device_of(const at::Device& device);
/// "cpu", "cuda" or "cuda:1"; TF_ERROR_UNAVAILABLE where this machine does not have it.
at::Device parse_device(const std::string& text);

/// What a descriptor is held against. Made in every call, so it only refers to the contract.
struct Role {
  const char* kind;
  size_t index;
  const std::string& name;
  const std::string* by;  ///< of a Jacobian block
  const std::vector<int64_t>& shape;  ///< without the batch
  tf_dtype dtype;

  /// "input 0 ('strain')"
  std::string what() const;
};

inline Role role_of(size_t i, const Variable& v) { return {"input", i, v.name, nullptr, v.shape, v.dtype}; }
inline Role role_of(size_t i, const Output& o) {
  return {"output", i, o.name, o.by ? &*o.by : nullptr, o.shape, o.dtype};
}
inline Role role_of(size_t i, const Parameter& p) { return {"parameter", i, p.name, nullptr, p.shape, p.dtype}; }

/// The memory as a tensor, without a copy. `batch_ndim` as in the contract. Where `shell` is a tensor of this shape that
/// nobody else holds, it is put on the memory: making one takes longer than all else here.
at::Tensor as_tensor(const tf_tensor& given, const Role& role, int batch_ndim, const at::Device& device,
                     at::Tensor& shell, Extent& extent);
/// Memory that is to be written, before anything runs: its shape must be exactly the batch + own, and no two elements
/// may share a place.
void check_output(const tf_tensor& given, const Role& role, Extent& extent, const at::Device& device);
/// Copies what the model gave to memory that was checked.
void write_output(const tf_tensor& given, const Role& role, const at::Tensor& result, const at::Device& device);

/// The batch that inputs give together, as torch broadcasts; `role` names the input that does not fit.
void broadcast_batch(Sizes& batch, const at::Tensor& input, const Role& role);

}  // namespace torchferry
