#pragma once
// Limits of the format: exporter/archive/format_limits.py has the same numbers.

#include <cstddef>
#include <cstdint>

namespace torchferry {

constexpr size_t kMaxRecords = 100'000;
constexpr uint64_t kMaxInflatedBytes = uint64_t{1} << 28;
constexpr size_t kMaxContractBytes = size_t{1} << 23;
constexpr size_t kMaxItems = 10'000;
constexpr size_t kMaxName = 500;
constexpr size_t kMaxUnit = 200;
constexpr size_t kMaxText = 100'000;
constexpr size_t kMaxRank = 64;
constexpr int64_t kMaxSize = int64_t{1} << 40;
constexpr double kMaxRelativeTolerance = 1.0;
constexpr int kMaxNesting = 16;
constexpr int kMaxSourceNesting = 500;

}  // namespace torchferry
