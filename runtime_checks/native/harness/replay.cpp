#include <algorithm>
#include <fstream>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "harness.hpp"

namespace torchferry::harness {
namespace {

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(TF_ERROR_FILE, "the calls cannot be read\n  where: " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// On the device in the same memory layout: `to` would make it contiguous, and the layout is part of the call.
at::Tensor on(const at::Device& device, const at::Tensor& value) {
  if (device.is_cpu()) return value;
  auto once = value;
  for (int64_t d = 0; d < value.dim(); ++d)
    if (value.stride(d) == 0) once = once.narrow(d, 0, std::min<int64_t>(once.size(d), 1));
  auto there = at::empty_strided(once.sizes(), once.strides(), once.options().device(device));
  there.copy_(once);
  return there.expand(value.sizes());
}

}  // namespace

nlohmann::json replay_calls(const Model& model, const std::string& path, const std::string& calls,
                            const std::string& results) {
  const auto list = torch::jit::pickle_load(read(calls)).toList();
  const auto device = model.device();
  std::optional<Model> moved, settable;
  std::vector<c10::IValue> outputs;
  auto errors = nlohmann::json::object();
  for (size_t i = 0; i < list.size(); ++i) {
    // As runtime_checks/runners/process.py writes them: method, inputs, default dtype, moved, left on the CPU,
    // names and values of parameters.
    const c10::IValue item = list.get(i);
    const auto& parts = item.toTupleRef().elements();
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(parts[2].toStringRef() == "float64" ? at::kDouble : at::kFloat));
    Tensors inputs;
    for (const auto& value : parts[1].toList()) {
      const auto tensor = static_cast<c10::IValue>(value).toTensor();
      const bool stays = static_cast<int64_t>(inputs.size()) == parts[4].toInt();
      inputs.push_back(stays ? tensor : on(device, tensor));
    }
    std::vector<std::pair<std::string, at::Tensor>> before;
    try {
      if (parts[3].toBool() && !moved) {
        moved.emplace(Model::load(path, "cpu", model.options()));
        moved->to(device.str());
      }
      const auto names = parts[5].toList();
      if (!names.empty() && !settable) {
        auto options = model.options();
        options.settable_parameters = true;
        settable.emplace(Model::load(path, device.str(), options));
      }
      for (size_t k = 0; k < names.size(); ++k) {
        const auto name = static_cast<c10::IValue>(names.get(k)).toStringRef();
        before.emplace_back(name, settable->parameter(name).clone());
        settable->set_parameter(name, on(device, static_cast<c10::IValue>(parts[6].toList().get(k)).toTensor()));
      }
      const auto& used = !names.empty() ? *settable : parts[3].toBool() ? *moved : model;
      const auto got = used.call(parts[0].toStringRef(), inputs);
      for (size_t k = 0; k < got.size(); ++k)
        if (got[k].device() != device)
          throw Error(TF_ERROR_DEVICE, "output " + std::to_string(k) + " is on device " + got[k].device().str() +
                                           " instead of " + device.str());
      for (const auto& output : got) outputs.emplace_back(output.detach().cpu().clone());
    } catch (const Error& error) {
      errors[std::to_string(i)] = error.what();
    }
    for (const auto& [name, value] : before) settable->set_parameter(name, value);
  }
  const auto bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(std::move(outputs)));
  std::ofstream file(results, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw Error(TF_ERROR_FILE, "the results cannot be written\n  where: " + results);
  return {{"calls", list.size()}, {"errors", errors}};
}

}  // namespace torchferry::harness
