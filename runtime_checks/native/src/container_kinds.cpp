#include "container_kinds.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace torchferry {
namespace {

using Rules = std::vector<std::string_view>;

struct Rule {
  Kind kind;
  const char* name;
  const char* suffix;
  /// The first names a record that no other kind has. "/" at the end stands for all below it, "#" for a number.
  Rules records;
};

const std::array<Rule, 3>& rules() {
  static const std::array<Rule, 3> all = {
      {{Kind::kGraphs, "graphs", ".pt",
        {"data.pkl", "constants.pkl", "version", "data/#", "constants/#", "code/", "traced_inputs.pkl",
         "traced_inputs/#", "extra/torchferry/cases.pt", "extra/torchferry/kernel/", "extra/torchferry/contract.json",
         "extra/torchferry/graph.txt", "extra/torchferry/manifest.json", ".data/serialization_id", ".data/version",
         "byteorder"}},
       {Kind::kCode, "code", ".pt2",
        {"data/aotinductor/", "extra/torchferry/machine.json", "archive_format", "archive_version",
         "data/torchferry/cases.pt", "extra/torchferry/cases.pt", "data/torchferry/parameters.pt",
         "extra/torchferry/contract.json", "extra/torchferry/graph.txt", "extra/torchferry/manifest.json",
         ".data/serialization_id", ".data/version", "byteorder"}},
       {Kind::kPrograms, "programs", ".program.pt2",
        {"models/", "data/weights/", "data/constants/", "data/sample_inputs/", "archive_format", "archive_version",
         "data/torchferry/cases.pt", "extra/torchferry/cases.pt", "data/torchferry/parameters.pt",
         "extra/torchferry/contract.json", "extra/torchferry/graph.txt", "extra/torchferry/manifest.json",
         ".data/serialization_id", ".data/version", "byteorder"}}}};
  return all;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool fits(std::string_view name, std::string_view rule) {
  const auto stem = rule.substr(0, rule.size() - 1);
  if (rule.back() == '#') {
    const auto number = name.substr(std::min(stem.size(), name.size()));
    return name.substr(0, stem.size()) == stem && !number.empty() &&
           number.find_first_not_of("0123456789") == std::string_view::npos;
  }
  return rule.back() == '/' ? name.substr(0, rule.size()) == rule : name == rule;
}

}  // namespace

Kind classify_records(const std::set<std::string>& names, const std::string& where) {
  const Rule* found = nullptr;
  std::string marked;
  for (const auto& rule : rules())
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return fits(name, rule.records[0]); })) {
      marked += (marked.empty() ? "" : ", ") + std::string(rule.name);
      found = found ? found : &rule;
    }
  if (!found || marked != found->name)
    fail(TF_ERROR_ARCHIVE, {found ? "the file holds models of two kinds" : "the file holds no model", where,
                            found ? marked : "none",
                            "TorchScript (data.pkl), compiled code (data/aotinductor/) or programs (models/)",
                            "do not load this file: nothing that torchferry writes is like it"});
  for (const auto& name : names)
    if (std::none_of(found->records.begin(), found->records.end(), [&](auto rule) { return fits(name, rule); }))
      fail(TF_ERROR_ARCHIVE, {"the file has a record that files of its kind do not have", where, name,
                              std::string("records of ") + found->suffix + " files"});
  return found->kind;
}

void check_suffix(const std::string& path, Kind kind) {
  const auto name = path.substr(path.rfind('/') + 1);
  std::string_view suffix;
  const Rule* own = nullptr;
  for (const auto& rule : rules()) {
    if (ends_with(name, rule.suffix) && std::string_view(rule.suffix).size() > suffix.size()) suffix = rule.suffix;
    if (rule.kind == kind) own = &rule;
  }
  if (!suffix.empty() && suffix != own->suffix)
    fail(TF_ERROR_ARCHIVE, {"the file's name is that of another kind of file", path,
                            std::string(own->name) + " in a " + std::string(suffix), own->suffix,
                            std::string("rename it to NAME") + own->suffix + ", if you know where it comes from"});
}

}  // namespace torchferry
