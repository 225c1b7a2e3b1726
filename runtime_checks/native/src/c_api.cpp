#include <torchferry/torchferry.h>

#include <memory>

#include <ATen/ATen.h>
#include <torch/version.h>

#include <torchferry/model.hpp>

#include "descriptors.hpp"
#include "handles.hpp"
#include "options.hpp"
#include "text.hpp"

#ifndef TORCHFERRY_VERSION
#error "the build says which version this is"
#endif

namespace {

using namespace torchferry;

struct Borrowed {
  Tensors outputs;
};

// Never destroyed: a thread of the host may still call while the process ends.
Registry<Model, tf_model>& models() {
  static auto* registry = new Registry<Model, tf_model>;
  return *registry;
}
Registry<Borrowed, tf_result>& results() {
  static auto* registry = new Registry<Borrowed, tf_result>;
  return *registry;
}

template <class Work>
tf_status with_model(tf_model model, Work work) noexcept {
  return guarded(model, [&] {
    work(*models().find(model, "model"));
    return tf_status{TF_OK};
  });
}

void require(const void* pointer, const char* name) {
  if (!pointer) fail(TF_ERROR_ARGUMENT, {std::string("argument '") + name + "' is null"});
}

const Method& method_of(const Model& model, const char* name) { return model.contract().method(name ? name : "forward"); }

void require_count(const char* what, int32_t given, size_t expected, const Method& method) {
  if (given < 0 || static_cast<size_t>(given) != expected)
    fail(TF_ERROR_COUNT, {"method " + in_quotes(method.name) + " has another number of " + what,
                          std::string("argument 'n_") + what + "'", std::to_string(given), std::to_string(expected)});
}

size_t index_in(int32_t index, size_t count, const char* what) {
  if (index < 0 || static_cast<size_t>(index) >= count)
    fail(TF_ERROR_ARGUMENT, {std::string("there is no such ") + what, "argument 'index'", std::to_string(index),
                             count ? "0 to " + std::to_string(count - 1) : "nothing: there are none"});
  return static_cast<size_t>(index);
}

template <class Size>
tf_status count_of(tf_model model, int32_t* count, Size size) {
  return with_model(model, [&](Model& m) {
    require(count, "count");
    *count = static_cast<int32_t>(size(m));
  });
}

/// One of the variables that `pick` gives, as the caller is told of it.
template <class Pick>
tf_status describe(tf_model model, int32_t index, const char* what, tf_variable* variable, Pick pick) {
  return with_model(model, [&](Model& m) {
    require(variable, "variable");
    const auto& all = pick(m);
    const auto& one = all[index_in(index, all.size(), what)];
    const char* by = nullptr;
    if constexpr (std::is_same_v<std::decay_t<decltype(one)>, Output>) by = one.by ? one.by->c_str() : nullptr;
    *variable = {one.name.c_str(), by, one.dtype, static_cast<int32_t>(one.shape.size()), one.shape.data()};
  });
}

/// The unit of one of the variables that `pick` gives.
template <class Pick>
tf_status unit_of(tf_model model, int32_t index, const char* what, const char** unit, Pick pick) {
  return with_model(model, [&](Model& m) {
    require(unit, "unit");
    const auto& all = pick(m);
    *unit = all[index_in(index, all.size(), what)].unit.c_str();
  });
}

/// Positions of `names` in `known`, each once; `all` where none may be left out.
template <class Items, class Label>
std::vector<size_t> places(const char* what, int32_t count, const char* const* names, const Items& known, Label label,
                           bool all, const Method& method) {
  if (count < 0) require_count((std::string(what) + "s").c_str(), count, known.size(), method);
  if (count > 0) require(names, (std::string(what) + "_names").c_str());
  std::vector<size_t> found;
  for (int32_t i = 0; i < count; ++i) {
    const auto argument = std::string(what) + "_names[" + std::to_string(i) + "]";
    if (!names[i]) fail(TF_ERROR_ARGUMENT, {"argument '" + argument + "' is null"});
    size_t place = 0;
    while (place < known.size() && label(known[place]) != names[i]) ++place;
    if (place == known.size())
      fail(TF_ERROR_NAME, {std::string("there is no ") + what + " " + in_quotes(names[i]), "argument '" + argument + "'",
                           in_quotes(names[i]), one_of(known, label)});
    for (const auto earlier : found)
      if (earlier == place) fail(TF_ERROR_NAME, {std::string(what) + " " + in_quotes(names[i]) + " is given twice"});
    found.push_back(place);
  }
  if (all && found.size() != known.size())
    for (size_t place = 0; place < known.size(); ++place)
      if (std::find(found.begin(), found.end(), place) == found.end())
        fail(TF_ERROR_COUNT, {std::string(what) + " " + in_quotes(label(known[place])) + " is missing",
                              "method " + in_quotes(method.name), std::to_string(count) + " " + what + "s",
                              std::to_string(known.size())});
  return found;
}

/// What the caller's memory for a parameter is held against.
Role parameter_role(const Model& model, const char* name, const tf_tensor* value) {
  require(name, "name");
  require(value, "value");
  const auto& known = model.contract().parameters;
  for (size_t i = 0; i < known.size(); ++i)
    if (known[i].name == name) return role_of(i, known[i]);
  fail(TF_ERROR_NAME, {"there is no parameter " + in_quotes(name), "argument 'name'", in_quotes(name),
                       one_of(known, [](const Parameter& p) { return p.name; })});
}

}  // namespace

extern "C" {

int32_t tf_abi_version(void) { return TF_ABI_VERSION; }

const char* tf_version(void) { return TORCHFERRY_VERSION " (built for torch " TORCH_VERSION ")"; }

const char* tf_status_name(tf_status status) {
  static const char* const names[] = {
      "TF_OK",           "TF_ERROR_INTERNAL", "TF_ERROR_ARGUMENT",    "TF_ERROR_HANDLE", "TF_ERROR_FILE",
      "TF_ERROR_ARCHIVE", "TF_ERROR_NAME",     "TF_ERROR_COUNT",       "TF_ERROR_SHAPE",  "TF_ERROR_DTYPE",
      "TF_ERROR_DEVICE", "TF_ERROR_STRIDE",   "TF_ERROR_BUFFER",      "TF_ERROR_MODEL",  "TF_ERROR_UNAVAILABLE",
      "TF_ERROR_MEMORY", "TF_ERROR_FROZEN",   "TF_ERROR_MISMATCH",    "TF_ERROR_ENVELOPE",
      "TF_NOT_CONVERGED", "TF_ERROR_TRUST",   "TF_ERROR_SIGNATURE"};
  constexpr auto count = static_cast<tf_status>(sizeof names / sizeof *names);
  return status >= 0 && status < count ? names[status] : "no status of torchferry's";
}

const char* tf_last_error(tf_model model) {
  const auto& texts = errors();
  const auto found = texts.find(model);
  return found == texts.end() ? "" : found->second.c_str();
}

const char* tf_last_warning(void) { return warning().c_str(); }

tf_status tf_default_options(tf_options* options) {
  return guarded(nullptr, [&] {
    require(options, "options");
    *options = default_options();
    return tf_status{TF_OK};
  });
}

tf_status tf_load(const char* path, const char* device, const tf_options* options, tf_model* model) {
  warning().clear();
  return guarded(nullptr, [&] {
    require(model, "model");
    *model = nullptr;
    require(path, "path");
    *model = models().add(std::make_shared<Model>(Model::load(path, device ? device : "cpu", options_of(options))));
    return tf_status{TF_OK};
  });
}

tf_status tf_close(tf_model model) {
  return guarded(model, [&] {
    models().remove(model, "model");
    errors().erase(model);
    return tf_status{TF_OK};
  });
}

tf_status tf_name(tf_model model, const char** name) {
  return with_model(model, [&](Model& m) {
    require(name, "name");
    *name = m.contract().name.c_str();
  });
}

tf_status tf_engine(tf_model model, const char** name) {
  return with_model(model, [&](Model& m) {
    require(name, "name");
    *name = m.engine();
  });
}

tf_status tf_contract_json(tf_model model, const char** json) {
  return with_model(model, [&](Model& m) {
    require(json, "json");
    *json = m.contract().json.c_str();
  });
}

tf_status tf_batch_ndim(tf_model model, int32_t* ndim) {
  return with_model(model, [&](Model& m) {
    require(ndim, "ndim");
    *ndim = m.contract().batch_ndim;
  });
}

tf_status tf_size_count(tf_model model, int32_t* count) {
  return count_of(model, count, [](const Model& m) { return m.contract().sizes.size(); });
}

tf_status tf_size_name(tf_model model, int32_t index, const char** name) {
  return with_model(model, [&](Model& m) {
    require(name, "name");
    const auto& sizes = m.contract().sizes;
    *name = sizes[index_in(index, sizes.size(), "open size")].c_str();
  });
}

tf_status tf_method_count(tf_model model, int32_t* count) {
  return count_of(model, count, [](const Model& m) { return m.contract().methods.size(); });
}

tf_status tf_method_name(tf_model model, int32_t index, const char** name) {
  return with_model(model, [&](Model& m) {
    require(name, "name");
    const auto& methods = m.contract().methods;
    *name = methods[index_in(index, methods.size(), "method")].name.c_str();
  });
}

tf_status tf_input_count(tf_model model, const char* method, int32_t* count) {
  return count_of(model, count, [&](const Model& m) { return method_of(m, method).inputs.size(); });
}

tf_status tf_input(tf_model model, const char* method, int32_t index, tf_variable* variable) {
  return describe(model, index, "input", variable, [&](const Model& m) -> const auto& { return method_of(m, method).inputs; });
}

tf_status tf_output_count(tf_model model, const char* method, int32_t* count) {
  return count_of(model, count, [&](const Model& m) { return method_of(m, method).outputs.size(); });
}

tf_status tf_output(tf_model model, const char* method, int32_t index, tf_variable* variable) {
  return describe(model, index, "output", variable, [&](const Model& m) -> const auto& { return method_of(m, method).outputs; });
}

tf_status tf_parameter_count(tf_model model, int32_t* count) {
  return count_of(model, count, [](const Model& m) { return m.contract().parameters.size(); });
}

tf_status tf_parameter(tf_model model, int32_t index, tf_variable* variable) {
  return describe(model, index, "parameter", variable, [](const Model& m) -> const auto& { return m.contract().parameters; });
}

tf_status tf_input_unit(tf_model model, const char* method, int32_t index, const char** unit) {
  return unit_of(model, index, "input", unit, [&](const Model& m) -> const auto& { return method_of(m, method).inputs; });
}

tf_status tf_output_unit(tf_model model, const char* method, int32_t index, const char** unit) {
  return unit_of(model, index, "output", unit, [&](const Model& m) -> const auto& { return method_of(m, method).outputs; });
}

tf_status tf_parameter_unit(tf_model model, int32_t index, const char** unit) {
  return unit_of(model, index, "parameter", unit, [](const Model& m) -> const auto& { return m.contract().parameters; });
}

tf_status tf_call(tf_model model, const char* method, int32_t n_inputs, const tf_tensor* inputs, int32_t n_outputs,
                  const tf_tensor* outputs) {
  warning().clear();
  return with_model(model, [&](Model& m) {
    const auto& called = method_of(m, method);
    require_count("inputs", n_inputs, called.inputs.size(), called);
    require_count("outputs", n_outputs, called.outputs.size(), called);
    if (n_inputs) require(inputs, "inputs");
    if (n_outputs) require(outputs, "outputs");
    c10::SmallVector<const tf_tensor*, 16> targets(called.outputs.size());
    for (size_t i = 0; i < targets.size(); ++i) targets[i] = outputs + i;
    m.call(called, inputs, targets.data());
  });
}

tf_status tf_call_named(tf_model model, const char* method, int32_t n_inputs, const char* const* input_names,
                        const tf_tensor* inputs, int32_t n_outputs, const char* const* output_names,
                        const tf_tensor* outputs) {
  warning().clear();
  return with_model(model, [&](Model& m) {
    const auto& called = method_of(m, method);
    if (n_inputs) require(inputs, "inputs");
    if (n_outputs) require(outputs, "outputs");
    const auto from = places(
        "input", n_inputs, input_names, called.inputs, [](const Variable& v) { return v.name; }, true, called);
    const auto to = places(
        "output", n_outputs, output_names, called.outputs, [](const Output& o) { return o.label(); }, false, called);
    std::vector<tf_tensor> ordered(called.inputs.size());
    for (size_t i = 0; i < from.size(); ++i) ordered[from[i]] = inputs[i];
    std::vector<const tf_tensor*> targets(called.outputs.size(), nullptr);
    for (size_t i = 0; i < to.size(); ++i) targets[to[i]] = outputs + i;
    m.call(called, ordered.data(), targets.data());
  });
}

tf_status tf_call_borrow(tf_model model, const char* method, int32_t n_inputs, const tf_tensor* inputs,
                         tf_result* result) {
  warning().clear();
  return with_model(model, [&](Model& m) {
    require(result, "result");
    *result = nullptr;
    const auto& called = method_of(m, method);
    require_count("inputs", n_inputs, called.inputs.size(), called);
    if (n_inputs) require(inputs, "inputs");
    *result = results().add(std::make_shared<Borrowed>(Borrowed{m.borrow(called, inputs)}));
  });
}

tf_status tf_result_get(tf_result result, int32_t index, tf_tensor* output) {
  return guarded(nullptr, [&] {
    const auto held = results().find(result, "result");
    require(output, "output");
    const auto& tensor = held->outputs[index_in(index, held->outputs.size(), "output")];
    *output = {tensor.data_ptr(),     dtype_of(tensor.scalar_type()), static_cast<int32_t>(tensor.dim()),
               tensor.sizes().data(), tensor.strides().data(),        device_of(tensor.device())};
    return tf_status{TF_OK};
  });
}

tf_status tf_result_free(tf_result result) {
  return guarded(nullptr, [&] {
    results().remove(result, "result");
    return tf_status{TF_OK};
  });
}

tf_status tf_set_parameter(tf_model model, const char* name, const tf_tensor* value) {
  return with_model(model, [&](Model& m) {
    const auto role = parameter_role(m, name, value);
    at::Tensor shell;
    Extent extent(m.contract());
    m.set_parameter(name, as_tensor(*value, role, 0, m.device(), shell, extent));
  });
}

tf_status tf_get_parameter(tf_model model, const char* name, const tf_tensor* value) {
  return with_model(model, [&](Model& m) {
    const auto role = parameter_role(m, name, value);
    const auto device = m.device();
    Extent extent(m.contract());
    check_output(*value, role, extent, device);
    write_output(*value, role, m.parameter(name), device);
  });
}

tf_status tf_device_of(tf_model model, tf_device* device) {
  return with_model(model, [&](Model& m) {
    require(device, "device");
    *device = device_of(m.device());
  });
}

tf_status tf_to(tf_model model, const char* device) {
  return with_model(model, [&](Model& m) {
    require(device, "device");
    m.to(device);
  });
}

tf_status tf_synchronize(tf_model model) {
  return with_model(model, [&](Model& m) { m.synchronize(); });
}

tf_status tf_run_cases(tf_model model, int32_t* compared, int32_t* failed) {
  return with_model(model, [&](Model& m) {
    const auto found = m.run_cases();
    int32_t bad = 0;
    const CaseResult* first = nullptr;
    for (const auto& one : found) {
      if (one.comparison.passed) continue;
      if (!bad++) first = &one;
    }
    if (compared) *compared = static_cast<int32_t>(found.size());
    if (failed) *failed = bad;
    if (first)
      fail(TF_ERROR_MISMATCH,
           {std::to_string(bad) + " of " + std::to_string(found.size()) + " outputs differ from eager mode",
            "case " + in_quotes(first->name) + ", method " + in_quotes(first->method) + ", output " + in_quotes(first->output),
            first->comparison.got.empty() ? first->comparison.reason : first->comparison.got,
            first->comparison.expected});
  });
}

}  // extern "C"
