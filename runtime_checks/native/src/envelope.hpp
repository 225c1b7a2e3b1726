#pragma once

#include <string>

#include <torchferry/model.hpp>

namespace torchferry {

/// To `options.warn`, or to standard error.
void warn(const Options& options, const std::string& text);

/// Throws or warns, as `options` say, where an input has values outside the range that was checked.
void hold_envelope(const Contract& contract, const Options& options, const Method& method, const Tensors& inputs);

}  // namespace torchferry
