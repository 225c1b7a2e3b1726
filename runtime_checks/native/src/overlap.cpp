#include "overlap.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include "descriptors.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

/// Where an output's memory begins and ends, and which output it is.
struct Span {
  uintptr_t low, high;
  size_t output;
};
using Spans = c10::SmallVector<Span, 8>;

/// Elements that are compared one by one at most.
constexpr int64_t kMost = int64_t{1} << 24;

size_t width_of(const tf_tensor& given) { return c10::elementSize(scalar_type(given.dtype)); }

/// Bytes from one element to the next along a dimension.
uintptr_t step(const tf_tensor& given, int32_t dimension) {
  int64_t stride = 1;
  if (given.strides) return static_cast<uintptr_t>(given.strides[dimension]) * width_of(given);
  for (int32_t d = given.rank - 1; d > dimension; --d) stride *= given.shape[d];
  return static_cast<uintptr_t>(stride) * width_of(given);
}

/// Bytes that the dimensions from `first` on reach.
uintptr_t reach(const tf_tensor& given, int32_t first) {
  uintptr_t bytes = width_of(given);
  for (int32_t d = first; d < given.rank; ++d) bytes += step(given, d) * static_cast<uintptr_t>(given.shape[d] - 1);
  return bytes;
}

bool is_empty(const tf_tensor& given) {
  const auto* end = given.shape + given.rank;
  return std::find(given.shape, end, 0) != end;
}

/// How many of an output's dimensions are the batch's.
int32_t batch_rank(const tf_tensor& given, const Method& method, size_t output) {
  return given.rank - static_cast<int32_t>(method.outputs[output].shape.size());
}

/// Whether no interval reaches into the next; they are sorted.
template <class Intervals>
bool are_apart(const Intervals& sorted) {
  for (size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i].first < sorted[i - 1].second) return false;
  return true;
}

/// Whether all are members of one structure, of which there is an array: apart in each row, and rows of one length.
bool are_members(const Spans& spans, const Method& method, const tf_tensor* const* outputs) {
  uintptr_t row = 0;
  for (const auto& span : spans) {
    const auto& given = *outputs[span.output];
    for (int32_t d = 0; d < batch_rank(given, method, span.output); ++d)
      if (given.shape[d] > 1) row = std::gcd(row, step(given, d));
  }
  if (row == 0) return false;
  c10::SmallVector<std::pair<uintptr_t, uintptr_t>, 8> members;
  for (const auto& span : spans) {
    const auto& given = *outputs[span.output];
    const auto begin = (span.low - spans[0].low) % row;
    members.emplace_back(begin, begin + reach(given, batch_rank(given, method, span.output)));
  }
  std::sort(members.begin(), members.end());
  return are_apart(members) && members.back().second <= members.front().first + row;
}

/// Whether no two elements share a byte, whatever the strides are.
bool are_elements_apart(const Spans& spans, const tf_tensor* const* outputs) {
  int64_t count = 0;
  for (const auto& span : spans) {
    const auto& given = *outputs[span.output];
    count += std::accumulate(given.shape, given.shape + given.rank, int64_t{1}, std::multiplies<>());
    if (count > kMost) return false;
  }
  std::vector<std::pair<uintptr_t, uintptr_t>> elements;
  elements.reserve(static_cast<size_t>(count));
  for (const auto& span : spans) {
    const auto& given = *outputs[span.output];
    auto first = elements.size();
    elements.emplace_back(span.low, span.low + width_of(given));
    for (int32_t d = 0; d < given.rank; ++d) {
      const auto last = elements.size();
      for (int64_t k = 1; k < given.shape[d]; ++k)
        for (size_t i = first; i < last; ++i) {
          const auto moved = static_cast<uintptr_t>(k) * step(given, d);
          elements.emplace_back(elements[i].first + moved, elements[i].second + moved);
        }
    }
  }
  std::sort(elements.begin(), elements.end());
  return are_apart(elements);
}

}  // namespace

void check_apart(const Method& method, const tf_tensor* const* outputs) {
  Spans spans;
  for (size_t i = 0; i < method.outputs.size(); ++i)
    if (outputs[i] && !is_empty(*outputs[i])) {
      const auto low = reinterpret_cast<uintptr_t>(outputs[i]->data);
      spans.push_back({low, low + reach(*outputs[i], 0), i});
    }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.low < b.low; });
  for (size_t begin = 0, end = 0; begin < spans.size(); begin = end) {
    auto high = spans[begin].high;
    for (end = begin + 1; end < spans.size() && spans[end].low < high; ++end) high = std::max(high, spans[end].high);
    const Spans together(spans.begin() + begin, spans.begin() + end);
    if (together.size() < 2 || are_members(together, method, outputs) || are_elements_apart(together, outputs)) continue;
    const auto first = together[0].output, second = together[1].output;
    fail(TF_ERROR_STRIDE, {role_of(second, method.outputs[second]).what() + " reaches into the memory of " +
                               role_of(first, method.outputs[first]).what(),
                           "their fields 'data' and 'strides'", "", "outputs in memory of their own",
                           "give each output an array, or members of a structure that do not overlap"});
  }
}

}  // namespace torchferry
