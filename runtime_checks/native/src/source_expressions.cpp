#include "source_expressions.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "limits.hpp"

namespace torchferry {
namespace {

using Names = std::set<std::string>;

/// Operators whose results have the types of their arguments.
const Names& generic_names() {
  static const Names names{
      "__getitem__", "_set_item", "_unwrap_optional", "add", "add_", "append", "copy", "dequantize", "dict", "get",
      "items", "list", "local_value", "mul", "mul_", "pop", "popitem", "select", "setdefault", "slice", "sorted",
      "to_here", "values", "wait", "IfThenElse", "ModuleContainerIndex", "TupleIndex", "Uninitialized",
      "awaitable_nowait", "awaitable_wait", "unchecked_cast", "unchecked_unwrap_optional"};
  return names;
}

bool is_one_of(const std::string& name, const Names& names) { return names.count(name) != 0; }
bool makes_pairs(const std::string& name) { return name == "items" || name == "popitem"; }
bool is_cast(const std::string& name) {
  return name == "annotate" || name == "unchecked_cast" || name == "uninitialized";
}
bool gives_no_parts(const std::string& name) {
  static const Names names{"int", "float", "bool", "str", "complex", "ord", "isinstance", "print"};
  return is_one_of(name, names);
}
bool is_container(const std::string& name) {
  static const Names names{"List", "Dict", "Optional", "Union", "Future", "Await", "RRef", "Final"};
  return is_one_of(name, names);
}
bool is_space(const std::string& name) { return name == "torch" || name == "ops"; }

std::string without_quotes(const std::string& word) {
  const auto first = word.find_first_not_of('"'), last = word.find_last_not_of('"');
  return first == std::string::npos ? "" : word.substr(first, last + 1 - first);
}

TypeTree join_all(const std::vector<TypeTree>& types, TypeTree joined = {}) {
  for (const auto& type : types) joined = join_types(joined, type);
  return joined;
}

/// A type of lists or dicts that hold these.
TypeTree container_of(const std::vector<TypeTree>& inner) {
  const auto joined = join_all(inner);
  return {joined.parts + 1, joined.depth + 1, nullptr, std::make_shared<const TypeTree>(joined), ""};
}

/// Joins what two types hold, without what that holds: types that share parts are walked through no further.
TypeTree join_part(const TypeTree& one, const TypeTree& other) {
  return {std::max(one.parts, other.parts), std::max(one.depth, other.depth), nullptr, nullptr,
          one.owner == other.owner ? one.owner : ""};
}

size_t count_of(const TypeTree& type) { return type.elements ? type.elements->size() : 0; }

}  // namespace

TypeTree tuple_of(std::vector<TypeTree> elements) {
  TypeTree made;
  made.depth = 1;
  for (const auto& type : elements) {
    made.parts += type.parts;
    made.depth = std::max(made.depth, type.depth + 1);
  }
  made.elements = std::make_shared<const std::vector<TypeTree>>(std::move(elements));
  return made;
}

TypeTree object_of(const std::string& owner) {
  TypeTree made;
  made.owner = owner;
  return made;
}

TypeTree join_types(const TypeTree& one, const TypeTree& other) {
  const auto is_plain = [](const TypeTree& type) { return !type.depth && type.owner.empty(); };
  if (is_plain(other)) return one;
  if (is_plain(one)) return other;
  TypeTree joined = join_part(one, other);
  if (one.owner.empty() || other.owner.empty()) joined.owner = one.owner + other.owner;
  const bool is_one_plain = !one.depth || !other.depth;
  if (count_of(one) == count_of(other)) {
    std::vector<TypeTree> elements;
    for (size_t i = 0; i < count_of(one); ++i) elements.push_back(join_part((*one.elements)[i], (*other.elements)[i]));
    joined.elements = std::make_shared<const std::vector<TypeTree>>(std::move(elements));
  } else if (is_one_plain) {
    joined.elements = count_of(one) ? one.elements : other.elements;
  }
  if (one.inner && other.inner)
    joined.inner = std::make_shared<const TypeTree>(join_part(*one.inner, *other.inner));
  else if (is_one_plain)
    joined.inner = one.inner ? one.inner : other.inner;
  return joined;
}

std::string key_in(const std::string& owner, const std::string& name) { return (owner.empty() ? kAny : owner) + "." + name; }

std::string key_of(const std::vector<std::string>& path) {
  std::string key;
  for (size_t i = 0; i + 1 < path.size(); ++i) key += (i ? "." : "") + path[i];
  for (char& c : key)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return key + "." + path.back();
}

TypeTree find_type(const Types& types, const std::string& name) {
  const auto known = types.find(name);
  return known == types.end() ? TypeTree{} : known->second;
}

void keep_type(Types& types, const std::string& name, const TypeTree& type) {
  types[name] = join_types(find_type(types, name), type);
}

void TypeCount::add(const TypeTree& type, const SourceLine& line) {
  if (type.parts > kMaxTypeParts) line.fail("a type of " + std::to_string(type.parts) + " parts");
  if (type.depth > kMaxTypeDepth)
    line.fail("a type of " + std::to_string(type.depth) + " tuples and lists in each other");
  // Most values have no parts, or are lists of such: they cost what their words cost.
  if (type.parts > 2) parts_ += type.parts;
  if (parts_ > kMaxTypes) line.fail("types of more than " + std::to_string(kMaxTypes) + " parts in all");
}

const std::string& ExpressionReader::word(size_t after) const {
  return at_ + after < words_.size() ? words_[at_ + after] : end_;
}

bool ExpressionReader::take(const std::string& allowed) {
  const bool is_next = at_ < words_.size() && words_[at_] == allowed;
  at_ += is_next;
  return is_next;
}

void ExpressionReader::expect(const std::string& allowed) {
  if (!take(allowed)) fail();
}

void ExpressionReader::expect_end() {
  if (at_ < words_.size()) fail();
}

std::string ExpressionReader::take_name() {
  if (!is_name(word())) fail();
  return words_[at_++];
}

std::string ExpressionReader::take_text() {
  const auto text = without_quotes(word());
  ++at_;
  return text;
}

void ExpressionReader::fail() const {
  line.fail((word().empty() ? "an early end" : "'" + word() + "'") + ", which torch does not write there");
}

std::vector<Operand> ExpressionReader::read_all() {
  std::vector<Operand> operands;
  operands.push_back(read());
  while (take(",")) {
    if (word().empty() || word() == "=") break;
    operands.push_back(read());
  }
  return operands;
}

Operand ExpressionReader::read() {
  Value value;
  while (true) {
    const auto& next = word();
    const char first = next.empty() ? '\0' : next[0];
    const auto is_one_of_marks = [&](const std::string& marks) {
      return next.size() == 1 && marks.find(first) != std::string::npos;
    };
    if (is_name(next) || is_digit(first) || first == '"') {
      value = read_word(value);
    } else if (is_one_of_marks("+-")) {
      read_sign(value);
      value.reset();
    } else if (next == "." && value) {
      ++at_;
      value = read_attribute(*value);
      continue;
    } else if (is_one_of_marks("([{") && (!value || first != '{')) {
      brackets_.push_back({first, std::move(value), {}, 0});
      value.reset();
    } else if (!brackets_.empty() && is_one_of_marks(")]},:=")) {
      value = read_mark(std::move(value));
    } else if (value && brackets_.empty()) {
      return *value;
    } else {
      fail();
    }
    ++at_;
  }
}

TypeTree ExpressionReader::find_result(std::vector<std::string> path) const {
  // torch writes `C.__new__(C)` for a new object.
  if (path.back() == "__new__") path.pop_back();
  const auto key = key_of(path);
  if (signatures_.functions.count(key)) {
    scope_.called.push_back(key);
    return find_type(signatures_.results, key);
  }
  TypeTree type;
  find_class(key, type);
  return type;
}

bool ExpressionReader::find_class(const std::string& key, TypeTree& type) const {
  const auto known = signatures_.tuples.find(key);
  if (known != signatures_.tuples.end()) {
    type = known->second;
    return true;
  }
  if (!signatures_.classes.count(key)) return false;
  type = object_of(key);
  return true;
}

/// Whether a path names a class; its type. Notes that it, or the function there, is named.
bool ExpressionReader::find_path(const std::vector<std::string>& path, TypeTree& type) const {
  const auto key = key_of(path);
  const bool is_class = find_class(key, type);
  if (is_class || signatures_.functions.count(key)) scope_.named.insert(key);
  return is_class;
}

/// The type of what a method gives. Of an object of no known class, any may be called.
TypeTree ExpressionReader::find_method(const TypeTree& before, const std::string& name) const {
  const auto key = key_in(before.owner, name);
  const auto known = signatures_.results.find(key);
  if (known == signatures_.results.end()) return {};
  scope_.called.push_back(key);
  return known->second;
}

ExpressionReader::Value ExpressionReader::read_word(const Value& value) {
  const auto& next = word();
  if (value) fail();
  auto made = std::make_unique<Operand>();
  if (!is_name(next)) {
    made->word = next;
    return made;
  }
  made->type = find_type(scope_.values, next);
  count_.add(made->type, line);
  made->path = {next};
  if (next == "inf" || next == "nan") made->word = next;
  return made;
}

/// The sign of a number, or that between the two of a complex one: no more than one is before a number.
void ExpressionReader::read_sign(const Value& value) const {
  const auto& after = word(1);
  const bool is_number = (!after.empty() && is_digit(after[0])) || after == "inf" || after == "nan";
  if (!is_number || (value && (value->word.empty() || value->word.back() == 'j' || after.back() != 'j'))) fail();
}

ExpressionReader::Value ExpressionReader::read_attribute(const Operand& value) {
  const auto name = take_name();
  auto made = std::make_unique<Operand>();
  made->path = value.path.empty() ? std::vector<std::string>{""} : value.path;
  made->path.push_back(name);
  made->chain = lengthen(value);
  const auto& root = made->path[0];
  if (is_space(root) || root == "CONSTANTS") return made;
  if (root != "__torch__" || !find_path(made->path, made->type))
    made->type = find_type(signatures_.attributes, key_in(value.type.owner, name));
  made->before = value.type;
  count_.add(made->type, line);
  return made;
}

int ExpressionReader::lengthen(const Operand& value) const {
  if (value.chain >= kMaxChain)
    line.fail("more than " + std::to_string(kMaxChain) + " attributes, elements and calls after each other");
  return value.chain + 1;
}

ExpressionReader::Value ExpressionReader::read_mark(Value value) {
  const char mark = word()[0];
  auto& bracket = brackets_.back();
  if (mark == '=') {
    // The name of an argument.
    if (bracket.mark != '(' || !bracket.after || !value || value->path.size() != 1) fail();
    return nullptr;
  }
  if (mark == ',' && !value) fail();
  if (mark == ':' && bracket.mark == '(') fail();
  if (value) bracket.operands.push_back(std::move(*value));
  bracket.commas += mark == ',';
  bracket.has_colon |= mark == ':';
  if (mark == ',' || mark == ':') return nullptr;
  const char closing = bracket.mark == '(' ? ')' : bracket.mark == '[' ? ']' : '}';
  if (mark != closing) fail();
  const auto done = std::move(bracket);
  brackets_.pop_back();
  auto made = std::make_unique<Operand>();
  made->type = close(done);
  // A number in brackets, which may be negative, is one.
  const bool is_group = !done.after && done.mark == '(' && done.operands.size() == 1 && !done.commas;
  if (is_group) made->word = done.operands[0].word;
  if (done.after) made->chain = lengthen(*done.after);
  count_.add(made->type, line);
  return made;
}

TypeTree ExpressionReader::close(const Bracket& bracket) const {
  std::vector<TypeTree> types;
  for (const auto& operand : bracket.operands) types.push_back(operand.type);
  if (bracket.after) return bracket.mark == '(' ? call(bracket, types) : pick(bracket, types);
  if (bracket.mark != '(') return container_of(types);
  return types.size() == 1 && !bracket.commas ? types[0] : tuple_of(types);
}

/// The type of an element, or of some, of what stands in front of a bracket; or the type that it names.
TypeTree ExpressionReader::pick(const Bracket& bracket, const std::vector<TypeTree>& types) const {
  const auto& whole = *bracket.after;
  if (whole.path.size() == 1 && whole.path[0] == "Tuple") return tuple_of(types);
  if (whole.path.size() == 1 && is_container(whole.path[0])) {
    // Parts of all, of a dict's keys too.
    auto made = tuple_of(types);
    made.elements = nullptr;
    if (!types.empty()) made.inner = std::make_shared<const TypeTree>(types.back());
    return made;
  }
  const std::string index = types.size() == 1 ? bracket.operands[0].word : "";
  const bool is_index = !index.empty() && index.size() < 7 && std::all_of(index.begin(), index.end(), is_digit);
  if (is_index && std::stoul(index) < count_of(whole.type)) return (*whole.type.elements)[std::stoul(index)];
  const bool is_slice = bracket.has_colon || types.empty();
  return is_slice || !whole.type.inner ? whole.type : *whole.type.inner;
}

TypeTree ExpressionReader::call(const Bracket& bracket, const std::vector<TypeTree>& types) const {
  const auto& called = *bracket.after;
  if (called.path.empty()) line.fail("a call of something without a name, which torch does not write");
  const auto &name = called.path.back(), &space = called.path.front();
  if (called.path.size() == 1) return call_name(name, bracket, types);
  if (space == "__torch__") return find_result(called.path);
  TypeTree result;
  if (is_one_of(name, generic_names())) result = join_all(types, called.before);
  if (makes_pairs(name)) result = {result.parts + 2, result.depth + 2, nullptr, nullptr, ""};
  return is_space(space) ? result : join_types(result, find_method(called.before, name));
}

/// What a call by a single name gives. `annotate` and its like give the type that stands first.
TypeTree ExpressionReader::call_name(const std::string& name, const Bracket& bracket,
                                     const std::vector<TypeTree>& types) const {
  if (is_cast(name) && !types.empty()) return types[0];
  if (name == "getattr" && types.size() == 2)
    return find_type(signatures_.attributes, key_in(types[0].owner, without_quotes(bracket.operands[1].word)));
  if (name == "sorted" && !types.empty()) return join_all(types);
  if (gives_no_parts(name)) return {};
  const auto known = scope_.functions.find(name);
  if (known == scope_.functions.end()) line.fail("a call of " + name + ", which torch does not write");
  return find_result(known->second);
}

}  // namespace torchferry
