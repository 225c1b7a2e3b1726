#pragma once

#include <exception>
#include <sstream>
#include <string>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <torchferry/model.hpp>

#include "text.hpp"

// Of the OpenMP that torch runs on; a libtorch without one leaves them null.
extern "C" {
int omp_get_max_threads() __attribute__((weak));
void omp_set_num_threads(int) __attribute__((weak));
}

/// What every call of a model has around it: its threads, and torch's errors as ours.
namespace torchferry {

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
inline std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string line, last;
  while (std::getline(lines, line))
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return last;
}

/// `run`, on so many threads. Throws `Error` (TF_ERROR_MODEL, TF_ERROR_MEMORY) where it fails.
template <class Run>
auto guarded(const std::string& method, int threads, Run run) -> decltype(run()) {
  const IntraOpThreads limited(threads);
  try {
    return run();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    fail(TF_ERROR_MEMORY, {"the device ran out of memory", "method " + in_quotes(method), last_line(error.what())});
  } catch (const std::exception& error) {
    const auto* torchs = dynamic_cast<const c10::Error*>(&error);
    const std::string text = torchs ? torchs->what_without_backtrace() : error.what();
    const bool memory = text.find("can't allocate memory") != std::string::npos;
    fail(memory ? TF_ERROR_MEMORY : TF_ERROR_MODEL, {"the model failed while it ran", "method " + in_quotes(method),
                                                     last_line(text)});
  }
}

/// Gives inputs one batch dimension of one size, as views where it can; returns the batch that they have together.
inline std::vector<int64_t> flattened(const Method& method, int batch_ndim, Tensors& inputs) {
  std::vector<int64_t> batch;
  if (!batch_ndim) return batch;
  const auto lead = [&](size_t i) { return inputs[i].dim() - static_cast<int64_t>(method.inputs[i].shape.size()); };
  for (size_t i = 0; i < inputs.size(); ++i) batch = at::infer_size(batch, inputs[i].sizes().slice(0, lead(i)));
  int64_t rows = 1;
  for (const auto size : batch) rows *= size;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto own = inputs[i].sizes().slice(lead(i));
    auto whole = batch, flat = std::vector<int64_t>{rows};
    whole.insert(whole.end(), own.begin(), own.end());
    flat.insert(flat.end(), own.begin(), own.end());
    if (inputs[i].sizes() != at::IntArrayRef(flat)) inputs[i] = inputs[i].expand(whole).reshape(flat);
  }
  return batch;
}

/// Gives outputs the batch that the inputs had.
inline void restore(const std::vector<int64_t>& batch, int batch_ndim, Tensors& outputs) {
  if (!batch_ndim || batch.size() == 1) return;
  for (auto& output : outputs) {
    auto shape = batch;
    shape.insert(shape.end(), output.sizes().begin() + 1, output.sizes().end());
    output = output.reshape(shape);
  }
}

}  // namespace torchferry
