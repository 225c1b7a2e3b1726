#pragma once

#include <string>

#include <ATen/core/ivalue.h>

namespace torchferry {

/// What torch.save wrote, from its bytes. Throws `Error` where that is no dict, or is nested too deeply.
c10::impl::GenericDict load_pickled_dict(const std::string& bytes, const std::string& where);

/// How deep containers are nested in what a pickle makes. Throws `Error` for what is no pickle of tensors by name, and
/// for containers that are nested more deeply than the format allows: to destroy those overflows the stack.
int measure_depth(const std::string& pickle, const std::string& where);

}  // namespace torchferry
