#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace torchferry {

/// What a file's code has that torch does not write, or that is too large, with line and record.
struct CodeError : std::runtime_error {
  explicit CodeError(const std::string& got) : std::runtime_error(got), text(got) {}
  /// With zero bytes of the file, at which `what` ends.
  std::string text;
};

/// A line, those included that it goes on in while a bracket is open: where it stands, and how far to the right.
struct CodeLine {
  std::string record;
  size_t number = 0;
  size_t indent = 0;
  std::string text;

  /// The words of the line: names, numbers, texts and marks. Throws `CodeError` for anything else.
  std::vector<std::string> split() const;
  [[noreturn]] void fail(const std::string& got) const;
};

/// The lines of a record that are not empty.
std::vector<CodeLine> split_lines(const std::string& record, const std::string& code);

/// Whether a word is a name and no keyword.
bool is_name(std::string_view word);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// Of a name, its first character: beyond ASCII torch's lexer decides.
inline bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace torchferry
