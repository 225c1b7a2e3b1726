#pragma once

#include <set>
#include <string>

namespace torchferry {

enum class Kind { kGraphs, kCode, kPrograms };

/// The kind of a container with these records. Throws `Error` for records of no kind, or of two: see
/// exporter/archive/container_kinds.py.
Kind classify_records(const std::set<std::string>& names, const std::string& where);

/// Throws `Error` for a file of one kind under the name of another.
void check_suffix(const std::string& path, Kind kind);

}  // namespace torchferry
