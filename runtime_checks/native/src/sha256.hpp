#pragma once

#include <cstddef>
#include <string>

namespace torchferry {

/// SHA-256 (FIPS 180-4) as 64 hexadecimal digits.
std::string sha256(const void* data, size_t size);

}  // namespace torchferry
