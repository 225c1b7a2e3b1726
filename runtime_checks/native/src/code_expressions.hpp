#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "code_lines.hpp"

namespace torchferry {

/// A type: how many parts it has, itself included, how deep they are in each other, the elements of a tuple, what a list
/// or the values of a dict are, and the path of a class.
struct TypeTree {
  uint64_t parts = 1;
  uint64_t depth = 0;
  std::shared_ptr<const std::vector<TypeTree>> elements;
  std::shared_ptr<const TypeTree> inner;
  std::string owner;
};

/// The class of an object that may be of several, and of a value that may be one: its methods and attributes are those of
/// all classes.
constexpr const char* kAny = "*";

TypeTree tuple_of(std::vector<TypeTree> elements);
TypeTree object_of(const std::string& owner);
/// A type that is at least as large as both.
TypeTree join_types(const TypeTree& one, const TypeTree& other);

using Types = std::unordered_map<std::string, TypeTree>;
/// What a map has for a name: a type without parts where it has none.
TypeTree find_type(const Types& types, const std::string& name);
/// Keeps a type for a name: of several, the largest counts.
void keep_type(Types& types, const std::string& name, const TypeTree& type);

/// The key of a method or an attribute of a class; of one that is not known, of any.
std::string key_in(const std::string& owner, const std::string& name);
/// What a class or function is known by: for the names of modules, which are those of records, torch's reader of zip
/// files does not look at the case of letters.
std::string key_of(const std::vector<std::string>& path);

/// What the code defines: tuples with names, classes and functions by path, and types of attributes and of results by
/// the path of their class and their name. Of a class that is not known each is the largest of all.
struct Signatures {
  std::set<std::string> tuple_keys;
  Types tuples;
  std::set<std::string> classes;
  std::set<std::string> functions;
  Types attributes;
  Types results;
};

/// What a function's names stand for, which of them are other functions, and the keys of what it names and calls.
struct Scope {
  std::set<std::string> bound;
  Types values;
  std::map<std::string, std::vector<std::string>> functions;
  std::set<std::string> named;
  std::vector<std::string> called;
};

/// The parts of all types that were read so far.
class TypeCount {
 public:
  /// Throws `CodeError` beyond the limits.
  void add(const TypeTree& type, const CodeLine& line);

 private:
  uint64_t parts_ = 0;
};

/// What has been read of an expression: its type, the names of a dotted path, the word of a number or text, the type of
/// what the last name is an attribute of, how many attributes, elements and calls are after each other, and whether the
/// path leads to or below a class or function.
struct Operand {
  TypeTree type;
  std::vector<std::string> path;
  std::string word;
  TypeTree before;
  int chain = 0;
  bool is_known = false;
};

/// Reader of the words of a line, from the left, as in exporter/archive/code_expressions.py.
class ExpressionReader {
 public:
  ExpressionReader(const CodeLine& line, const Signatures& signatures, Scope& scope, TypeCount& count)
      : line(line), words_(line.split()), signatures_(signatures), scope_(scope), count_(count) {}

  const CodeLine& line;

  /// The word that comes next, empty at the end of the line.
  const std::string& word(size_t after = 0) const;
  /// The last word that was read.
  const std::string& last_word() const { return at_ >= 1 ? words_[at_ - 1] : end_; }
  bool take(const std::string& allowed);
  void expect(const std::string& allowed);
  void expect_end();
  std::string take_name();
  /// What stands in a text that is a name.
  std::string take_text();
  [[noreturn]] void fail() const;

  /// Expressions with commas between them, until another word. A comma may follow the last of them.
  std::vector<Operand> read_all();
  /// One expression. Throws `CodeError` for what torch does not write, and for a type of many parts.
  Operand read();
  /// Notes that a method of an object may be called without being named: `__bool__` where it is a condition.
  void note_call(const TypeTree& value, const std::string& name) const;
  /// What `with` gives a name. Notes that the object's methods are called.
  TypeTree enter(const TypeTree& value) const;
  /// Throws `CodeError` where a name that torch's compiler reads in a way of its own stands for a value.
  void check_free(const std::string& name) const;
  /// Throws `CodeError` for what is given another name, and is no value, no function and no class.
  void check_value(const Operand& value) const;

 private:
  struct Bracket {
    char mark;
    std::unique_ptr<Operand> after;
    std::vector<Operand> operands;
    size_t commas = 0;
    bool has_colon = false;
  };
  using Value = std::unique_ptr<Operand>;

  Value read_word(const Value& value);
  void read_sign(const Value& value);
  Value read_attribute(const Operand& value);
  Value read_mark(Value value);
  Operand close(Bracket& bracket) const;
  TypeTree pick(const Bracket& bracket, const std::vector<TypeTree>& types) const;
  TypeTree pick_element(const Bracket& bracket, const std::vector<TypeTree>& types) const;
  std::string name_in(const std::string& word) const;
  TypeTree call(const Bracket& bracket, const std::vector<TypeTree>& types) const;
  TypeTree call_name(const std::string& name, const Bracket& bracket, const std::vector<TypeTree>& types) const;
  /// The type of what a class or a function of the code gives when it is called by its path.
  TypeTree find_result(std::vector<std::string> path) const;
  bool find_class(const std::string& key, TypeTree& type) const;
  bool find_path(Operand& operand) const;
  TypeTree find_method(const TypeTree& before, const std::string& name) const;
  int lengthen(const Operand& value) const;

  std::vector<std::string> words_;
  size_t at_ = 0;
  const Signatures& signatures_;
  Scope& scope_;
  TypeCount& count_;
  std::vector<Bracket> brackets_;
  std::string sign_;
  const std::string end_;
};

}  // namespace torchferry
