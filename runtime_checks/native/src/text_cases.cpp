#include "text_cases.hpp"

#include <cctype>
#include <cstdlib>
#include <sstream>
#include <utility>

#include <locale.h>

#include <ATen/ATen.h>

#include "descriptors.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

constexpr const char* kHead = "torchferry cases 1";

/// The words of the text, one after the other.
class Words {
 public:
  Words(const std::string& text, const std::string& where) : stream_(text), where_(where) {
    std::string line;
    if (!std::getline(stream_, line) || line != kHead) refuse("another head than '" + std::string(kHead) + "'");
  }

  std::string next() {
    std::string word;
    if (!(stream_ >> word)) refuse("a text that ends early");
    return word;
  }
  std::string name() {
    const auto quoted = next();
    std::string found;
    for (size_t i = 0; i < quoted.size(); ++i) {
      if (quoted[i] != '%') {
        found += quoted[i];
        continue;
      }
      const auto digits = quoted.substr(i + 1, 2);
      if (digits.size() < 2 || !std::isxdigit(digits[0]) || !std::isxdigit(digits[1])) refuse("the name " + in_quotes(quoted));
      found += static_cast<char>(std::stoi(digits, nullptr, 16));
      i += 2;
    }
    return found;
  }
  int64_t count() {
    const auto word = next();
    char* end = nullptr;
    const auto found = std::strtoll(word.c_str(), &end, 10);
    if (*end || found < 0) refuse(in_quotes(word) + " in the place of a count");
    return found;
  }
  tf_dtype dtype() {
    const auto word = next();
    for (const auto known : {TF_FLOAT64, TF_FLOAT32, TF_INT64, TF_INT32, TF_BOOL})
      if (word == dtype_name(known)) return known;
    refuse("the dtype " + in_quotes(word));
  }
  at::Tensor numbers(tf_dtype dtype, int64_t count, const std::vector<int64_t>& shape) {
    int64_t wanted = 1;
    for (const auto size : shape) wanted *= size;
    // Each number has a character at least.
    if (count != wanted || count > stream_.rdbuf()->in_avail() + 1)
      refuse(std::to_string(count) + " numbers for the shape " + shape_text(shape));
    const bool real = dtype == TF_FLOAT64 || dtype == TF_FLOAT32;
    auto found = at::empty({count}, real ? at::kDouble : at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      const auto word = next();
      char* end = nullptr;
      if (real)
        found.data_ptr<double>()[i] = strtod_l(word.c_str(), &end, plain());
      else
        found.data_ptr<int64_t>()[i] = std::strtoll(word.c_str(), &end, 10);
      if (*end) refuse(in_quotes(word) + " in the place of a number");
    }
    return found.to(scalar_type(dtype)).reshape(shape);
  }
  [[noreturn]] void refuse(const std::string& got) const {
    fail(TF_ERROR_ARCHIVE, {"the cases cannot be read", where_, got, "what torchferry wrote", "export the model again"});
  }

 private:
  /// A host may have set another decimal point than C's.
  static locale_t plain() {
    static const locale_t found = newlocale(LC_ALL_MASK, "C", nullptr);
    return found;
  }
  std::istringstream stream_;
  std::string where_;
};

struct Read {
  std::map<std::string, at::Tensor> parameters;
  std::vector<Case> cases;
};

Read read(const std::string& text, const Contract& contract, const std::string& where, bool parameters_only) {
  Words words(text, where);
  Read found;
  const Method* method = nullptr;
  int64_t rows = 0;
  for (auto word = words.next(); word != "end"; word = words.next()) {
    if (word == "case") {
      if (parameters_only) break;
      rows = words.count();
      const auto name = words.next();
      method = nullptr;
      for (const auto& known : contract.methods)
        if (known.name == name) method = &known;
      if (!method) words.refuse("a case of the method " + in_quotes(name));
      found.cases.push_back({words.name(), name, {}, {}});
      continue;
    }
    const auto dtype = words.dtype();
    const auto count = words.count();
    if (word == "parameter") {
      const auto name = words.name();
      for (const auto& known : contract.parameters)
        if (known.name == name) found.parameters[name] = words.numbers(dtype, count, known.shape);
      if (!found.parameters.count(name)) words.refuse("the parameter " + in_quotes(name));
      continue;
    }
    if ((word != "in" && word != "out") || !method) words.refuse(in_quotes(word));
    auto& side = word == "in" ? found.cases.back().inputs : found.cases.back().outputs;
    const auto known = word == "in" ? method->inputs.size() : method->outputs.size();
    if (side.size() >= known) words.refuse("more values than the method has");
    auto shape = word == "in" ? method->inputs[side.size()].shape : method->outputs[side.size()].shape;
    if (contract.batch_ndim) shape.insert(shape.begin(), rows);
    if (word == "out")
      for (int i = 0; i < 3; ++i) words.next();
    side.push_back(words.numbers(dtype, count, shape));
  }
  return found;
}

}  // namespace

bool are_text_cases(const std::string& bytes) { return bytes.rfind(kHead, 0) == 0; }

std::vector<Case> text_cases(const std::string& text, const Contract& contract, const std::string& where) {
  return read(text, contract, where, false).cases;
}

std::map<std::string, at::Tensor> text_parameters(const std::string& text, const Contract& contract,
                                                  const std::string& where) {
  return read(text, contract, where, true).parameters;
}

}  // namespace torchferry
