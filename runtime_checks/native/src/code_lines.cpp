#include "code_lines.hpp"

#include <algorithm>
#include <cstring>
#include <set>

namespace torchferry {
namespace {

/// Where a text in quotes that begins here ends; its beginning if it does not end in this line.
size_t end_of_text(std::string_view line, size_t at) {
  for (size_t i = at + 1; i < line.size() && line[i] != '\n'; ++i) {
    if (line[i] == '"') return i + 1;
    if (line[i] == '\\' && (++i >= line.size() || line[i] == '\n')) break;
  }
  return at;
}

size_t skip_digits(std::string_view line, size_t at) {
  while (at < line.size() && is_digit(line[at])) ++at;
  return at;
}

size_t end_of_number(std::string_view line, size_t at) {
  at = skip_digits(line, at);
  if (at < line.size() && line[at] == '.') at = skip_digits(line, at + 1);
  if (at < line.size() && (line[at] == 'e' || line[at] == 'E')) {
    const size_t sign = at + 1 < line.size() && (line[at + 1] == '+' || line[at + 1] == '-') ? 1 : 0;
    if (const auto end = skip_digits(line, at + 1 + sign); end > at + 1 + sign) at = end;
  }
  return at < line.size() && line[at] == 'j' ? at + 1 : at;
}

/// Where the word that begins here ends; its beginning for what is none.
size_t end_of_word(std::string_view line, size_t at) {
  const char c = line[at];
  if (c == '"') return end_of_text(line, at);
  if (is_digit(c)) return end_of_number(line, at);
  if (is_letter(c)) {
    while (at < line.size() && (is_letter(line[at]) || is_digit(line[at]))) ++at;
    return at;
  }
  if (line.substr(at, 2) == "->") return at + 2;
  return c != '\0' && std::strchr("()[]{},.:=+-", c) ? at + 1 : at;
}

/// How many brackets a line opens more than it closes, outside of texts.
long count_open(std::string_view line) {
  long count = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      const auto end = end_of_text(line, i);
      // A text that is not closed, up to the end of the line.
      if (end == i) break;
      i = end - 1;
    } else if (c == '(' || c == '[' || c == '{') {
      ++count;
    } else if (c == ')' || c == ']' || c == '}') {
      --count;
    }
  }
  return count;
}

CodeLine make_line(const std::string& record, size_t number, const std::string& text) {
  const auto first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
  if (first == std::string::npos) return {record, number, text.size(), ""};
  return {record, number, first, text.substr(first, last + 1 - first)};
}

bool is_empty(std::string_view text) { return text.find_first_not_of(" \t\r\f\v") == std::string_view::npos; }

}  // namespace

bool is_name(std::string_view word) {
  // Of torch's lexer: other words are names, those that are none in Python too.
  static const std::set<std::string_view> keywords{"and", "as", "assert", "break", "class", "continue", "def", "del",
                                                   "elif", "else", "for", "global", "if", "import", "in", "is", "not",
                                                   "or", "pass", "raise", "return", "while", "with"};
  return !word.empty() && is_letter(word[0]) && !keywords.count(word);
}

std::vector<std::string> CodeLine::split() const {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == ' ') {
      ++at;
      continue;
    }
    const auto end = end_of_word(text, at);
    if (end == at) fail("'" + text.substr(at, 20) + "', which torch does not write there");
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

void CodeLine::fail(const std::string& got) const {
  throw CodeError(got + ", in line " + std::to_string(number) + " of the record " + record);
}

std::vector<CodeLine> split_lines(const std::string& record, const std::string& code) {
  std::vector<CodeLine> lines;
  std::string text;
  size_t start = 0, number = 0;
  long depth = 0;
  bool inside = false;
  for (size_t at = 0; at <= code.size();) {
    const auto end = std::min(code.find('\n', at), code.size());
    const auto line = std::string_view(code).substr(at, end - at);
    at = end + 1, ++number;
    if (!inside && is_empty(line)) continue;
    if (!inside) start = number, text.clear(), depth = 0;
    if (inside) text += ' ';
    text += line, depth += count_open(line);
    inside = depth > 0;
    if (!inside) lines.push_back(make_line(record, start, text));
  }
  if (inside) lines.push_back(make_line(record, start, text));
  return lines;
}

}  // namespace torchferry
