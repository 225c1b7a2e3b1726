#pragma once
// Between the C interface's options and the runtime's.

#include <torchferry/torchferry.h>

#include <torchferry/model.hpp>

#include "handles.hpp"

namespace torchferry {

inline tf_options default_options() {
  const Options defaults;
  return {sizeof(tf_options),    defaults.settable_parameters, defaults.intra_op_threads,
          defaults.fusion_depth, defaults.optimize,            defaults.check_integrity,
          static_cast<int32_t>(defaults.envelope), defaults.keep_memory, static_cast<int32_t>(defaults.engine),
          static_cast<int32_t>(defaults.trust), nullptr};
}

/// Null means the defaults.
inline Options options_of(const tf_options* given) {
  Options options;
  if (!given) return options;
  if (given->size != sizeof(tf_options))
    fail(TF_ERROR_ARGUMENT, {"the options are of another version of this library", "argument 'options', field 'size'",
                             std::to_string(given->size), std::to_string(sizeof(tf_options)),
                             "fill them with tf_default_options"});
  const auto in_range = [](int32_t value, int32_t low, int32_t high, const char* name) {
    if (value < low || value > high)
      fail(TF_ERROR_ARGUMENT, {"an option is out of range", std::string("argument 'options', field '") + name + "'",
                               std::to_string(value), std::to_string(low) + " to " + std::to_string(high)});
  };
  in_range(given->settable_parameters, 0, 1, "settable_parameters");
  in_range(given->intra_op_threads, 0, 1024, "intra_op_threads");
  in_range(given->fusion_depth, -1, 20, "fusion_depth");
  in_range(given->optimize, 0, 1, "optimize");
  in_range(given->check_integrity, 0, 1, "check_integrity");
  in_range(given->envelope, TF_ENVELOPE_OFF, TF_ENVELOPE_ERROR, "envelope");
  in_range(given->keep_memory, 0, 1, "keep_memory");
  in_range(given->engine, TF_ENGINE_TORCHSCRIPT, TF_ENGINE_KERNEL, "engine");
  in_range(given->trust, TF_TRUST_GRAPHS, TF_TRUST_NATIVE, "trust");
  options.settable_parameters = given->settable_parameters != 0;
  options.intra_op_threads = given->intra_op_threads;
  options.fusion_depth = given->fusion_depth;
  options.optimize = given->optimize != 0;
  options.check_integrity = given->check_integrity != 0;
  options.envelope = static_cast<OutsideEnvelope>(given->envelope);
  options.keep_memory = given->keep_memory != 0;
  options.engine = static_cast<EngineKind>(given->engine);
  options.trust = static_cast<Trust>(given->trust);
  options.public_key = given->public_key ? given->public_key : "";
  options.warn = [](const std::string& text) { warning() = text; };
  return options;
}

}  // namespace torchferry
