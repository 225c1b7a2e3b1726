#include "code_check.hpp"

#include <algorithm>
#include <cctype>
#include <set>

#include "code_calls.hpp"
#include "code_expressions.hpp"

namespace torchferry {
namespace {

/// A class of the code: where it begins, whether it is a tuple with names, and the lines of its attributes.
struct CodeClass {
  CodeLine line;
  bool is_tuple = false;
  std::vector<CodeLine> attributes;
};

/// A function, or a method of a class: its header, its name, what it is known by, and the lines of its body.
struct CodeFunction {
  CodeLine header;
  std::string name;
  std::string key;
  std::string owner;
  std::vector<CodeLine> body;
};

/// What stands in the records: classes by key, and functions.
struct ParsedCode {
  std::map<std::string, CodeClass> classes;
  std::vector<CodeFunction> functions;
};

using Definitions = std::map<std::string, Definition>;

bool begins_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

std::string in_lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

/// `code/__torch__/a.py` has the module `__torch__.a`. torch's reader of zip files does not look at the case of letters.
std::string module_of(const std::string& record) {
  auto module = in_lower_case(record);
  module.erase(0, std::string("code/").size());
  if (module.size() >= 3 && module.compare(module.size() - 3, 3, ".py") == 0) module.resize(module.size() - 3);
  std::replace(module.begin(), module.end(), '/', '.');
  return module;
}

bool is_before_classes(const std::string& text) {
  const auto are = [&](size_t start, const auto& is_allowed) {
    return text.size() > start && std::all_of(text.begin() + static_cast<long>(start), text.end(), is_allowed);
  };
  const std::string version = "op_version_set = ", import = "import ";
  if (begins_with(text, version)) return are(version.size(), is_digit);
  return begins_with(text, import) &&
         are(import.size(), [](char c) { return is_letter(c) || is_digit(c) || c == '.'; });
}

void check_class(const CodeLine& line, const std::vector<std::string>& words, const std::string& base) {
  static const std::set<std::string> bases{"Module", "NamedTuple", "Interface", "ModuleInterface", "Enum"};
  const std::vector<std::string> end(words.begin() + std::min<long>(2, static_cast<long>(words.size())), words.end());
  const bool is_plain = end == std::vector<std::string>{":"};
  const bool has_base = end == std::vector<std::string>{"(", base, ")", ":"} && (base.empty() || bases.count(base));
  if (!is_plain && !has_base) line.fail("a class that is not like those that torch writes");
}

/// Sorts the lines of a record: by classes, and by functions.
void read_record(ParsedCode& parsed, const std::string& record, const std::string& data) {
  const auto module = module_of(record);
  CodeClass* entered = nullptr;
  std::string key;
  bool has_body = false;
  for (auto& line : split_lines(record, data)) {
    if (has_body && line.indent > parsed.functions.back().header.indent) {
      parsed.functions.back().body.push_back(std::move(line));
      continue;
    }
    has_body = false;
    if (line.indent == 0) entered = nullptr, key.clear();
    if (begins_with(line.text, "class ")) {
      const auto words = line.split();
      const std::string base = words.size() == 6 ? words[3] : "";
      check_class(line, words, base);
      key = key_of({module, words[1]});
      if (parsed.classes.count(key) || line.indent) line.fail("another definition of " + words[1] + ", or one inside another");
      entered = &parsed.classes.emplace(key, CodeClass{line, base == "NamedTuple", {}}).first->second;
    } else if (begins_with(line.text, "def ")) {
      has_body = true;
      const auto name = line.split().at(1);
      parsed.functions.push_back({std::move(line), name, key.empty() ? key_of({module, name}) : key_in(key, name), key, {}});
    } else if (entered) {
      entered->attributes.push_back(std::move(line));
    } else if (!is_before_classes(line.text)) {
      line.fail("a statement outside of functions, which torch does not write");
    }
  }
}

/// Reads a line of a class: whether it is of an attribute, its name and its type. Lists of names and values of an enum
/// are none.
bool read_class_line(const CodeLine& line, const Signatures& signatures, Scope& scope, TypeCount& count,
                    std::string& name, TypeTree& type) {
  ExpressionReader reader(line, signatures, scope, count);
  name = reader.take_name();
  bool is_attribute = true;
  if (reader.take("[")) {
    if (name != "__annotations__") reader.fail();
    name = reader.take_text();
    reader.expect("]");
    reader.expect("=");
    type = reader.read().type;
  } else if (reader.take("=")) {
    reader.read();
    is_attribute = false;
  } else {
    reader.expect(":");
    type = reader.read().type;
    if (reader.take("=")) reader.read();
  }
  reader.expect_end();
  return is_attribute;
}

/// The keys of the paths below `__torch__` that a class names.
std::set<std::string> keys_in(const CodeClass& known) {
  static const std::string root = "__torch__";
  std::set<std::string> keys;
  for (const auto& line : known.attributes)
    for (size_t at = line.text.find(root); at != std::string::npos; at = line.text.find(root, at)) {
      const auto start = at;
      while (at < line.text.size() && (is_letter(line.text[at]) || is_digit(line.text[at]) || line.text[at] == '.')) ++at;
      const auto path = line.text.substr(start, at - start);
      const auto dot = path.rfind('.');
      keys.insert(dot == std::string::npos ? key_of({path}) : key_of({path.substr(0, dot), path.substr(dot + 1)}));
    }
  return keys;
}

void measure_tuple(const CodeClass& known, const std::string& key, Signatures& signatures, TypeCount& count) {
  std::vector<TypeTree> types;
  for (const auto& line : known.attributes) {
    Scope scope;
    std::string name;
    TypeTree type;
    if (read_class_line(line, signatures, scope, count, name, type)) types.push_back(type);
  }
  count.add(signatures.tuples[key] = tuple_of(types), known.line);
}

/// Reads the tuples with names, those first that others hold. Throws `CodeError` for one that holds itself.
void read_tuples(const ParsedCode& parsed, Signatures& signatures, TypeCount& count) {
  std::set<std::string> entered;
  std::vector<std::string> todo;
  for (const auto& [key, known] : parsed.classes)
    if (known.is_tuple) todo.push_back(key);
  while (!todo.empty()) {
    const auto key = todo.back();
    if (signatures.tuples.count(key)) {
      todo.pop_back();
      continue;
    }
    const auto& known = parsed.classes.at(key);
    const auto before = todo.size();
    for (const auto& held : keys_in(known)) {
      const auto other = parsed.classes.find(held);
      if (other != parsed.classes.end() && other->second.is_tuple && !signatures.tuples.count(held)) todo.push_back(held);
    }
    const bool is_missing = todo.size() > before;
    if (is_missing && !entered.insert(key).second) known.line.fail("a tuple that holds itself");
    if (!is_missing) measure_tuple(known, key, signatures, count);
  }
}

/// Reads the attributes of all classes; the classes as definitions, of what their attributes name.
Definitions read_classes(const ParsedCode& parsed, Signatures& signatures, TypeCount& count) {
  Definitions definitions;
  for (const auto& [key, known] : parsed.classes) {
    Scope scope;
    for (const auto& line : known.attributes) {
      std::string name;
      TypeTree type;
      if (!read_class_line(line, signatures, scope, count, name, type)) continue;
      for (const auto& owner : {key, std::string()}) keep_type(signatures.attributes, key_in(owner, name), type);
    }
    scope.named.erase(key);
    definitions[key] = {known.line, 0, scope.named, {}};
  }
  return definitions;
}

/// Keeps what a name stands for: of several values, from branches and loops, the largest counts.
void assign(Scope& scope, const std::string& name, const TypeTree& type) {
  scope.bound.insert(name);
  if (!name.empty() && (type.depth || !type.owner.empty())) keep_type(scope.values, name, type);
}

/// Reads the types of a function's arguments; that of its result.
TypeTree read_header(const CodeFunction& function, const Signatures& signatures, Scope& scope, TypeCount& count) {
  ExpressionReader reader(function.header, signatures, scope, count);
  reader.expect("def");
  reader.take_name();
  reader.expect("(");
  // The first argument of a method is the object, whatever is said of its type.
  auto owner = function.owner;
  while (!reader.take(")")) {
    const auto argument = reader.take_name();
    const auto type = reader.take(":") ? reader.read().type : TypeTree{};
    assign(scope, argument, owner.empty() ? type : object_of(owner));
    owner.clear();
    if (reader.take("=")) reader.read();
    if (!reader.take(",")) {
      reader.expect(")");
      break;
    }
  }
  // What is not said would be inferred.
  reader.expect("->");
  const auto result = reader.read().type;
  reader.expect(":");
  reader.expect_end();
  return result;
}

/// What each of so many names stands for.
std::vector<Operand> unpack(const std::vector<Operand>& values, size_t count, bool has_comma) {
  if (values.size() == count && !(count == 1 && has_comma)) return values;
  std::vector<TypeTree> types;
  for (const auto& value : values) types.push_back(value.type);
  const auto whole = types.size() == 1 ? types[0] : tuple_of(types);
  const bool is_tuple = whole.elements && whole.elements->size() == count;
  std::vector<Operand> all(count);
  const auto& one = whole.inner ? *whole.inner : whole;
  for (size_t i = 0; i < count; ++i) all[i].type = is_tuple ? (*whole.elements)[i] : one;
  return all;
}

/// Reads an expression that stands alone, or that is given to names, to a name of a type, or to an attribute.
void read_assignment(ExpressionReader& reader, Scope& scope) {
  const auto targets = reader.read_all();
  const auto name_of = [](const Operand& target) { return target.path.size() == 1 ? target.path[0] : std::string(); };
  const bool is_attribute = targets.size() == 1 && targets[0].path.size() > 1;
  const bool are_names = std::all_of(targets.begin(), targets.end(), [](const auto& t) { return t.path.size() == 1; });
  if (!reader.word().empty() && !are_names && !is_attribute) reader.fail();
  const bool has_comma = reader.last_word() == ",";
  if (!has_comma && targets.size() == 1 && reader.take(":")) {
    const auto type = reader.read().type;
    if (reader.take("=")) {
      const auto value = reader.read();
      reader.check_value(value);
      if (!value.path.empty() && value.path[0] == "__torch__")
        reader.line.fail("a function or a class of another type, which torch does not write");
    }
    assign(scope, name_of(targets[0]), type);
  } else if (reader.take("=")) {
    const auto values = unpack(reader.read_all(), targets.size(), has_comma);
    for (size_t i = 0; i < targets.size(); ++i) {
      const auto name = name_of(targets[i]);
      reader.check_value(values[i]);
      const auto& path = values[i].path;
      if (!path.empty() && path[0] == "__torch__" && scope.functions.emplace(name, path).first->second != path)
        reader.line.fail("another function for " + name + ", which torch does not write");
      assign(scope, name, values[i].type);
    }
  }
}

void read_statement(const CodeLine& line, const Signatures& signatures, Scope& scope, TypeCount& count) {
  ExpressionReader reader(line, signatures, scope, count);
  if (reader.take("pass")) {
  } else if (reader.take("else")) {
    reader.expect(":");
  } else if (reader.take("return")) {
    if (!reader.word().empty()) reader.read_all();
  } else if (reader.take("if") || reader.take("while")) {
    reader.note_call(reader.read().type, "__bool__");
    reader.expect(":");
  } else if (reader.take("for")) {
    assign(scope, reader.take_name(), {});
    reader.expect("in");
    reader.check_free("range");
    reader.expect("range");
    reader.expect("(");
    reader.read();
    reader.expect(")");
    reader.expect(":");
  } else if (reader.take("with")) {
    const auto entered = reader.enter(reader.read().type);
    if (reader.take("as")) assign(scope, reader.take_name(), entered);
    reader.expect(":");
  } else {
    read_assignment(reader, scope);
  }
  reader.expect_end();
}

/// Checks that blocks stand two spaces further right than what they are in, and that a function returns at its end:
/// torch puts all that follows another return into a block of its own.
void check_blocks(const CodeFunction& function) {
  auto before = function.header.indent;
  for (const auto& line : function.body) {
    if (line.indent % 2 || line.indent > before + 2)
      line.fail(std::to_string(line.indent) + " spaces in front of a line, which torch does not write there");
    before = line.indent;
    const char after = line.text.size() > 6 ? line.text[6] : ' ';
    const bool is_return = begins_with(line.text, "return") && !is_letter(after) && !is_digit(after);
    const bool is_at_end = &line == &function.body.back() && line.indent == function.header.indent + 2;
    if (is_return && !is_at_end) line.fail("a return that is not a function's last line, which torch does not write");
  }
}

void define(Definitions& definitions, const CodeFunction& function, const Scope& scope) {
  if (definitions.count(function.key))
    function.header.fail("another definition of " + function.name + ", which torch does not write");
  auto& definition = definitions[function.key] = {function.header, function.header.text.size(), scope.named, scope.called};
  for (const auto& line : function.body) definition.length += line.text.size();
  definition.named.erase(function.owner);
  if (function.owner.empty()) return;
  definitions.at(function.owner).named.insert(function.key);
  const auto any = key_in("", function.name);
  definitions.emplace(any, Definition{function.header, 0, {}, {}}).first->second.called.push_back(function.key);
}

}  // namespace

void check_code(const std::vector<std::pair<std::string, std::string>>& records) {
  ParsedCode parsed;
  for (const auto& [record, data] : records) read_record(parsed, record, data);
  Signatures signatures;
  TypeCount count;
  for (const auto& [key, known] : parsed.classes) (known.is_tuple ? signatures.tuple_keys : signatures.classes).insert(key);
  read_tuples(parsed, signatures, count);
  auto definitions = read_classes(parsed, signatures, count);
  for (const auto& function : parsed.functions)
    if (function.owner.empty()) signatures.functions.insert(function.key);
  std::vector<Scope> scopes(parsed.functions.size());
  std::vector<TypeTree> results;
  for (size_t i = 0; i < scopes.size(); ++i)
    results.push_back(read_header(parsed.functions[i], signatures, scopes[i], count));
  for (size_t i = 0; i < scopes.size(); ++i) {
    const auto& function = parsed.functions[i];
    keep_type(signatures.results, function.key, results[i]);
    if (!function.owner.empty()) keep_type(signatures.results, key_in("", function.name), results[i]);
  }
  for (size_t i = 0; i < scopes.size(); ++i) {
    check_blocks(parsed.functions[i]);
    for (const auto& line : parsed.functions[i].body) read_statement(line, signatures, scopes[i], count);
    define(definitions, parsed.functions[i], scopes[i]);
    scopes[i] = {};
  }
  check_calls(definitions);
}

}  // namespace torchferry
