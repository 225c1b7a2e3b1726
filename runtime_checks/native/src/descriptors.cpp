#include "descriptors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "text.hpp"

namespace torchferry {
namespace {

constexpr std::array<std::pair<tf_dtype, at::ScalarType>, 12> kTypes = {{{TF_FLOAT64, at::kDouble},
                                                                         {TF_FLOAT32, at::kFloat},
                                                                         {TF_FLOAT16, at::kHalf},
                                                                         {TF_BFLOAT16, at::kBFloat16},
                                                                         {TF_INT64, at::kLong},
                                                                         {TF_INT32, at::kInt},
                                                                         {TF_INT16, at::kShort},
                                                                         {TF_INT8, at::kChar},
                                                                         {TF_UINT8, at::kByte},
                                                                         {TF_BOOL, at::kBool},
                                                                         {TF_COMPLEX64, at::kComplexFloat},
                                                                         {TF_COMPLEX128, at::kComplexDouble}}};

std::string text_of(const tf_device& device) {
  if (device.type == TF_CPU) return "cpu";
  if (device.type == TF_CUDA) return "cuda:" + std::to_string(device.index);
  return "device type " + std::to_string(device.type);
}

std::string expected_shape(const Role& role, int batch_ndim, const Extent& extent) {
  if (batch_ndim == 0) return extent.text(role.shape);
  const auto own = shape_text(role.shape);
  return "[*batch" + (role.shape.empty() ? "]" : ", " + own.substr(1));
}

/// Everything that can be wrong with a descriptor on its own; returns the number of its elements.
int64_t check(const tf_tensor& given, const Role& role, const at::Device& device) {
  if (given.dtype != role.dtype)
    fail(TF_ERROR_DTYPE,
         {role.what() + " has the wrong dtype", "its field 'dtype'",
          dtype_name(given.dtype) + (" (" + std::to_string(given.dtype) + ")"), dtype_name(role.dtype)});
  const auto own = device_of(device);
  if (given.device.type != own.type || (own.type != TF_CPU && given.device.index != own.index))
    fail(TF_ERROR_DEVICE, {role.what() + " is on the wrong device", "its field 'device'", text_of(given.device),
                           text_of(own), "copy it there, or move the model with tf_to"});
  if (given.rank < 0 || given.rank > TF_MAX_RANK)
    fail(TF_ERROR_SHAPE, {role.what() + " has no possible rank", "its field 'rank'", std::to_string(given.rank),
                          "0 to " + std::to_string(TF_MAX_RANK)});
  if (given.rank > 0 && !given.shape) fail(TF_ERROR_ARGUMENT, {role.what() + " has no shape", "its field 'shape'", "null"});
  int64_t elements = 1;
  for (int32_t i = 0; i < given.rank; ++i) {
    if (given.shape[i] < 0)
      fail(TF_ERROR_SHAPE, {role.what() + " has a negative size", "shape[" + std::to_string(i) + "]",
                            std::to_string(given.shape[i]), "0 or more"});
    if (given.shape[i] && elements > std::numeric_limits<int64_t>::max() / 16 / given.shape[i])
      fail(TF_ERROR_SHAPE, {role.what() + " has more elements than memory can hold", "its field 'shape'"});
    elements *= given.shape[i];
  }
  for (int32_t i = 0; given.strides && i < given.rank; ++i)
    if (given.strides[i] < 0)
      fail(TF_ERROR_STRIDE, {role.what() + " has a negative stride", "strides[" + std::to_string(i) + "]",
                             std::to_string(given.strides[i]), "0 or more",
                             "reverse the array, or describe it from its first element in memory"});
  int64_t reach = 0;
  for (int32_t i = 0; given.strides && elements && i < given.rank; ++i) {
    int64_t step = 0;
    if (__builtin_mul_overflow(given.strides[i], given.shape[i] - 1, &step) ||
        __builtin_add_overflow(reach, step, &reach) || reach > std::numeric_limits<int64_t>::max() / 16)
      fail(TF_ERROR_STRIDE, {role.what() + " reaches further than memory", "strides[" + std::to_string(i) + "]",
                             std::to_string(given.strides[i])});
  }
  if (elements && !given.data) fail(TF_ERROR_ARGUMENT, {role.what() + " has no memory", "its field 'data'", "null"});
  const auto width = std::min<size_t>(c10::elementSize(scalar_type(role.dtype)), 8);
  if (elements && reinterpret_cast<uintptr_t>(given.data) % width != 0)
    fail(TF_ERROR_ARGUMENT, {role.what() + " is not aligned to its dtype", "its field 'data'",
                             "an address that " + std::to_string(width) + " does not divide"});
  return elements;
}

/// A tensor on the memory. Made from its parts, which takes a third of the time that from_blob takes.
at::Tensor wrap(const tf_tensor& given, int64_t elements, at::ScalarType type, const at::Device& device) {
  const at::IntArrayRef shape(given.shape, static_cast<size_t>(given.rank));
  int64_t reach = elements;
  if (given.strides && elements) {
    reach = 1;
    for (int32_t i = 0; i < given.rank; ++i) reach += given.strides[i] * (given.shape[i] - 1);
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(reach) * c10::elementSize(type),
      c10::DataPtr(given.data, device), nullptr, false);
  const auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                         c10::scalarTypeToTypeMeta(type));
  if (given.strides)
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
        shape, at::IntArrayRef(given.strides, static_cast<size_t>(given.rank)));
  else
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

bool reusable(const at::Tensor& shell, const tf_tensor& given) {
  if (!shell.defined() || shell.use_count() != 1 || shell.storage().use_count() != 1) return false;
  const auto rank = static_cast<size_t>(given.rank);
  if (shell.sizes() != at::IntArrayRef(given.shape, rank)) return false;
  return given.strides ? shell.strides() == at::IntArrayRef(given.strides, rank) : shell.is_contiguous();
}

std::vector<int64_t> shape_of(const tf_tensor& given) {
  return {given.shape, given.shape + given.rank};
}

[[noreturn]] void misfit(const tf_tensor& given, const Role& role, const std::string& expected) {
  fail(TF_ERROR_SHAPE, {role.what() + " has the wrong shape", "its fields 'rank' and 'shape'",
                        shape_text(shape_of(given)), expected});
}

}  // namespace

bool Extent::fits(const std::vector<int64_t>& shape, const int64_t* got) {
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == got[i]) continue;
    if (shape[i] >= 0) return false;
    auto& known = open[static_cast<size_t>(-1 - shape[i])];
    if (known < 0) known = got[i];
    if (known != got[i]) return false;
  }
  return true;
}

std::vector<int64_t> Extent::whole(const std::vector<int64_t>& shape) const {
  std::vector<int64_t> all(batch.begin(), batch.end());
  for (const auto size : shape) all.push_back(size < 0 ? open[static_cast<size_t>(-1 - size)] : size);
  return all;
}

std::string Extent::text(const std::vector<int64_t>& shape) const {
  auto text = shape_text(shape, names);
  for (size_t i = 0; i < open.size(); ++i)
    if (open[i] >= 0) text += ", " + names[i] + " = " + std::to_string(open[i]);
  return text;
}

std::string Role::what() const {
  return std::string(kind) + " " + std::to_string(index) + " (" + in_quotes(by ? name + "/" + *by : name) + ")";
}

at::ScalarType scalar_type(tf_dtype dtype) {
  for (const auto& [code, type] : kTypes)
    if (code == dtype) return type;
  fail(TF_ERROR_DTYPE, {"there is no such dtype", "", std::to_string(dtype), "one of the TF_ dtypes"});
}

tf_dtype dtype_of(at::ScalarType type) {
  for (const auto& [code, known] : kTypes)
    if (known == type) return code;
  fail(TF_ERROR_MODEL, {"the model gave a dtype that torchferry does not know", "", c10::toString(type)});
}

tf_device device_of(const at::Device& device) {
  if (device.is_cpu()) return {TF_CPU, 0};
  return {TF_CUDA, device.index()};
}

at::Device parse_device(const std::string& text) {
  const auto refuse = [&](const std::string& got) {
    fail(TF_ERROR_ARGUMENT, {"there is no such device", "argument 'device'", got, "cpu, cuda or cuda:N"});
  };
  if (text == "cpu") return at::Device(at::kCPU);
  if (text.rfind("cuda", 0) != 0) refuse(in_quotes(text));
  int index = 0;
  if (text.size() > 4) {
    const auto digits = text.substr(5);
    if (text[4] != ':' || digits.empty() || digits.size() > 3 ||
        !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
      refuse(in_quotes(text));
    index = std::stoi(digits);
  }
  const int count = at::hasCUDA() ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() : 0;
  if (index >= count)
    fail(TF_ERROR_UNAVAILABLE,
         {"device " + in_quotes(text) + " is not there", "argument 'device'",
          !at::hasCUDA() ? "a libtorch without CUDA, or no driver" : std::to_string(count) + " CUDA devices", "",
          "use another device, or a libtorch built for CUDA on a machine with a GPU"});
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

at::Tensor as_tensor(const tf_tensor& given, const Role& role, int batch_ndim, const at::Device& device,
                     at::Tensor& shell, Extent& extent) {
  const int64_t elements = check(given, role, device);
  const auto own = role.shape.size();
  const auto rank = static_cast<size_t>(given.rank);
  const bool fits = (batch_ndim ? rank >= own : rank == own) &&
                    extent.fits(role.shape, given.shape + (rank - own));
  if (!fits) misfit(given, role, expected_shape(role, batch_ndim, extent));
  if (!reusable(shell, given))
    shell = wrap(given, elements, scalar_type(role.dtype), device);
  else
    shell.storage().set_data_ptr_noswap(c10::DataPtr(given.data, device));
  return shell;
}

void check_output(const tf_tensor& given, const Role& role, Extent& extent, const at::Device& device) {
  const auto& batch = extent.batch;
  const int64_t elements = check(given, role, device);
  const bool fits = static_cast<size_t>(given.rank) == batch.size() + role.shape.size() &&
                    std::equal(batch.begin(), batch.end(), given.shape) &&
                    extent.fits(role.shape, given.shape + batch.size());
  if (!fits) {
    const auto shape = extent.whole(role.shape);
    int64_t needed = 1;
    for (const auto size : shape)
      if (__builtin_mul_overflow(needed, size, &needed)) misfit(given, role, "a batch that memory can hold");
    if (elements < needed)
      fail(TF_ERROR_BUFFER, {role.what() + " is too small for what the model gives", "its field 'shape'",
                             shape_text(shape_of(given)) + ", " + std::to_string(elements) + " elements",
                             shape_text(shape) + ", " + std::to_string(needed) + " elements"});
    misfit(given, role, shape_text(shape));
  }
  if (given.strides && elements) {
    // Sorted by stride, each dimension must step over all that the smaller ones reach.
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (int32_t i = 0; i < given.rank; ++i)
      if (given.shape[i] > 1) steps.emplace_back(given.strides[i], given.shape[i]);
    std::sort(steps.begin(), steps.end());
    int64_t reach = 0;
    for (const auto& [stride, size] : steps) {
      if (stride <= reach)
        fail(TF_ERROR_STRIDE, {role.what() + " has elements that share memory", "its field 'strides'",
                               "a stride of " + std::to_string(stride), "more than " + std::to_string(reach)});
      reach += stride * (size - 1);
    }
  }
}

void write_output(const tf_tensor& given, const Role& role, const at::Tensor& result, const at::Device& device) {
  const at::IntArrayRef shape(given.shape, static_cast<size_t>(given.rank));
  if (result.sizes() != shape || result.scalar_type() != scalar_type(role.dtype) || result.device() != device)
    fail(TF_ERROR_MODEL, {"the model gave another shape, dtype or device than its contract says", role.what(),
                          shape_text(result.sizes().vec()) + " " + c10::toString(result.scalar_type()) + " " +
                              result.device().str(),
                          shape_text(shape.vec()) + " " + dtype_name(role.dtype) + " " + device.str()});
  // Plain memory needs no dispatcher, which at batch 1 costs more than the copy itself.
  if (!given.strides && device.is_cpu() && result.is_contiguous()) {
    if (result.numel()) std::memmove(given.data, result.const_data_ptr(), result.nbytes());
    return;
  }
  wrap(given, result.numel(), result.scalar_type(), device).copy_(result);
}

void broadcast_batch(Sizes& batch, const at::Tensor& input, const Role& role) {
  const auto shape = input.sizes().slice(0, input.dim() - role.shape.size());
  if (shape.size() > batch.size()) batch.insert(batch.begin(), shape.size() - batch.size(), 1);
  const auto lead = batch.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) {
    auto& size = batch[lead + i];
    if (size == 1)
      size = shape[i];
    else if (shape[i] != 1 && shape[i] != size)
      fail(TF_ERROR_SHAPE, {role.what() + " has a batch that does not fit those before it", "its field 'shape'",
                            shape_text(shape.vec()), shape_text({batch.begin(), batch.end()})});
  }
}

}  // namespace torchferry
