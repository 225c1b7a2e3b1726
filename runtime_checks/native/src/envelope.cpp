#include "envelope.hpp"

#include <cstdio>
#include <iostream>

#include <ATen/ATen.h>

#include "descriptors.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

}  // namespace

void warn(const Options& options, const std::string& text) {
  if (options.warn)
    options.warn(text);
  else
    std::cerr << "warning: " << text << "\n";
}

void hold_envelope(const Contract& contract, const Options& options, const Method& method, const Tensors& inputs) {
  if (options.envelope == OutsideEnvelope::kOff) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto range = contract.envelope.find(method.inputs[i].name);
    if (range == contract.envelope.end() || inputs[i].numel() == 0) continue;
    const auto [low, high] = at::aminmax(inputs[i].detach());
    const double least = low.item<double>(), most = high.item<double>();
    // Not a number is neither below nor above.
    if (least >= range->second.low && most <= range->second.high) continue;
    const Message message{role_of(i, method.inputs[i]).what() + " has values outside the range that was checked", "",
                          text_of(least) + " to " + text_of(most),
                          text_of(range->second.low) + " to " + text_of(range->second.high),
                          "check it there (torchferry export --inputs), or load it without the option envelope"};
    if (options.envelope == OutsideEnvelope::kError) fail(TF_ERROR_ENVELOPE, message);
    warn(options, message.text());
  }
}

}  // namespace torchferry
