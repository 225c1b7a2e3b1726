#include "cases.hpp"

#include <map>
#include <sstream>

#include <ATen/ATen.h>

#include "descriptors.hpp"
#include "pickles.hpp"
#include "text.hpp"
#include "text_cases.hpp"

namespace torchferry {
namespace {

struct Key {
  std::string name, method, side;
  size_t index;
};

/// "<case>/<method>/in/<i>", where a case's name may hold slashes itself.
bool parse_key(const std::string& text, Key& key) {
  const auto third = text.rfind('/');
  const auto second = third == std::string::npos || third == 0 ? third : text.rfind('/', third - 1);
  const auto first = second == std::string::npos || second == 0 ? std::string::npos : text.rfind('/', second - 1);
  if (first == std::string::npos || first == 0) return false;
  const auto digits = text.substr(third + 1);
  if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) return false;
  key = {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1, third - second - 1),
         std::stoul(digits)};
  return !key.method.empty() && (key.side == "in" || key.side == "out");
}

/// Holds `tensor` against a variable's shape and dtype; batch and open sizes of all tensors of a case must be the same.
void check(const at::Tensor& tensor, const std::vector<int64_t>& shape, tf_dtype dtype, int batch_ndim,
           const std::string& where, Extent& extent, bool& first) {
  const auto lead = static_cast<int64_t>(batch_ndim);
  const bool fits = tensor.defined() && tensor.dim() == lead + static_cast<int64_t>(shape.size()) &&
                    extent.fits(shape, tensor.sizes().data() + lead) && tensor.scalar_type() == scalar_type(dtype);
  const auto got = tensor.defined() ? shape_text(tensor.sizes().vec()) + " " + c10::toString(tensor.scalar_type())
                                    : std::string("nothing");
  if (!fits)
    fail(TF_ERROR_ARCHIVE, {"a case does not fit the contract", where, got,
                            (batch_ndim ? "a batch of " : "") + extent.text(shape) + " " + dtype_name(dtype),
                            "export the model again"});
  const auto own = tensor.sizes().slice(0, lead);
  if (first) extent.batch.assign(own.begin(), own.end()), first = false;
  if (own != at::IntArrayRef(extent.batch))
    fail(TF_ERROR_ARCHIVE, {"a case has tensors of different batches", where, got, shape_text(extent.whole({}))});
}

std::map<std::string, std::string> inputs_at(const Case& one, const Method& method,
                                             const std::vector<int64_t>& worst, int batch_ndim) {
  std::map<std::string, std::string> found;
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    auto row = one.inputs[i];
    for (int d = 0; d < batch_ndim; ++d) row = row.select(0, worst[d]);
    std::ostringstream text;
    text.precision(17);
    const auto flat = row.reshape({-1});
    const bool scalar = row.dim() == 0;
    for (int64_t k = 0; k < std::min<int64_t>(flat.numel(), 9); ++k) {
      text << (k ? ", " : scalar ? "" : "[");
      if (row.is_complex())
        text << flat[k].item().toComplexDouble();
      else
        text << flat[k].item().toDouble();
    }
    text << (scalar ? "" : flat.numel() > 9 ? ", ...]" : flat.numel() ? "]" : "[]");
    found[method.inputs[i].name] = text.str();
  }
  return found;
}

}  // namespace

namespace {

std::vector<Case> pickled_cases(const std::string& bytes, const Contract& contract, const std::string& where) {
  std::vector<Case> cases;
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (const auto& item : load_pickled_dict(bytes, where)) {
    Key key;
    if (!item.key().isString() || !item.value().isTensor() || !parse_key(item.key().toStringRef(), key))
      fail(TF_ERROR_ARCHIVE, {"the stored cases are not tensors by name", where, item.key().tagKind(),
                              "\"<case>/<method>/in/<i>\" and \".../out/<i>\""});
    const Method* method = nullptr;
    for (const auto& known : contract.methods)
      if (known.name == key.method) method = &known;
    if (!method || key.index >= (key.side == "in" ? method->inputs.size() : method->outputs.size()))
      fail(TF_ERROR_ARCHIVE, {"a case does not fit the contract", where + ", case " + in_quotes(key.name),
                              key.method + "/" + key.side + "/" + std::to_string(key.index),
                              "one tensor for each input and output of a method of the contract"});
    const auto& place = places.emplace(std::pair{key.name, key.method}, cases.size());
    if (place.second) cases.push_back({key.name, key.method, {}, {}});
    auto& one = cases[place.first->second];
    auto& side = key.side == "in" ? one.inputs : one.outputs;
    if (key.index >= side.size()) side.resize(key.index + 1);
    side[key.index] = item.value().toTensor();
  }
  return cases;
}

}  // namespace

std::vector<Case> unpack_cases(const std::string& bytes, const Contract& contract, const std::string& where) {
  auto cases = are_text_cases(bytes) ? text_cases(bytes, contract, where) : pickled_cases(bytes, contract, where);
  if (cases.empty()) fail(TF_ERROR_ARCHIVE, {"the archive holds no cases", where, "", "", "export the model again"});
  for (const auto& one : cases) {
    const auto place = where + ", case " + in_quotes(one.name);
    const Method* method = nullptr;
    for (const auto& known : contract.methods)
      if (known.name == one.method) method = &known;
    if (!method || one.inputs.size() != method->inputs.size() || one.outputs.size() != method->outputs.size())
      fail(TF_ERROR_ARCHIVE, {"a case does not fit the contract", place, "method " + in_quotes(one.method),
                              "one tensor for each input and output of a method of the contract"});
    Extent extent(contract);
    bool first = true;
    for (size_t i = 0; i < one.inputs.size(); ++i) {
      const auto& variable = method->inputs[i];
      check(one.inputs[i], variable.shape, variable.dtype, contract.batch_ndim, place + ", " + in_quotes(variable.name),
            extent, first);
    }
    for (size_t i = 0; i < one.outputs.size(); ++i) {
      const auto& output = method->outputs[i];
      check(one.outputs[i], output.shape, output.dtype, contract.batch_ndim, place + ", " + in_quotes(output.label()),
            extent, first);
    }
  }
  for (const auto& method : contract.methods) {
    bool found = false;
    for (const auto& one : cases) found |= one.method == method.name;
    if (!found) fail(TF_ERROR_ARCHIVE, {"method " + in_quotes(method.name) + " has no cases", where});
  }
  return cases;
}

std::vector<CaseResult> replay(const Model& model, const std::vector<Case>& cases) {
  std::vector<CaseResult> results;
  for (const auto& one : cases) {
    const auto& method = model.contract().method(one.method);
    Tensors inputs, outputs;
    for (const auto& input : one.inputs) inputs.push_back(input.to(model.device()));
    std::string error;
    try {
      outputs = model.call(one.method, inputs);
    } catch (const Error& raised) {
      error = raised.what();
    }
    for (size_t i = 0; i < method.outputs.size(); ++i) {
      const auto& output = method.outputs[i];
      CaseResult result{one.name, one.method, output.label(), {}, {}};
      if (!error.empty())
        result.comparison.reason = error;
      else if (outputs[i].device() != model.device())
        result.comparison.reason = "device " + outputs[i].device().str() + " instead of " + model.device().str();
      else
        result.comparison = compare(outputs[i], one.outputs[i], model.contract().bounds(output));
      if (!result.comparison.worst.empty() || (error.empty() && one.outputs[i].dim() == 0))
        result.inputs = inputs_at(one, method, result.comparison.worst, model.contract().batch_ndim);
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace torchferry
