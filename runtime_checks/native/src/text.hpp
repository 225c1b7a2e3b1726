#pragma once

#include <set>
#include <string>
#include <vector>

#include <torchferry/error.hpp>

#include "plain_text.hpp"

namespace torchferry {

/// The parts of a message; empty ones are left out.
struct Message {
  std::string what;
  std::string where = "";
  std::string got = "";
  std::string expected = "";
  std::string mend = "";

  std::string text() const {
    std::string lines = what;
    for (const auto& [key, value] : {std::pair<const char*, const std::string&>{"where", where},
                                     {"got", got},
                                     {"expected", expected},
                                     {"mend", mend}})
      if (!value.empty()) lines += std::string("\n  ") + key + ": " + value;
    // Parts quote files, which may hold what a terminal obeys.
    return escape_unsafe(lines);
  }
};

[[noreturn]] inline void fail(tf_status status, const Message& message) { throw Error(status, message.text()); }

inline std::string in_quotes(const std::string& name) { return "'" + name + "'"; }

/// "a, b"
inline std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// "one of 'a', 'b'", for what is expected where a name is unknown.
template <class Items, class Name>
std::string one_of(const Items& items, Name name) {
  std::string listing;
  size_t count = 0;
  for (const auto& item : items) {
    if (++count > 12) continue;
    listing += (listing.empty() ? "" : ", ") + in_quotes(name(item));
  }
  if (listing.empty()) return "nothing: there are none";
  return "one of " + listing + (count > 12 ? " and " + std::to_string(count - 12) + " more" : "");
}

}  // namespace torchferry
