#include "kernel.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "descriptors.hpp"
#include "files.hpp"
#include "call_scope.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

static_assert(sizeof(std::ptrdiff_t) == sizeof(int64_t), "torch's strides are those of the kernels");

/// Elements for which another thread is worth its start.
constexpr int64_t kGrain = 2048;
/// The alignment of the numbers that a function works with.
constexpr size_t kLine = 64;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

class KernelEngine : public Engine {
 public:
  KernelEngine(Kernel kernel, const Contract& contract, const Options& options)
      : kernel_(std::move(kernel)), contract_(contract), options_(options) {
    for (const auto& known : contract_.parameters) {
      const auto found = kernel_.parameters.find(known.name);
      if (found != kernel_.parameters.end()) numbers_.push_back(found->second.data_ptr());
    }
  }

  void check(const Contract& contract, const std::string& path) const override {
    const auto refuse = [&](const std::string& name) {
      fail(TF_ERROR_ARCHIVE, {"the file has no method " + in_quotes(name) + " that its contract names", path});
    };
    if (kernel_.methods.size() != contract.methods.size()) refuse("of another kernel");
    for (size_t i = 0; i < contract.methods.size(); ++i)
      if (kernel_.methods[i].name != contract.methods[i].name || !kernel_.methods[i].function)
        refuse(contract.methods[i].name);
  }

  void prepare(const Contract&) override {}

  at::Tensor parameter(const std::string& name) const override {
    const auto found = kernel_.parameters.find(name);
    return found == kernel_.parameters.end() ? at::Tensor() : found->second;
  }

  void to(const at::Device& device) override {
    if (!device.is_cpu())
      fail(TF_ERROR_DEVICE, {"a kernel runs on the CPU", "argument 'device'", device.str(), "cpu", "load the .pt there"});
  }

  Tensors run(size_t index, Tensors inputs) const override {
    const auto& method = contract_.methods[index];
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].layout() != at::kStrided)
        fail(TF_ERROR_ARGUMENT, {role_of(i, method.inputs[i]).what() + " is sparse", "", "", "dense memory"});
    return guarded(method.name, options_.intra_op_threads, [&] {
      const auto batch = flattened(method, contract_.batch_ndim, inputs);
      const int64_t count = contract_.batch_ndim ? rows(batch) : 1;
      for (auto& input : inputs)
        if (input.is_neg() || input._is_zerotensor()) input = input.clone().resolve_neg();
      Tensors outputs;
      for (const auto& output : method.outputs) {
        auto shape = output.shape;
        if (contract_.batch_ndim) shape.insert(shape.begin(), count);
        outputs.push_back(at::empty(shape, at::TensorOptions().dtype(scalar_type(output.dtype))));
      }
      spread(index, count, inputs, outputs);
      restore(batch, contract_.batch_ndim, outputs);
      return outputs;
    });
  }

  int64_t nodes() const override { return 0; }
  bool optimized() const override { return true; }
  const char* name() const override { return "kernel"; }

 private:
  static int64_t rows(const std::vector<int64_t>& batch) {
    int64_t found = 1;
    for (const auto size : batch) found *= size;
    return found;
  }

  /// Over the threads that were asked for: elements do not see each other.
  void spread(size_t index, int64_t count, const Tensors& inputs, const Tensors& outputs) const {
    const int64_t wanted = options_.intra_op_threads > 0 ? options_.intra_op_threads : at::get_num_threads();
    const int64_t parts = std::max<int64_t>(1, std::min(wanted, count / kGrain));
    std::atomic<int> worst{0};
    const auto work = [&](int64_t part) {
      // One that OpenMP was compiled into would start a team of its own in each part.
      const IntraOpThreads alone(parts > 1 ? 1 : 0);
      const int code = call(index, count * part / parts, count * (part + 1) / parts, inputs, outputs);
      if (code < 0) worst = code;
    };
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(parts));
    for (int64_t part = 1; part < parts; ++part) {
      try {
        threads.emplace_back(work, part);
      } catch (const std::system_error&) {
        work(part);
      }
    }
    work(0);
    for (auto& thread : threads) thread.join();
    if (worst == kNoMemory) throw std::bad_alloc();
    if (worst < 0)
      fail(TF_ERROR_MODEL, {"the kernel refuses the call", "method " + in_quotes(kernel_.methods[index].name),
                            "error " + std::to_string(worst), "", "export the model again"});
  }

  /// Elements from `first` to before `last`. Throws nothing: it may be on a thread of its own.
  int call(size_t index, int64_t first, int64_t last, const Tensors& inputs, const Tensors& outputs) const noexcept {
    try {
      const auto& method = kernel_.methods[index];
      c10::SmallVector<KernelArray, 16> arrays;
      // Of values without a batch: a stride that is never taken, then their own.
      std::vector<std::vector<int64_t>> whole;
      whole.reserve(inputs.size() + outputs.size());
      for (const auto* side : {&inputs, &outputs})
        for (const auto& value : *side) {
          const int64_t* strides = value.strides().data();
          if (!contract_.batch_ndim) {
            whole.push_back({value.numel()});
            whole.back().insert(whole.back().end(), value.strides().begin(), value.strides().end());
            strides = whole.back().data();
          }
          // Of no elements nothing is read; torch may have no memory for them.
          auto* data = static_cast<char*>(value.data_ptr());
          if (data) data += first * strides[0] * static_cast<int64_t>(value.element_size());
          // A call looks at each stride; it need not where numbers lie one after the other.
          if (value.is_contiguous()) strides = nullptr;
          arrays.push_back({data, reinterpret_cast<const std::ptrdiff_t*>(strides)});
        }
      std::unique_ptr<void, Free> workspace;
      if (method.workspace) {
        workspace.reset(std::aligned_alloc(kLine, (method.workspace + kLine - 1) / kLine * kLine));
        if (!workspace) return kNoMemory;
      }
      return method.function(last - first, arrays.data(), arrays.data() + inputs.size(), numbers_.data(), nullptr,
                             workspace.get());
    } catch (...) {
      return kNoMemory;
    }
  }

  static constexpr int kNoMemory = -1000;
  Kernel kernel_;
  Contract contract_;
  Options options_;
  /// Of the parameters, in the contract's order.
  std::vector<const void*> numbers_;
};

}  // namespace

Library open_library(const std::string& bytes, const std::string& path) {
  // A second file of a path, or of a number in /proc, would be taken for the first: the memory stays open as long as the
  // object does.
  const int file = memfd_create("kernel", MFD_CLOEXEC);
  const bool whole = file >= 0 && write_all(file, bytes);
  const auto place = "/proc/self/fd/" + std::to_string(file);
  void* handle = whole ? dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!handle) {
    const char* said = whole ? dlerror() : "there is no memory for it";
    const std::string got = said ? said : "";
    if (file >= 0) close(file);
    fail(TF_ERROR_ARCHIVE, {"the shared object does not load", path, got, "one that was built on this machine"});
  }
  return {handle, [file](void* held) {
            dlclose(held);
            close(file);
          }};
}

std::unique_ptr<Engine> kernel_engine(Kernel kernel, const Contract& contract, const Options& options) {
  return std::make_unique<KernelEngine>(std::move(kernel), contract, options);
}

}  // namespace torchferry
