#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "code_lines.hpp"

namespace torchferry {

/// A class, a function or a method: how long its text is, and the keys of what it names, and of what it calls.
struct Definition {
  CodeLine line;
  uint64_t length = 0;
  std::set<std::string> named;
  std::vector<std::string> called;
};

/// Throws `CodeError` where definitions are deep in each other, need themselves, or are long with all that they call,
/// as exporter/archive/code_calls.py says.
void check_calls(const std::map<std::string, Definition>& definitions);

}  // namespace torchferry
