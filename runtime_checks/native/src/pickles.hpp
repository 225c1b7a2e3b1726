#pragma once

#include <string>

#include <ATen/core/ivalue.h>

#include "limits.hpp"

namespace torchferry {

/// What torch.save wrote, from its bytes. Throws `Error` where that is no dict, or is nested too deeply.
c10::impl::GenericDict load_pickled_dict(const std::string& bytes, const std::string& where);

/// How many containers are in each other in what a pickle makes. Throws `Error` for what torch does not write, for a
/// container that holds itself, and for a value in it of more than `most_parts`.
int measure_depth(const std::string& pickle, const std::string& where, size_t most_parts = kMaxSharedValues);

/// How deeply brackets and blocks of TorchScript's code are nested; those in texts count, too.
int measure_code_depth(const std::string& code);

}  // namespace torchferry
