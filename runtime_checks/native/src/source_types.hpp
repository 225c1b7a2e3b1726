#pragma once

#include <string>
#include <utility>
#include <vector>

namespace torchferry {

/// Checks what torch's compiler makes of a file's source, pairs of a record's name and its bytes, as
/// exporter/archive/source_types.py does. Throws `SourceError`, with line and record, for types of too many parts, for
/// what is too deep in each other or too long with all that it calls, and for what torch does not write.
void check_source(const std::vector<std::pair<std::string, std::string>>& records);

}  // namespace torchferry
