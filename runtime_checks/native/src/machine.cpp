#include "machine.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace torchferry {
namespace {

/// What instruction sets that compilers use begin with: as exporter/archive/target_machine.py.
constexpr const char* kBeginnings[] = {"avx", "sse", "ssse", "fma", "f16c", "bmi", "amx", "popcnt", "movbe", "abm",
                                       "asimd", "sve", "neon", "fp16", "bf16", "i8mm", "vnni", "gfni"};

bool is_instruction_set(const std::string& word) {
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](const char* beginning) { return word.rfind(beginning, 0) == 0; });
}

}  // namespace

std::set<std::string> instructions() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const auto colon = line.find(':');
    const auto name = line.substr(0, line.find_first_of(" \t:"));
    if (colon == std::string::npos || (name != "flags" && name != "Features")) continue;
    std::istringstream words(line.substr(colon + 1));
    std::set<std::string> found;
    for (std::string word; words >> word;)
      if (is_instruction_set(word)) found.insert(word);
    return found;
  }
  return {};
}

}  // namespace torchferry
