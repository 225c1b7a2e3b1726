#include "contract_fields.hpp"

#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "limits.hpp"
#include "plain_text.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

using json = nlohmann::ordered_json;

/// Of each class its fields and their types, as exporter/archive/contract.py and target_machine.py have them: "?" may be
/// left out, [] is a list, {} an object with keys of any name, () a list of so many, | one of several.
constexpr const char* kFields = R"(
Contract schema:int name:text source:Origin created_with:CreatedWith inputs:[TensorSpec] outputs:[TensorSpec] batch:Batch methods:{MethodSpec} parameters:[ParameterSpec] tolerance:Tolerance devices:[text] operators:[text] findings:[Finding] envelope:Envelope ?differentiable:bool ?solvers:[Solver] ?info:[TensorSpec] ?per_element:[text] ?graph:text ?metadata:Metadata ?arguments:[StructureNode] ?positional:int ?results:[StructureNode]
Origin kind:text library:text version:text model:text sha256:text ?refused_imports:[text] ?revision:text ?files:{text}
CreatedWith torchferry:text torch:text python:text ?command:text
TensorSpec name:text ?shape:[int|text] ?dtype:text ?type:text ?sampling:Sampling ?unit:text ?quantity:text ?description:text
Batch ndim:int ?sizes:[int] ?ranks:[int] ?limits:text
MethodSpec inputs:[text] outputs:[text|(text,text)] ?needs_grad:bool ?how:text ?zeros:[(text,text)] ?symmetric:[(text,text)]
ParameterSpec name:text shape:[int] dtype:text ?unit:text ?quantity:text ?description:text
Tolerance dtypes:{Bounds} ?outputs:{Bounds}
Finding check:text what:text ?where:text ?reason:text ?severity:'unsound'|'sound'|'allowed'|'not_run' ?evidence:text ?mend:text
Envelope ?values:{Range} ?dtypes:[text]
Solver path:text settings:{number} on_failure:'nan'|'last'|'raise'
Metadata ?description:text ?authors:[text] ?license:text ?references:[text]
StructureNode kind:'variable'|'fixed'|'list'|'tuple'|'dict'|'named_tuple' ?name:text ?keys:[text|int] ?value:text
Sampling ?kind:'recorded'|'blended'|'uniform'|'fixed' ?low:number ?high:number ?spread:number
Bounds rtol:number atol:number ?floor:number
Range low:number high:number
TargetMachine system:text processor:text instructions:[text] torch:text device:text
)";

struct FieldType {
  std::string type;
  bool optional;
};
using Class = std::map<std::string, FieldType>;

const std::map<std::string, Class>& classes() {
  static const auto all = [] {
    std::map<std::string, Class> made;
    std::istringstream lines(kFields);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string owner, word;
      words >> owner;
      while (words >> word) {
        const bool optional = word[0] == '?';
        const auto colon = word.find(':');
        made[owner][word.substr(optional, colon - optional)] = {word.substr(colon + 1), optional};
      }
    }
    return made;
  }();
  return all;
}

/// The parts of "a|[b|c]|d" between separators that are in no bracket.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' || c == '{' || c == '(';
    depth -= c == ']' || c == '}' || c == ')';
    if (c == separator && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

class Checker {
 public:
  Checker(const RecordKind& kind, const std::string& where) : kind_(kind), where_(where) {}

  void check(const json& value, const std::string& type, const std::string& path) const {
    check_limits(value, path);
    const auto choices = split(type, '|');
    if (choices.size() > 1) {
      for (const auto& choice : choices)
        if (is_of(value, choice)) return check_inside(value, choice, path);
      refuse(path, value.type_name(), type);
    }
    if (!is_of(value, type)) refuse(path, value.type_name(), type);
    check_inside(value, type, path);
  }

 private:
  static bool is_of(const json& value, const std::string& type) {
    if (type == "text") return value.is_string();
    if (type == "int") return value.is_number_integer();
    if (type == "bool") return value.is_boolean();
    if (type == "number") return value.is_number() && std::isfinite(value.get<double>());
    if (type[0] == '\'') {
      std::string literal = type.substr(1, type.size() - 2);
      for (auto& c : literal) c = c == '_' ? ' ' : c;
      return value.is_string() && value.get<std::string>() == literal;
    }
    if (type[0] == '(') return value.is_array() && value.size() == split(inner(type), ',').size();
    return type[0] == '[' ? value.is_array() : value.is_object();
  }

  void check_inside(const json& value, const std::string& type, const std::string& path) const {
    if (type[0] == '[' || type[0] == '(') {
      const auto parts = type[0] == '(' ? split(inner(type), ',') : std::vector<std::string>{};
      for (size_t i = 0; i < value.size(); ++i)
        check(value[i], parts.empty() ? inner(type) : parts[i], path + "." + std::to_string(i));
    } else if (type[0] == '{') {
      for (const auto& [key, item] : value.items()) {
        check_text(key, path + ".key");
        check(item, inner(type), path + "." + key);
      }
    } else if (const auto found = classes().find(type); found != classes().end()) {
      for (const auto& [key, item] : value.items()) {
        const auto field = found->second.find(key);
        check_text(key, path + ".key");
        if (field == found->second.end()) refuse(join(path, key), "a field of this name", "no field that the format lacks");
        check(item, field->second.type, join(path, key));
      }
      for (const auto& [key, field] : found->second)
        if (!field.optional && !value.contains(key)) refuse(path, "nothing", "the field " + in_quotes(key));
    }
  }

  void check_limits(const json& value, const std::string& path) const {
    if (value.is_structured() && value.size() > kMaxItems)
      refuse(path, std::to_string(value.size()), "at most " + std::to_string(kMaxItems));
    if (value.is_string()) check_text(value.get<std::string>(), path);
    const auto last = path.substr(path.rfind('.') + 1);
    if (last == "shape" && value.is_array() && value.size() > kMaxRank)
      refuse(path, std::to_string(value.size()), "at most " + std::to_string(kMaxRank) + " sizes");
    const bool in_list = !last.empty() && last.find_first_not_of("0123456789") == std::string::npos;
    const auto owner = in_list ? path.substr(0, path.size() - last.size() - 1) : "";
    const auto list = owner.substr(owner.rfind('.') + 1);
    if ((list == "shape" || list == "sizes" || list == "ranks") && value.is_number_integer()) {
      const bool large = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kMaxSize);
      if (large || (!value.is_number_unsigned() && value.get<int64_t>() < 0))
        refuse(path, value.dump(), "a number from 0 to " + std::to_string(kMaxSize));
    }
  }

  void check_text(const std::string& text, const std::string& path) const {
    if (text.size() > kMaxText && count_characters(text) > kMaxText)
      refuse(path, std::to_string(count_characters(text)) + " characters", "at most " + std::to_string(kMaxText));
    if (const auto unsafe = find_unsafe(text, false); !unsafe.empty())
      refuse(path, "the character " + unsafe, "no control characters");
  }

  static std::string inner(const std::string& type) { return type.substr(1, type.size() - 2); }
  static std::string join(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

  [[noreturn]] void refuse(const std::string& path, const std::string& got, const std::string& expected) const {
    fail(TF_ERROR_ARCHIVE, {kind_.broken, where_ + ", field " + (path.empty() ? "the whole" : path), got,
                            expected, kind_.mend});
  }

  RecordKind kind_;
  std::string where_;
};

}  // namespace

json parse_strictly(const std::string& text, const RecordKind& kind, const std::string& where) {
  std::vector<std::set<std::string>> keys;
  bool twice = false;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::key) twice |= !keys.back().insert(value.get<std::string>()).second;
    if (event == json::parse_event_t::object_end) keys.pop_back();
    return true;
  };
  auto raw = json::parse(text, watch, false);
  // Its parser takes a zero byte as the end.
  const bool is_cut = text.find('\0') != std::string::npos;
  if (raw.is_discarded() || twice || is_cut || text.rfind("\xef\xbb\xbf", 0) == 0)
    fail(TF_ERROR_ARCHIVE, {kind.what + std::string(" is not JSON"), where, twice ? "a key stands in an object twice" : ""});
  return raw;
}

void check_fields(const json& raw, const RecordKind& kind, const std::string& where) {
  Checker(kind, where).check(raw, kind.type, "");
}

void check_name(const std::string& name, const std::string& of) {
  const auto unsafe = find_unsafe(name, true);
  if (name.empty() || count_characters(name) > kMaxName || !unsafe.empty())
    fail(TF_ERROR_ARCHIVE, {"the name of " + of + " is not a name", "",
                            unsafe.empty() ? std::to_string(count_characters(name)) + " characters"
                                           : "the character " + unsafe,
                            "1 to " + std::to_string(kMaxName) + " characters, none of them a control character"});
}

}  // namespace torchferry
