#pragma once

#include <torchferry/contract.hpp>
#include <torchferry/torchferry.h>

namespace torchferry {

/// Throws TF_ERROR_STRIDE where two of a call's outputs share memory. `outputs` are those of the method, checked one by
/// one; a null one is not wanted.
void check_apart(const Method& method, const tf_tensor* const* outputs);

}  // namespace torchferry
