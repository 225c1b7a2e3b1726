#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <torchferry/torchferry.h>

namespace torchferry {

/// What every function of the C++ interface throws: a status, and what, where, got and expected as text.
class Error : public std::runtime_error {
 public:
  Error(tf_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  tf_status status() const { return status_; }

 private:
  tf_status status_;
};

}  // namespace torchferry
