#include "plain_text.hpp"

#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace torchferry {
namespace {

constexpr std::array<std::pair<uint32_t, uint32_t>, 19> kUnsafe = {{
    {0x00, 0x1f},
    {0x7f, 0x9f},
    {0xad, 0xad},
    {0x34f, 0x34f},
    {0x61c, 0x61c},
    {0x115f, 0x1160},
    {0x17b4, 0x17b5},
    {0x180b, 0x180f},
    {0x200b, 0x200f},
    {0x2028, 0x202e},
    {0x2060, 0x206f},
    {0x3164, 0x3164},
    {0xd800, 0xdfff},
    {0xfe00, 0xfe0f},
    {0xfeff, 0xfeff},
    {0xffa0, 0xffa0},
    {0xfff9, 0xfffb},
    {0xfffe, 0xffff},
    {0xe0000, 0xe0fff},
}};

struct Character {
  uint32_t code;
  size_t bytes;
  bool valid;
};

/// The character that begins at `at`; one byte that is not valid where it is no UTF-8.
Character read_character(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const size_t bytes = first < 0x80 ? 1 : first >> 5 == 0x6 ? 2 : first >> 4 == 0xe ? 3 : first >> 3 == 0x1e ? 4 : 0;
  if (bytes == 0 || at + bytes > text.size()) return {first, 1, false};
  uint32_t code = bytes == 1 ? first : first & (0xffu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(at + i) >> 6 != 0x2) return {first, 1, false};
    code = code << 6 | (byte(at + i) & 0x3fu);
  }
  return {code, bytes, true};
}

bool is_unsafe(uint32_t code, bool is_name) {
  if (!is_name && (code == '\t' || code == '\n')) return false;
  for (const auto& [first, last] : kUnsafe)
    if (code >= first && code <= last) return true;
  return false;
}

std::string format_code(const char* format, uint32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(code));
  return text;
}

}  // namespace

std::string find_unsafe(const std::string& text, bool is_name) {
  for (size_t at = 0; at < text.size();) {
    const auto found = read_character(text, at);
    if (!found.valid || is_unsafe(found.code, is_name)) return format_code("U+%04X", found.code);
    at += found.bytes;
  }
  return "";
}

std::string escape_unsafe(const std::string& text) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const auto found = read_character(text, at);
    if (!found.valid)
      plain += format_code("\\x%02x", found.code);
    else if (is_unsafe(found.code, false))
      plain += format_code("\\u%04x", found.code);
    else
      plain += text.substr(at, found.bytes);
    at += found.bytes;
  }
  return plain;
}

size_t count_characters(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += read_character(text, at).bytes) ++count;
  return count;
}

}  // namespace torchferry
