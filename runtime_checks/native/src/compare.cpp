#include <torchferry/compare.hpp>

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <sstream>
#include <type_traits>

#include <ATen/ATen.h>

namespace torchferry {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
std::string text_of(T value) {
  std::ostringstream text;
  text.precision(17);
  if constexpr (std::is_integral_v<T>)
    text << static_cast<int64_t>(value);
  else
    text << value;
  return text.str();
}

std::vector<int64_t> index_of(int64_t flat, at::IntArrayRef shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = flat % shape[i];
    flat /= shape[i];
  }
  return index;
}

bool finite(double x) { return std::isfinite(x); }
bool finite(std::complex<double> x) { return std::isfinite(x.real()) && std::isfinite(x.imag()); }
/// NaN or equal, in the real and in the imaginary part.
bool alike(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }
bool alike(std::complex<double> a, std::complex<double> b) {
  return alike(a.real(), b.real()) && alike(a.imag(), b.imag());
}

/// Floats of a dtype as integers of equal order, to count the representable numbers between two.
template <class Bits>
double steps_between(const void* a, const void* b) {
  const auto steps = [](const void* at) {
    Bits bits;
    std::memcpy(&bits, at, sizeof bits);
    const auto wide = static_cast<int64_t>(bits);
    // Negative floats count downwards from zero.
    return wide < 0 ? static_cast<int64_t>(std::numeric_limits<Bits>::min()) - wide : wide;
  };
  const int64_t left = steps(a), right = steps(b);
  // Across zero the distance can pass 2**63; a double is exact enough for a count that large.
  const double apart = std::fabs(static_cast<double>(left) - static_cast<double>(right));
  if (apart >= 9007199254740992.0) return apart;
  return static_cast<double>(left > right ? left - right : right - left);
}

double ulps(const at::Tensor& got, const at::Tensor& expected, int64_t i) {
  const auto* a = static_cast<const char*>(got.const_data_ptr()) + i * got.element_size();
  const auto* b = static_cast<const char*>(expected.const_data_ptr()) + i * expected.element_size();
  switch (got.scalar_type()) {
    case at::kDouble:
      return steps_between<int64_t>(a, b);
    case at::kFloat:
      return steps_between<int32_t>(a, b);
    default:
      return steps_between<int16_t>(a, b);
  }
}

/// T is double or std::complex<double>, to which `got` and `expected` were converted.
template <class T, class Torch>
Comparison compare_floating(const at::Tensor& got, const at::Tensor& expected, const Bounds& bounds, double scale) {
  const auto wide_got = got.to(c10::CppTypeToScalarType<Torch>::value);
  const auto wide_expected = expected.to(c10::CppTypeToScalarType<Torch>::value);
  const auto* a = reinterpret_cast<const T*>(wide_got.template const_data_ptr<Torch>());
  const auto* b = reinterpret_cast<const T*>(wide_expected.template const_data_ptr<Torch>());
  const int64_t count = got.numel();
  for (int64_t i = 0; i < count; ++i)
    if (finite(b[i])) scale = std::max(scale, std::abs(b[i]));
  if (scale == 0.0) scale = 1.0;
  // The magnitude of a finite complex number may be none.
  scale = std::min(scale, std::numeric_limits<double>::max());

  const bool has_ulps = got.is_floating_point();
  Comparison figures;
  int64_t bad = 0, largest = 0, most = 0;
  double largest_difference = -1.0, most_excess = -kInfinity, most_ulps = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    if (!(finite(a[i]) && finite(b[i]))) {
      if (!alike(a[i], b[i])) {
        if (most_excess < kInfinity) most = i;
        most_excess = kInfinity;
        ++bad;
      }
      continue;
    }
    const double difference = std::abs(a[i] - b[i]);
    const double excess = difference - (bounds.atol * scale + bounds.rtol * std::abs(b[i]) + bounds.floor);
    // "not <=": a NaN never passes
    if (!(excess <= 0.0)) ++bad;
    if (excess > most_excess) most_excess = excess, most = i;
    if (difference > largest_difference) largest_difference = difference, largest = i;
    if (difference > figures.max_abs) figures.max_abs = difference;
    if (std::abs(b[i]) > 0.0) figures.max_rel = std::max(figures.max_rel, difference / std::abs(b[i]));
    if (has_ulps) most_ulps = std::max(most_ulps, ulps(got, expected, i));
  }
  const int64_t worst = bad ? most : largest;
  figures.passed = bad == 0;
  if (bad) figures.reason = std::to_string(bad) + " of " + std::to_string(count) + " elements differ";
  figures.max_ulp = !has_ulps                  ? -1
                    : most_ulps >= 9.2e18 ? std::numeric_limits<int64_t>::max()
                                          : static_cast<int64_t>(most_ulps);
  figures.worst = index_of(worst, got.sizes());
  figures.got = text_of(a[worst]);
  figures.expected = text_of(b[worst]);
  return figures;
}

Comparison compare_exact(const at::Tensor& got, const at::Tensor& expected) {
  const auto a = got.to(at::kLong), b = expected.to(at::kLong);
  const auto *left = a.const_data_ptr<int64_t>(), *right = b.const_data_ptr<int64_t>();
  Comparison figures;
  int64_t bad = 0, worst = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (left[i] == right[i]) continue;
    if (!bad++) worst = i;
    figures.max_abs =
        std::max(figures.max_abs, std::fabs(static_cast<double>(left[i]) - static_cast<double>(right[i])));
  }
  figures.passed = bad == 0;
  if (bad) figures.reason = std::to_string(bad) + " of " + std::to_string(a.numel()) + " elements differ";
  figures.worst = index_of(worst, got.sizes());
  figures.got = text_of(left[worst]);
  figures.expected = text_of(right[worst]);
  return figures;
}

/// Contiguous on the CPU, with nothing left to conjugate or negate.
at::Tensor plain(const at::Tensor& value) { return value.detach().cpu().resolve_conj().resolve_neg().contiguous(); }

Comparison misfit(const std::string& reason) {
  Comparison figures;
  figures.reason = reason;
  return figures;
}

}  // namespace

Comparison compare(const at::Tensor& got, const at::Tensor& expected, const Bounds& bounds, double least_scale) {
  if (!got.defined()) return misfit("no tensor");
  if (got.sizes() != expected.sizes())
    return misfit("shape " + shape_text(got.sizes().vec()) + " instead of " + shape_text(expected.sizes().vec()));
  if (got.scalar_type() != expected.scalar_type())
    return misfit(std::string("dtype ") + c10::toString(got.scalar_type()) + " instead of " +
                  c10::toString(expected.scalar_type()));
  if (got.numel() == 0) {
    Comparison figures;
    figures.passed = true;
    return figures;
  }
  const auto here = plain(got), there = plain(expected);
  if (here.is_complex())
    return compare_floating<std::complex<double>, c10::complex<double>>(here, there, bounds, least_scale);
  // Whole numbers that may differ have a floor.
  if (here.is_floating_point() || bounds.floor > 0.0)
    return compare_floating<double, double>(here, there, bounds, least_scale);
  return compare_exact(here, there);
}

}  // namespace torchferry
