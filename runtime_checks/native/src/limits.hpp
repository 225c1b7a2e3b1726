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
constexpr int kMaxCodeNesting = 500;
/// Values of a pickle beyond those that it has, if none were shared.
constexpr size_t kMaxSharedValues = size_t{1} << 22;
/// Parts of a constant: torch's compiler takes time with the square of them wherever one is used.
constexpr size_t kMaxConstantParts = 200;
constexpr uint64_t kMaxTypeParts = uint64_t{1} << 16;
constexpr uint64_t kMaxTypeDepth = 100;
constexpr uint64_t kMaxTypes = uint64_t{1} << 22;
/// Attributes, elements and calls after each other, which torch's compiler walks through by recursion.
constexpr int kMaxChain = 100;
/// Classes and functions that name each other.
constexpr uint64_t kMaxNamedDepth = 100;
/// How long a function is with all that it calls: so many times the code, and so many characters.
constexpr uint64_t kMaxRepeats = 8;
constexpr uint64_t kMaxRepeatedText = uint64_t{1} << 20;

}  // namespace torchferry
