#pragma once

#include <string>
#include <utility>
#include <vector>

namespace torchferry {

/// Checks what torch's compiler makes of a file's code, pairs of a record's name and its bytes, as
/// exporter/archive/code_check.py does. Throws `CodeError`, with line and record, for types of too many parts, for
/// what is too deep in each other or too long with all that it calls, and for what torch does not write.
void check_code(const std::vector<std::pair<std::string, std::string>>& records);

}  // namespace torchferry
