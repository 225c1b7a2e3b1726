#include <torchferry/contract.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "contract_fields.hpp"
#include "limits.hpp"
#include "plain_text.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

using json = nlohmann::ordered_json;  // methods keep their order

constexpr std::array<std::pair<tf_dtype, const char*>, 12> kDtypes = {{{TF_FLOAT64, "float64"},
                                                                       {TF_FLOAT32, "float32"},
                                                                       {TF_FLOAT16, "float16"},
                                                                       {TF_BFLOAT16, "bfloat16"},
                                                                       {TF_INT64, "int64"},
                                                                       {TF_INT32, "int32"},
                                                                       {TF_INT16, "int16"},
                                                                       {TF_INT8, "int8"},
                                                                       {TF_UINT8, "uint8"},
                                                                       {TF_BOOL, "bool"},
                                                                       {TF_COMPLEX64, "complex64"},
                                                                       {TF_COMPLEX128, "complex128"}}};

bool is_identifier(const std::string& name) {
  static const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  return !name.empty() && letters.find(name[0]) != std::string::npos &&
         name.find_first_not_of(letters + "0123456789") == std::string::npos;
}

/// A JSON value and its path, so that an error can say which field it is about.
class Field {
 public:
  Field(const json& value, std::string path) : value_(value), path_(std::move(path)) {}

  Field at(const std::string& key) const {
    if (!value_.is_object() || !value_.contains(key)) broken("nothing", "the field " + in_quotes(key));
    return {value_.at(key), path_.empty() ? key : path_ + "." + key};
  }
  std::vector<Field> items() const {
    if (!value_.is_array()) broken(value_.type_name(), "a list");
    std::vector<Field> all;
    for (size_t i = 0; i < value_.size(); ++i) all.emplace_back(value_[i], path_ + "." + std::to_string(i));
    return all;
  }
  std::vector<std::pair<std::string, Field>> members() const {
    if (!value_.is_object()) broken(value_.type_name(), "an object");
    std::vector<std::pair<std::string, Field>> all;
    for (const auto& [key, value] : value_.items()) all.emplace_back(key, Field(value, path_ + "." + key));
    return all;
  }
  /// Those of a field that may be left out.
  std::vector<std::pair<std::string, Field>> members_of(const std::string& key) const {
    return has(key) ? at(key).members() : std::vector<std::pair<std::string, Field>>{};
  }
  bool is_text() const { return value_.is_string(); }
  std::string text() const {
    if (!value_.is_string()) broken(value_.type_name(), "a text");
    return value_.get<std::string>();
  }
  int64_t integer() const {
    if (!value_.is_number_integer()) broken(value_.type_name(), "an integer");
    if (value_.is_number_unsigned() && value_.get<uint64_t>() > INT64_MAX) broken("more than 2**63", "a smaller integer");
    return value_.get<int64_t>();
  }
  double number() const {
    if (!value_.is_number()) broken(value_.type_name(), "a number");
    return value_.get<double>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) broken(value_.type_name(), "true or false");
    return value_.get<bool>();
  }
  /// `open` names the open sizes, and learns those that it does not have.
  std::vector<int64_t> shape(std::vector<std::string>& open) const {
    std::vector<int64_t> sizes;
    for (const auto& size : items()) {
      if (!size.is_text()) {
        sizes.push_back(size.integer());
        if (sizes.back() < 0) broken(std::to_string(sizes.back()), "a size");
        continue;
      }
      if (!is_identifier(size.text())) broken(in_quotes(size.text()), "a number, or an identifier for an open size");
      const auto found = std::find(open.begin(), open.end(), size.text());
      sizes.push_back(-1 - (found - open.begin()));
      if (found == open.end()) open.push_back(size.text());
    }
    return sizes;
  }
  tf_dtype dtype() const {
    const auto name = text();
    for (const auto& [dtype, known] : kDtypes)
      if (name == known) return dtype;
    broken(name, "a dtype");
  }
  /// Of fields that came later: files without them are as good.
  bool has(const std::string& name) const { return value_.is_object() && value_.contains(name); }
  Bounds bounds() const {
    const Bounds read{at("rtol").number(), at("atol").number(), has("floor") ? at("floor").number() : 0.0};
    for (const double part : {read.rtol, read.atol})
      if (!(part >= 0 && part <= kMaxRelativeTolerance)) broken(std::to_string(part), "a tolerance from 0 to 1");
    if (!(read.floor >= 0)) broken(std::to_string(read.floor), "0, or a number above");
    return read;
  }

  [[noreturn]] void broken(const std::string& got, const std::string& expected) const {
    fail(TF_ERROR_ARCHIVE, {"the contract is broken", "field " + (path_.empty() ? "(the whole)" : path_), got,
                            expected, "export the model again"});
  }

 private:
  const json& value_;
  std::string path_;
};

/// One line of text for people; empty where it may be left out.
void check_label(const Field& field, bool needed, size_t limit = kMaxName) {
  const auto text = field.text();
  const auto unsafe = find_unsafe(text, true);
  const bool is_spaced = !text.empty() && (text.front() == ' ' || text.back() == ' ');
  if (!unsafe.empty()) field.broken("the character " + unsafe, "one line without control characters");
  if (count_characters(text) > limit || is_spaced || (needed && text.empty()))
    field.broken(std::to_string(count_characters(text)) + " characters",
                 "one line of at most " + std::to_string(limit) + " characters, no space around them");
}

/// Empty where there is none.
std::string unit_of(const Field& item) {
  if (!item.has("unit")) return "";
  check_label(item.at("unit"), false, kMaxUnit);
  return item.at("unit").text();
}

/// What is said of a variable or a parameter for people alone.
void check_notes(const Field& item) {
  for (const auto* key : {"quantity", "description"})
    if (item.has(key)) check_label(item.at(key), false);
}

/// The same of the model. Its description may have several lines.
void check_metadata(const Field& metadata) {
  if (metadata.has("license")) check_label(metadata.at("license"), false);
  for (const auto* key : {"authors", "references"})
    if (metadata.has(key))
      for (const auto& text : metadata.at(key).items()) check_label(text, true);
}

/// A number, a text, true, false or null of JSON, that every reader has.
bool is_fixed_value(const std::string& text) {
  if (count_characters(text) > kMaxName) return false;
  const auto value = json::parse(text, nullptr, false);
  if (value.is_discarded() || value.is_structured()) return false;
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= INT64_MAX;
  // A whole number beyond 64 bits is read as another one.
  return !value.is_number_float() || text.find_first_of(".eE") != std::string::npos;
}

/// The keys of the parts of a node: places, texts, or whole numbers and texts.
void check_keys(const Field& node, const std::string& kind, const std::vector<Field>& keys) {
  std::set<std::string> different;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool is_text = keys[i].is_text();
    const auto text = is_text ? keys[i].text() : std::to_string(keys[i].integer());
    const bool is_place = !is_text && text == std::to_string(i);
    const bool is_field = is_text && is_identifier(text) && text[0] != '_';
    const bool fits = kind == "list" || kind == "tuple" ? is_place : kind == "dict" || (kind == "named tuple" && is_field);
    if (!fits) node.broken(in_quotes(text), "a key of a " + kind);
    if (is_text) check_name(text, "a part of a call");
    if (!different.insert((is_text ? "t" : "n") + text).second) node.broken("a key twice", "different keys");
  }
}

/// A structure of a call: each node is followed by the nodes of its parts. As exporter/archive/value_structure.py has it.
void check_structure(const Field& structure, const std::set<std::string>& known) {
  constexpr size_t kMaxDepth = 50;
  std::set<std::string> found;
  // How many parts are to come, of each node that is open.
  std::vector<size_t> missing = {1};
  const auto nodes = structure.items();
  for (const auto& node : nodes) {
    const auto kind = node.at("kind").text(), name = node.has("name") ? node.at("name").text() : "";
    const auto value = node.has("value") ? node.at("value").text() : "";
    const auto keys = node.has("keys") ? node.at("keys").items() : std::vector<Field>{};
    if (name.empty() == (kind == "variable")) node.broken(in_quotes(name), "a name of a variable alone");
    if (kind == "variable" && (!known.count(name) || !found.insert(name).second))
      node.broken(in_quotes(name), "each variable of the contract once at most");
    if (value.empty() == (kind == "fixed")) node.broken(in_quotes(value), "a value of what is fixed alone");
    if (kind == "fixed" && !is_fixed_value(value)) node.broken(value, "a number, a text, true, false or null of JSON");
    check_keys(node, kind, keys);
    while (!missing.empty() && missing.back() == 0) missing.pop_back();
    if (missing.empty() || missing.size() > kMaxDepth) node.broken("a part of nothing, or too deep", "nodes with their parts");
    --missing.back();
    missing.push_back(keys.size());
  }
  for (const auto count : missing)
    if (!nodes.empty() && count) structure.broken("fewer nodes", "a node for each key");
}

/// Those of the arguments of the model's own call, which are a dict, and of what it returns.
void check_call(const Field& root, const std::map<std::string, Variable>& inputs, const std::set<std::string>& outputs) {
  std::set<std::string> names;
  for (const auto& [name, variable] : inputs) names.insert(name);
  if (root.has("arguments")) {
    check_structure(root.at("arguments"), names);
    const auto nodes = root.at("arguments").items();
    if (!nodes.empty() && nodes[0].at("kind").text() != "dict") nodes[0].broken(nodes[0].at("kind").text(), "a dict");
  }
  if (root.has("results")) check_structure(root.at("results"), outputs);
  const auto positional = root.has("positional") ? root.at("positional").integer() : 0;
  const auto nodes = root.has("arguments") ? root.at("arguments").items() : std::vector<Field>{};
  const auto most = nodes.empty() || !nodes[0].has("keys") ? 0 : nodes[0].at("keys").items().size();
  if (positional < 0 || positional > static_cast<int64_t>(most))
    root.at("positional").broken(std::to_string(positional), "0 to " + std::to_string(most));
}

/// The unit of differences on a scale whose zero is none: those of degrees Celsius are kelvins.
std::string of_difference(const std::string& unit) {
  static const std::set<std::string> celsius = {"degC", "celsius", "degree_Celsius", "degreeC", "\u00b0C", "Celsius",
                                                "degree_C", "degrees_celsius"};
  static const std::set<std::string> fahrenheit = {"degF", "fahrenheit", "degree_Fahrenheit", "degreeF", "\u00b0F",
                                                   "Fahrenheit", "degree_F"};
  return celsius.count(unit) ? "K" : fahrenheit.count(unit) ? "degR" : unit;
}

/// That of a derivative, as exporter/common/units.py writes it.
std::string divide_units(const std::string& of, const std::string& by) {
  if (of.empty() || by.empty()) return "";
  const auto above = of_difference(of), below = of_difference(by);
  return below == "1" || below == "dimensionless" ? above : above + "/(" + below + ")";
}

std::map<std::string, Variable> variables(const Field& list, std::vector<std::string>& open) {
  std::map<std::string, Variable> found;
  for (const auto& item : list.items()) {
    Variable variable{item.at("name").text(), {}, TF_FLOAT64, "Tensor", ""};
    check_name(variable.name, "a variable");
    if (item.has("shape")) variable.shape = item.at("shape").shape(open);
    if (item.has("dtype")) variable.dtype = item.at("dtype").dtype();
    if (item.has("type")) variable.type = item.at("type").text();
    variable.unit = unit_of(item);
    check_notes(item);
    if (!found.emplace(variable.name, variable).second) item.broken(in_quotes(variable.name) + " twice", "one of each");
  }
  return found;
}

using Variables = std::map<std::string, Variable>;

/// The tangent or cotangent of a variable has the variable's shape and dtype.
const std::string kTangent = "tangent:", kCotangent = "cotangent:";

Variable find(const Field& field, const Variables& plain, const Variables& of_cotangents) {
  const auto name = field.text();
  const bool pulled = name.rfind(kCotangent, 0) == 0;
  const auto prefix = pulled ? kCotangent.size() : name.rfind(kTangent, 0) == 0 ? kTangent.size() : 0;
  const auto& known = pulled ? of_cotangents : plain;
  const auto found = known.find(name.substr(prefix));
  if (found == known.end()) field.broken(in_quotes(name), "a variable of the contract");
  auto variable = found->second;
  // The units of tangents and cotangents are the caller's.
  if (prefix) variable.unit.clear();
  variable.name = name;
  return variable;
}

const Variable& find_exactly(const Field& field, const Variables& known) {
  const auto found = known.find(field.text());
  if (found == known.end()) field.broken(in_quotes(field.text()), "a variable of the contract");
  return found->second;
}

Method method_of(const std::string& name, const Field& spec, const Variables& inputs, const Variables& outputs,
                 const Variables& parameters) {
  if (!is_identifier(name)) spec.broken(in_quotes(name), "an identifier as the name of a method");
  Method method{name, {}, {}, spec.has("needs_grad") && spec.at("needs_grad").boolean()};
  for (const auto& item : spec.at("inputs").items()) method.inputs.push_back(find(item, inputs, outputs));
  for (const auto& item : spec.at("outputs").items()) {
    if (item.is_text()) {
      const auto variable = find(item, outputs, inputs);
      method.outputs.push_back({variable.name, std::nullopt, variable.shape, variable.dtype, variable.unit});
      continue;
    }
    const auto pair = item.items();
    if (pair.size() != 2) item.broken(std::to_string(pair.size()) + " names", "an output, and an input or parameter");
    const auto of = find(pair[0], outputs, inputs);
    const auto& by = inputs.count(pair[1].text()) ? find_exactly(pair[1], inputs) : find_exactly(pair[1], parameters);
    auto shape = of.shape;
    shape.insert(shape.end(), by.shape.begin(), by.shape.end());
    method.outputs.push_back({of.name, by.name, shape, of.dtype, divide_units(of.unit, by.unit)});
  }
  for (const auto& pair : spec.has("zeros") ? spec.at("zeros").items() : std::vector<Field>{}) {
    const auto names = pair.items();
    find_exactly(names[0], outputs);
    if (!parameters.count(names[1].text())) find_exactly(names[1], inputs);
  }
  for (const auto& pair : spec.has("symmetric") ? spec.at("symmetric").items() : std::vector<Field>{}) {
    const auto names = pair.items();
    const auto is_block = [&](const Output& o) { return o.name == names[0].text() && o.by == names[1].text(); };
    if (std::none_of(method.outputs.begin(), method.outputs.end(), is_block))
      pair.broken(in_quotes(names[0].text()), "a block of the method");
  }
  return method;
}

Contract parse(const std::string& text, const std::string& where) {
  const auto raw = parse_strictly(text, kContractKind, where);
  const Field root(raw, "");
  const auto made = root.at("created_with");
  Contract contract;
  contract.json = text;
  contract.made_with_torchferry = made.at("torchferry").text();
  contract.made_with_torch = made.at("torch").text();
  if (const auto schema = root.at("schema").integer(); schema != kSchema)
    fail(TF_ERROR_ARCHIVE,
         {"the archive is of schema " + std::to_string(schema), where,
          "schema " + std::to_string(schema) + ", written by torchferry " + contract.made_with_torchferry,
          "schema " + std::to_string(kSchema), "build the runtime of torchferry " + contract.made_with_torchferry});
  check_fields(raw, kContractKind, where);
  contract.name = root.at("name").text();
  check_name(contract.name, "the model");
  if (root.has("metadata")) check_metadata(root.at("metadata"));
  if (root.has("graph")) contract.graph = root.at("graph").text();
  const bool digits = contract.graph.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!contract.graph.empty() && (!digits || contract.graph.size() != 64))
    root.at("graph").broken(in_quotes(contract.graph), "64 digits of a sha256");
  const auto ndim = root.at("batch").at("ndim").integer();
  if (ndim != 0 && ndim != 1) root.at("batch").at("ndim").broken(std::to_string(ndim), "0 or 1");
  contract.batch_ndim = static_cast<int>(ndim);
  const auto inputs = variables(root.at("inputs"), contract.sizes);
  const auto known = contract.sizes.size();
  if (known && contract.batch_ndim) root.at("inputs").broken("open sizes and a batch", "one of them");
  auto outputs = variables(root.at("outputs"), contract.sizes);
  std::set<std::string> returned;
  for (const auto& [name, variable] : outputs) returned.insert(name);
  check_call(root, inputs, returned);
  if (root.has("info"))
    for (const auto& [name, variable] : variables(root.at("info"), contract.sizes))
      if (!outputs.emplace(name, variable).second) root.at("info").broken(in_quotes(name) + " twice", "one of each");
  if (root.has("per_element"))
    for (const auto& name : root.at("per_element").items())
      if (!inputs.count(name.text())) name.broken(in_quotes(name.text()), "the name of an input");
  Variables parameters;
  for (const auto& item : root.at("parameters").items()) {
    check_name(item.at("name").text(), "a parameter");
    check_notes(item);
    contract.parameters.push_back(
        {item.at("name").text(), item.at("shape").shape(contract.sizes), item.at("dtype").dtype(), unit_of(item)});
    const auto& last = contract.parameters.back();
    if (!parameters.emplace(last.name, Variable{last.name, last.shape, last.dtype, "", last.unit}).second)
      item.broken(in_quotes(last.name) + " twice", "one of each");
  }
  if (contract.sizes.size() > known)
    root.at("inputs").broken("none with the open size " + in_quotes(contract.sizes.back()), "an input that decides it");
  for (const auto& [name, spec] : root.at("methods").members())
    contract.methods.push_back(method_of(name, spec, inputs, outputs, parameters));
  if (contract.methods.empty()) root.at("methods").broken("none", "at least forward");
  for (const auto& [dtype, bounds] : root.at("tolerance").members_of("dtypes")) {
    const auto read = bounds.bounds();
    for (const auto& [code, name] : kDtypes)
      if (dtype == name) contract.tolerance[code] = read;
  }
  for (const auto& [output, bounds] : root.at("tolerance").members_of("outputs"))
    contract.output_tolerance[output] = bounds.bounds();
  for (const auto& [input, range] : root.at("envelope").members_of("values"))
    contract.envelope[input] = {range.at("low").number(), range.at("high").number()};
  if (root.has("solvers"))
    for (const auto& solver : root.at("solvers").items())
      contract.nan_where_not_converged |= solver.at("on_failure").text() == "nan";
  return contract;
}

}  // namespace

Contract contract_from_json(const std::string& text, const std::string& where) {
  try {
    return parse(text, where);
  } catch (const Error& error) {
    const std::string message = error.what();
    throw Error(error.status(), message.find(where) == std::string::npos ? message + "\n  file: " + where : message);
  }
}

const Method& Contract::method(const std::string& wanted) const {
  for (const auto& method : methods)
    if (method.name == wanted) return method;
  fail(TF_ERROR_NAME, {"the archive has no method " + in_quotes(wanted), "argument 'method'", in_quotes(wanted),
                       one_of(methods, [](const Method& m) { return m.name; })});
}

Bounds Contract::bounds(const Output& output) const {
  if (output.by)
    if (const auto own = output_tolerance.find("d " + output.name + " / d " + *output.by); own != output_tolerance.end())
      return own->second;
  // Of whole numbers a count of iterations alone may differ: what a status says is never near another one.
  const bool whole = output.dtype >= TF_INT64 && output.dtype <= TF_BOOL;
  if (whole && output.name != "iterations") return {};
  if (const auto own = output_tolerance.find(output.name); own != output_tolerance.end()) return own->second;
  if (const auto by_dtype = tolerance.find(output.dtype); by_dtype != tolerance.end()) return by_dtype->second;
  return {};
}

const char* dtype_name(tf_dtype dtype) {
  for (const auto& [code, name] : kDtypes)
    if (code == dtype) return name;
  return "no dtype";
}

std::string shape_text(const std::vector<int64_t>& shape, const std::vector<std::string>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto open = static_cast<size_t>(-1 - shape[i]);
    text += (i ? ", " : "") + (shape[i] < 0 && open < sizes.size() ? sizes[open] : std::to_string(shape[i]));
  }
  return text + "]";
}

}  // namespace torchferry
