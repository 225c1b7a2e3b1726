#include <algorithm>
#include <fstream>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/import.h>
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

/// Outputs, then gradients of the floating inputs and of the parameters `by`, by torch's own autograd through the module
/// itself.
Tensors differentiated(const std::string& path, const std::string& method, const at::Device& device,
                       const Tensors& inputs, const Tensors& seeds, const c10::List<c10::IValue>& by) {
  auto module = torch::jit::load(path, device);
  module.eval();
  const at::AutoGradMode recorded(true);
  std::vector<c10::IValue> given;
  Tensors leaves, outputs, real, used;
  for (const auto& input : inputs) {
    const auto leaf = input.detach().clone();
    if (leaf.is_floating_point()) leaves.push_back(leaf.requires_grad_(true));
    given.emplace_back(leaf);
  }
  for (const auto& name : by)
    for (const auto& parameter : module.named_parameters())
      if (parameter.name == static_cast<c10::IValue>(name).toStringRef())
        leaves.push_back(parameter.value.requires_grad_(true));
  const c10::IValue returned = module.get_method(method)(given);
  for (const auto& value : returned.toTupleRef().elements()) outputs.push_back(value.toTensor());
  size_t next = 0;
  for (const auto& output : outputs) {
    if (!output.is_floating_point()) continue;
    const auto seed = on(device, seeds.at(next++));
    if (output.requires_grad()) real.push_back(output), used.push_back(seed);
  }
  if (real.empty()) throw Error(TF_ERROR_INTERNAL, "no output carries a gradient");
  const auto gradients = torch::autograd::grad(real, leaves, used, c10::nullopt, false, true);
  for (size_t i = 0; i < leaves.size(); ++i)
    outputs.push_back(gradients[i].defined() ? gradients[i] : at::zeros_like(leaves[i]));
  return outputs;
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
    // As runtime_checks/runners/subprocesses.py writes them: method, inputs, default dtype, moved, left on the CPU,
    // names and values of parameters, seeds of a gradient, names of the parameters that it is taken by.
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
      Tensors seeds;
      for (const auto& value : parts[7].toList()) seeds.push_back(static_cast<c10::IValue>(value).toTensor());
      const auto got = seeds.empty() ? used.call(parts[0].toStringRef(), inputs)
                                     : differentiated(path, parts[0].toStringRef(), device, inputs, seeds, parts[8].toList());
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
