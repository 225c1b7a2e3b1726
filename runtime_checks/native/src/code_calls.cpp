#include "code_calls.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "limits.hpp"

namespace torchferry {
namespace {

struct Measure {
  uint64_t depth = 0;
  uint64_t length = 0;
};
using Measures = std::unordered_map<std::string, Measure>;

Measure measure(const Definition& definition, const Measures& known, uint64_t longest) {
  Measure all{0, definition.length};
  for (const auto& key : definition.named)
    if (const auto other = known.find(key); other != known.end()) all.depth = std::max(all.depth, other->second.depth);
  for (const auto& key : definition.called)
    if (const auto other = known.find(key); other != known.end()) {
      all.depth = std::max(all.depth, other->second.depth);
      all.length += other->second.length;
    }
  ++all.depth;
  if (all.depth > kMaxNamedDepth)
    definition.line.fail(std::to_string(all.depth) + " classes and functions in each other");
  if (all.length > longest) definition.line.fail(std::to_string(all.length) + " characters with all that is called");
  return all;
}

}  // namespace

void check_calls(const std::map<std::string, Definition>& definitions) {
  Measures known;
  std::unordered_set<std::string> entered;
  std::vector<std::string> todo;
  uint64_t longest = kMaxRepeatedText;
  for (const auto& [key, definition] : definitions) todo.push_back(key), longest += kMaxRepeats * definition.length;
  while (!todo.empty()) {
    const auto key = todo.back();
    if (known.count(key)) {
      todo.pop_back();
      continue;
    }
    const auto& definition = definitions.at(key);
    const auto before = todo.size();
    const auto need = [&](const std::string& other) {
      if (definitions.count(other) && !known.count(other)) todo.push_back(other);
    };
    for (const auto& other : definition.named) need(other);
    for (const auto& other : definition.called) need(other);
    const bool is_missing = todo.size() > before;
    if (is_missing && !entered.insert(key).second)
      definition.line.fail("something that needs itself, which torch does not write");
    if (!is_missing) known[key] = measure(definition, known, longest);
  }
}

}  // namespace torchferry
