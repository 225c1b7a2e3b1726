#include "code_expressions.hpp"

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
/// Operators that give an element of a list, a value of a dict, or what is optional.
bool is_pick(const std::string& name) {
  static const Names names{"__getitem__", "_unwrap_optional", "get", "pop", "select"};
  return is_one_of(name, names);
}
/// What calls by these names give has no parts; of an object, each calls a method.
bool is_conversion(const std::string& name) {
  static const Names names{"int", "float", "bool", "str", "complex"};
  return is_one_of(name, names);
}
bool is_tuple(const std::string& name) { return name == "Tuple" || name == "tuple"; }
bool is_container(const std::string& name) {
  static const Names names{"List", "Dict", "Optional", "Union", "Future", "Await", "RRef", "Final", "list", "dict"};
  return is_one_of(name, names);
}
bool is_space(const std::string& name) { return name == "torch" || name == "ops"; }
bool is_root(const std::string& name) { return is_space(name) || name == "CONSTANTS" || name == "__torch__"; }
/// The type of a tensor, a number or None: nothing in it, and no object.
bool is_plain(const TypeTree& type) { return !type.depth && type.owner.empty(); }

TypeTree join_all(const std::vector<TypeTree>& types, TypeTree joined = {}) {
  for (const auto& type : types) joined = join_types(joined, type);
  return joined;
}

/// A type of lists or dicts that hold these: of several types, torch makes a union.
TypeTree container_of(const std::vector<TypeTree>& inner) {
  auto joined = join_all(inner);
  uint64_t parts = 0;
  for (const auto& type : inner) parts += is_plain(type) ? 0 : type.parts;
  joined.parts = std::max(parts, joined.parts);
  return {joined.parts + 1, joined.depth + 1, nullptr, std::make_shared<const TypeTree>(joined), ""};
}

/// Joins what two types hold, without what that holds: types that share parts are walked through no further.
TypeTree join_part(const TypeTree& one, const TypeTree& other) {
  return {std::max(one.parts, other.parts), std::max(one.depth, other.depth), nullptr, nullptr,
          one.owner == other.owner ? one.owner : kAny};
}

size_t count_elements(const TypeTree& type) { return type.elements ? type.elements->size() : 0; }

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
  if (is_plain(other)) return one;
  if (is_plain(one)) return other;
  TypeTree joined = join_part(one, other);
  const bool is_one_plain = !one.depth || !other.depth;
  if (count_elements(one) == count_elements(other)) {
    std::vector<TypeTree> elements;
    for (size_t i = 0; i < count_elements(one); ++i) elements.push_back(join_part((*one.elements)[i], (*other.elements)[i]));
    joined.elements = std::make_shared<const std::vector<TypeTree>>(std::move(elements));
  } else if (is_one_plain) {
    joined.elements = count_elements(one) ? one.elements : other.elements;
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

void TypeCount::add(const TypeTree& type, const CodeLine& line) {
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

std::string ExpressionReader::name_in(const std::string& word) const {
  if (word.size() < 2 || word[0] != '"' || word.find('\\') != std::string::npos)
    line.fail("'" + word + "' for a name, which torch does not write");
  return word.substr(1, word.size() - 2);
}

std::string ExpressionReader::take_text() {
  const auto text = name_in(word());
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
  if (find_class(key, type)) {
    note_call(type, "__init__");
    return type;
  }
  if (path.size() <= 2) return {};
  const auto name = path.back();
  path.pop_back();
  return find_method(object_of(key_of(path)), name);
}

bool ExpressionReader::find_class(const std::string& key, TypeTree& type) const {
  if (signatures_.tuple_keys.count(key) && !signatures_.tuples.count(key))
    line.fail("a tuple that is named before what it holds, as torch does not write it");
  const auto known = signatures_.tuples.find(key);
  if (known != signatures_.tuples.end()) {
    type = known->second;
    return true;
  }
  if (!signatures_.classes.count(key)) return false;
  type = object_of(key);
  return true;
}

/// Whether a path names a class, and its type; whether it leads to a class or a function. Notes that it is named.
bool ExpressionReader::find_path(Operand& operand) const {
  const auto key = key_of(operand.path);
  const bool is_class = find_class(key, operand.type);
  if (is_class || signatures_.functions.count(key)) {
    scope_.named.insert(key);
    operand.is_known = true;
  }
  return is_class;
}

void ExpressionReader::note_call(const TypeTree& value, const std::string& name) const {
  if (!value.owner.empty() || value.depth) scope_.called.push_back(key_in(value.owner, name));
}

TypeTree ExpressionReader::enter(const TypeTree& value) const {
  note_call(value, "__exit__");
  return find_method(value, "__enter__");
}

void ExpressionReader::check_free(const std::string& name) const {
  if (scope_.bound.count(name)) line.fail("a value with the name " + name + ", where that means something else");
}

void ExpressionReader::check_value(const Operand& value) const {
  if (value.path.empty()) return;
  const auto& root = value.path[0];
  const bool is_alone = value.path.size() == 1;
  const bool is_elsewhere = root == "__torch__" && !value.is_known;
  if (is_space(root) || (is_alone && root == "CONSTANTS") || is_elsewhere || (is_alone && scope_.functions.count(root)))
    line.fail("another name for " + root + ", which torch does not write");
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
    made->word = sign_ + next;
    sign_.clear();
    return made;
  }
  sign_.clear();
  made->type = find_type(scope_.values, next);
  count_.add(made->type, line);
  made->path = {next};
  if (next == "inf" || next == "nan") made->word = next;
  return made;
}

/// The sign of a number, or that between the two of a complex one: no more than one is before a number.
void ExpressionReader::read_sign(const Value& value) {
  const auto& after = word(1);
  const bool is_number = (!after.empty() && is_digit(after[0])) || after == "inf" || after == "nan";
  if (!is_number || (value && (value->word.empty() || value->word.back() == 'j' || after.back() != 'j'))) fail();
  sign_ = word();
}

ExpressionReader::Value ExpressionReader::read_attribute(const Operand& value) {
  const auto name = take_name();
  auto made = std::make_unique<Operand>();
  made->path = value.path.empty() ? std::vector<std::string>{""} : value.path;
  made->path.push_back(name);
  made->chain = lengthen(value);
  const auto& root = made->path[0];
  if (is_root(root)) check_free(root);
  if (is_space(root) || root == "CONSTANTS") return made;
  made->is_known = value.is_known;
  if (root != "__torch__" || !find_path(*made))
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
  auto done = std::move(bracket);
  brackets_.pop_back();
  auto made = std::make_unique<Operand>(close(done));
  if (done.after) made->chain = lengthen(*done.after);
  count_.add(made->type, line);
  return made;
}

Operand ExpressionReader::close(Bracket& bracket) const {
  std::vector<TypeTree> types;
  for (const auto& operand : bracket.operands) types.push_back(operand.type);
  Operand made;
  if (bracket.after)
    made.type = bracket.mark == '(' ? call(bracket, types) : pick(bracket, types);
  else if (bracket.mark != '(')
    made.type = container_of(types);
  else if (types.size() == 1 && !bracket.commas)
    made = std::move(bracket.operands[0]);
  else
    made.type = tuple_of(types);
  return made;
}

/// The type of an element, or of some, of what stands in front of a bracket; or the type that it names.
TypeTree ExpressionReader::pick(const Bracket& bracket, const std::vector<TypeTree>& types) const {
  const auto& whole = *bracket.after;
  const std::string name = whole.path.size() == 1 ? whole.path[0] : "";
  TypeTree named;
  if (is_tuple(name) || is_container(name)) {
    named = tuple_of(types);
    // Parts of all, of a dict's keys too.
    if (!is_tuple(name)) {
      named.elements = nullptr;
      if (!types.empty()) named.inner = std::make_shared<const TypeTree>(types.back());
    }
    if (!scope_.bound.count(name)) return named;
  }
  // A value may have the name of a type: it is one, or the other.
  return join_types(named, pick_element(bracket, types));
}

TypeTree ExpressionReader::pick_element(const Bracket& bracket, const std::vector<TypeTree>& types) const {
  const auto& whole = *bracket.after;
  if (bracket.has_colon || types.size() != 1) return whole.type;
  if (!whole.type.owner.empty()) return join_types(whole.type, find_method(whole.type, "__getitem__"));
  const auto& index = bracket.operands[0].word;
  const bool is_index = !index.empty() && index.size() < 7 && std::all_of(index.begin(), index.end(), is_digit);
  if (is_index && std::stoul(index) < count_elements(whole.type)) return (*whole.type.elements)[std::stoul(index)];
  for (size_t i = 0; i < count_elements(whole.type); ++i)
    if (!is_plain((*whole.type.elements)[i])) {
      auto element = whole.type;
      element.owner = kAny;
      return element;
    }
  return whole.type.inner ? *whole.type.inner : whole.type;
}

namespace {

/// The type of what an operator gives, from the largest type of its arguments.
TypeTree find_generic_result(const std::string& name, TypeTree whole) {
  const TypeTree inner = whole.inner ? *whole.inner : whole;
  if (makes_pairs(name)) {
    auto pair = tuple_of({TypeTree{}, inner});
    pair.parts = std::max(pair.parts, whole.parts + 2);
    pair.depth = std::max(pair.depth, whole.depth + 1);
    if (name == "popitem") return pair;
    return {pair.parts + 1, pair.depth + 1, nullptr, std::make_shared<const TypeTree>(pair), ""};
  }
  if (is_pick(name)) whole.owner = inner.owner;
  return whole;
}

}  // namespace

TypeTree ExpressionReader::call(const Bracket& bracket, const std::vector<TypeTree>& types) const {
  const auto& called = *bracket.after;
  if (called.path.empty()) line.fail("a call of something without a name, which torch does not write");
  const auto &name = called.path.back(), &space = called.path.front();
  if (called.path.size() == 1) return call_name(name, bracket, types);
  if (space == "__torch__") return find_result(called.path);
  TypeTree result;
  if (is_one_of(name, generic_names())) result = find_generic_result(name, join_all(types, called.before));
  if (is_space(space)) return result;
  for (const char* method : {"__call__", "forward"}) note_call(called.type, method);
  return join_types(result, find_method(called.before, name));
}

/// What a call by a single name gives. `annotate` and its like give the type that stands first.
TypeTree ExpressionReader::call_name(const std::string& name, const Bracket& bracket,
                                     const std::vector<TypeTree>& types) const {
  const auto known = scope_.functions.find(name);
  if (known != scope_.functions.end()) return find_result(known->second);
  check_free(name);
  if (is_cast(name) && !types.empty()) return types[0];
  const bool is_path = !bracket.operands.empty() && !bracket.operands[0].path.empty() &&
                       bracket.operands[0].path[0] == "__torch__";
  if (name == "getattr" && types.size() == 2 && !is_path)
    return find_type(signatures_.attributes, key_in(types[0].owner, name_in(bracket.operands[1].word)));
  if (name == "sorted" && !types.empty()) return join_all(types);
  if (is_conversion(name))
    note_call(join_all(types), "__" + name + "__");
  else if (name != "ord" && name != "isinstance" && name != "print")
    line.fail("a call of " + name + ", which torch does not write");
  return {};
}

}  // namespace torchferry
