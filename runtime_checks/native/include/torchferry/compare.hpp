#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torchferry/contract.hpp>

namespace torchferry {

/// Figures of one output against what it must be. `worst` is the index of the element with the largest excess over
/// its tolerance; errors are over elements where both are finite; `max_ulp` is -1 for dtypes without that notion.
struct Comparison {
  bool passed = false;
  std::string reason;
  double max_abs = 0.0;
  double max_rel = 0.0;
  int64_t max_ulp = 0;
  std::vector<int64_t> worst;
  std::string got;
  std::string expected;
};

/// |got - expected| <= atol * max|expected| + rtol * |expected| + floor, element by element, where NaN and infinities agree
/// in place and sign and shape and dtype agree: the rule of runtime_checks/comparison.py. `expected` is on the CPU, and has a part
/// of the numbers alone where `least_scale`, the magnitude of all, is given.
Comparison compare(const at::Tensor& got, const at::Tensor& expected, const Bounds& bounds, double least_scale = 0.0);

}  // namespace torchferry
