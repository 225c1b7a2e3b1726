#include "machine.hpp"

#include <fstream>
#include <sstream>

namespace torchferry {

std::set<std::string> instructions() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const auto colon = line.find(':');
    const auto name = line.substr(0, line.find_first_of(" \t:"));
    if (colon == std::string::npos || (name != "flags" && name != "Features")) continue;
    std::istringstream words(line.substr(colon + 1));
    std::set<std::string> found;
    for (std::string word; words >> word;) found.insert(word);
    return found;
  }
  return {};
}

}  // namespace torchferry
