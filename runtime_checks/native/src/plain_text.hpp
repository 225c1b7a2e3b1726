#pragma once
// Text that shows as it is: exporter/common/plain_text.py says which characters do not.

#include <cstddef>
#include <string>

namespace torchferry {

/// The first character of a UTF-8 text that does not show as it is, as "U+001B"; empty if there is none. Tabs and new
/// lines are such characters in names only.
std::string find_unsafe(const std::string& text, bool is_name);

/// The text with such characters, and bytes that are no UTF-8, as \u001b and \xff.
std::string escape_unsafe(const std::string& text);

/// How many characters a UTF-8 text has.
size_t count_characters(const std::string& text);

}  // namespace torchferry
