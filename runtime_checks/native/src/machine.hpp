#pragma once

#include <set>
#include <string>

namespace torchferry {

/// Those of the processor, by the names of Linux; empty where the system does not tell.
std::set<std::string> instructions();

}  // namespace torchferry
