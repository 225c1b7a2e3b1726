#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torchferry/compare.hpp>

#include "harness.hpp"
#include "text.hpp"

namespace torchferry::harness {
namespace {

using Named = std::map<std::string, at::Tensor>;

/// What runtime_checks/load_history.py says that a history file holds.
struct History {
  Named prescribed, initial, expected;
  int64_t steps = 0;
};

/// "x~2" is x two steps before; another name is a first guess, which takes the value of the step before.
std::pair<std::string, int64_t> lag_of(const std::string& name) {
  const auto mark = name.rfind('~');
  const auto digits = mark == std::string::npos ? "" : name.substr(mark + 1);
  if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) return {name, 1};
  const auto lag = std::stoll(digits);
  if (!lag) return {name, 1};
  return {name.substr(0, mark), lag};
}

std::string before(const std::string& base, int64_t lag) { return base + "~" + std::to_string(lag); }

History history_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(TF_ERROR_NAME, {"there is no history file", path, "", "a .pt file of tensors by name"});
  History history;
  c10::IValue held;
  try {
    held = torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}});
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail(TF_ERROR_NAME, {"the history file does not load", path, text.substr(0, text.find('\n')), ""});
  }
  if (!held.isGenericDict()) fail(TF_ERROR_NAME, {"the history file is no dict of tensors", path, held.tagKind(), ""});
  for (const auto& item : held.toGenericDict()) {
    const auto key = item.key().isString() ? item.key().toStringRef() : item.key().tagKind();
    const auto cut = key.find('/');
    const auto side = key.substr(0, cut);
    Named* into = side == "prescribed" ? &history.prescribed
                  : side == "initial"  ? &history.initial
                  : side == "expected" ? &history.expected
                                       : nullptr;
    if (!into || cut == std::string::npos || cut + 1 == key.size() || !item.value().isTensor())
      fail(TF_ERROR_NAME, {"the history file holds something else", path + ", '" + key + "'", "",
             "'prescribed/NAME', 'initial/NAME' or 'expected/NAME', each a tensor"});
    (*into)[key.substr(cut + 1)] = item.value().toTensor();
  }
  std::set<int64_t> counts;
  for (const auto* side : {&history.prescribed, &history.expected})
    for (const auto& [name, value] : *side) counts.insert(value.dim() ? value.size(0) : 0);
  if (history.prescribed.empty() || counts.size() != 1 || *counts.begin() == 0)
    fail(TF_ERROR_SHAPE, {"the history has no number of steps", path,
           std::to_string(counts.size()) + " lengths of what is prescribed and expected",
           "prescribed inputs, and as many steps of each"});
  history.steps = *counts.begin();
  return history;
}

/// Throws where the history has a variable that the archive has not, or another shape; dtypes are for the call to check.
template <class Known>
void hold(const Named& given, const std::string& side, const std::map<std::string, const Known*>& known) {
  // The first dimension is that of the steps, but for initial values.
  const int64_t steps = side == "initial" ? 0 : 1;
  for (const auto& [name, value] : given) {
    const auto where = side + "/" + name;
    const auto found = known.find(name);
    if (found == known.end()) fail(TF_ERROR_NAME, {"the archive has no variable '" + name + "'", where, "", ""});
    const auto& shape = found->second->shape;
    const auto own = static_cast<int64_t>(shape.size());
    bool fits = value.dim() >= own + steps;
    for (int64_t d = 0; fits && d < own; ++d) fits = shape[d] < 0 || value.size(value.dim() - own + d) == shape[d];
    if (!fits)
      fail(TF_ERROR_SHAPE, {"variable '" + name + "' of the history has another shape", where,
             shape_text(value.sizes().vec()), "a batch of " + shape_text(shape)});
  }
}

void check(const History& history, const Method& method) {
  std::map<std::string, const Variable*> inputs, fed;
  std::map<std::string, const Output*> outputs;
  for (const auto& output : method.outputs) outputs[output.name] = &output;
  for (const auto& input : method.inputs) {
    inputs[input.name] = fed[input.name] = &input;
    const auto [base, lag] = lag_of(input.name);
    for (int64_t k = 1; k <= lag; ++k) fed[before(base, k)] = &input;
  }
  hold(history.prescribed, "prescribed", inputs);
  hold(history.initial, "initial", fed);
  hold(history.expected, "expected", outputs);
  for (const auto& [name, input] : inputs) {
    if (history.prescribed.count(name)) continue;
    const auto [base, lag] = lag_of(name);
    if (!outputs.count(base) && !history.prescribed.count(base))
      fail(TF_ERROR_NAME, {"the history does not say what input '" + name + "' is", "", "",
             "'prescribed/" + name + "', or an output or prescribed input '" + base + "' that it is fed from"});
    if (name == base && history.initial.count(name)) continue;
    for (int64_t k = 1; k <= lag; ++k)
      if (!history.initial.count(before(base, k)))
        fail(TF_ERROR_NAME, {"the history has no initial value of '" + before(base, k) + "'", "", "",
               "'initial/" + before(base, k) + "'"});
  }
}

/// A variable with one batch dimension.
at::Tensor flat_batch(const at::Tensor& value, const std::vector<int64_t>& own) {
  std::vector<int64_t> sizes{-1};
  sizes.insert(sizes.end(), own.begin(), own.end());
  return value.cpu().reshape(sizes);
}

/// Writes the inputs of elements with NaN in some output, as runtime_checks/failure_replay.py says.
void write_failures(const std::string& path, const Method& method, const Tensors& inputs, const Tensors& outputs,
                    int64_t step) {
  at::Tensor lost;
  int64_t count = 0;
  for (const auto& output : outputs) count = std::max(count, output.size(0));
  for (const auto& output : outputs) {
    // An output without a batch is none of an element's.
    if (!output.is_floating_point() || output.size(0) != count) continue;
    const auto rows = output.isnan().reshape({output.size(0), -1}).any(1);
    lost = lost.defined() ? lost | rows : rows;
  }
  const auto places = lost.nonzero().flatten();
  std::vector<c10::IValue> content;
  const auto insert = [&content](const std::string& name, const at::Tensor& value) {
    content.push_back(c10::ivalue::Tuple::create({name, value}));
  };
  for (size_t i = 0; i < inputs.size(); ++i)
    insert("inputs/" + method.inputs[i].name,
           flat_batch(inputs[i], method.inputs[i].shape).index_select(0, places).contiguous());
  insert("elements", places);
  insert("step", at::scalar_tensor(step, at::kLong));
  // Pairs: torch tags a dict with types, which Python does not read without more trust.
  const auto bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(std::move(content)));
  // Whole, or not at all.
  const auto beside = path + ".part";
  std::ofstream file(beside, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code renaming;
  if (file) std::filesystem::rename(beside, path, renaming);
  if (!file || renaming) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    fail(TF_ERROR_NAME, {"the file of failures cannot be written", path, "", "a folder that can be written"});
  }
}

/// The largest finite magnitude, 0 without one.
double scale_of(const at::Tensor& value) {
  if (value.numel() == 0) return 0.0;
  const auto wide = value.to(value.is_complex() ? at::kComplexDouble : at::kDouble);
  return at::where(wide.isfinite(), wide.abs(), 0).max().item<double>();
}

}  // namespace

nlohmann::json run_history(const Model& model, const std::string& path, const std::string& failures) {
  const auto& contract = model.contract();
  const auto& method = contract.method("forward");
  const auto history = history_of(path);
  check(history, method);
  std::vector<Named> passed;
  struct Worst {
    double abs = 0.0, rel = 0.0;
  };
  std::map<std::string, Worst> worst;
  // Rounding is relative to the numbers of all steps.
  std::map<std::string, double> scales;
  for (const auto& [name, value] : history.expected) scales[name] = scale_of(value);
  auto difference = nlohmann::json();
  int64_t lost = -1;
  size_t values = 0;
  for (int64_t step = 0; step < history.steps; ++step) {
    Named now;
    for (const auto& [name, value] : history.prescribed) now[name] = value[step];
    std::vector<int64_t> lead;
    Tensors inputs;
    for (const auto& variable : method.inputs) {
      const auto [base, lag] = lag_of(variable.name);
      const auto back = static_cast<int64_t>(passed.size());
      at::Tensor value;
      if (now.count(variable.name)) {
        value = now.at(variable.name);
      } else if (back >= lag) {
        value = passed[back - lag].at(base);
      } else {
        const auto own = history.initial.find(before(base, lag - back));
        value = own != history.initial.end() ? own->second : history.initial.at(variable.name);
      }
      const auto batch = value.sizes().slice(0, value.dim() - static_cast<int64_t>(variable.shape.size()));
      lead = at::infer_size(lead, batch);
      inputs.push_back(value);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto whole = lead;
      const auto own = inputs[i].sizes().slice(inputs[i].dim() - static_cast<int64_t>(method.inputs[i].shape.size()));
      whole.insert(whole.end(), own.begin(), own.end());
      inputs[i] = inputs[i].expand(whole).contiguous().to(model.device());
    }
    Tensors found;
    try {
      found = model.call("forward", inputs);
    } catch (const Error& error) {
      throw Error(error.status(), "step " + std::to_string(step) + " fails\n" + error.what());
    }
    for (size_t i = 0; i < found.size(); ++i) {
      const auto& output = method.outputs[i];
      found[i] = found[i].cpu();
      now[output.name] = found[i];
      if (lost < 0 && found[i].is_floating_point() && found[i].isnan().any().item<bool>()) lost = step;
      const auto wanted = history.expected.find(output.name);
      if (wanted == history.expected.end()) continue;
      // What a step is off by is carried on by the states.
      auto bounds = contract.bounds(output);
      for (auto* bound : {&bounds.rtol, &bounds.atol, &bounds.floor}) *bound *= static_cast<double>(step + 1);
      const auto result = compare(found[i], wanted->second[step], bounds, scales.at(output.name));
      auto& figures = worst[output.name];
      figures = {std::max(figures.abs, result.max_abs), std::max(figures.rel, result.max_rel)};
      ++values;
      if (!result.passed && difference.is_null())
        difference = {{"step", step},           {"output", output.label()}, {"reason", result.reason},
                      {"worst", result.worst},  {"got", result.got},        {"expected", result.expected}};
    }
    if (lost == step && !failures.empty()) {
      Tensors flat;
      for (size_t i = 0; i < found.size(); ++i) flat.push_back(flat_batch(found[i], method.outputs[i].shape));
      write_failures(failures, method, inputs, flat, step);
    }
    passed.push_back(std::move(now));
    // No input reaches farther back.
    int64_t farthest = 1;
    for (const auto& variable : method.inputs) farthest = std::max(farthest, lag_of(variable.name).second);
    if (static_cast<int64_t>(passed.size()) > farthest) passed[passed.size() - 1 - farthest].clear();
  }
  auto outputs = nlohmann::json::object();
  for (const auto& [name, figures] : worst)
    outputs[name] = {{"max_abs", finite(figures.abs)}, {"max_rel", finite(figures.rel)}};
  return {{"passed", difference.is_null()},
          {"steps", history.steps},
          {"comparisons", values},
          {"outputs", outputs},
          {"difference", difference},
          {"not_finite_from_step", lost < 0 ? nlohmann::json() : nlohmann::json(lost)}};
}

void print_history(const nlohmann::json& history) {
  std::printf("history: %lld steps, %lld comparisons\n", history["steps"].get<long long>(),
              history["comparisons"].get<long long>());
  for (const auto& [name, figures] : history["outputs"].items())
    std::printf("  %-24s max abs %s, max rel %s\n", name.c_str(), figures["max_abs"].dump().c_str(),
                figures["max_rel"].dump().c_str());
  if (const auto& step = history["not_finite_from_step"]; !step.is_null())
    std::printf("  not finite from step %lld on\n", step.get<long long>());
  if (const auto& first = history["difference"]; !first.is_null())
    std::printf("  step %lld, output %s, element %s: %s\n    got %s, expected %s\n", first["step"].get<long long>(),
                first["output"].get<std::string>().c_str(), first["worst"].dump().c_str(),
                first["reason"].get<std::string>().c_str(), first["got"].get<std::string>().c_str(),
                first["expected"].get<std::string>().c_str());
}

}  // namespace torchferry::harness
