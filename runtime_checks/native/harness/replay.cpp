#include <fstream>

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

}  // namespace

nlohmann::json replay_calls(const Model& model, const std::string& calls, const std::string& results) {
  const auto list = torch::jit::pickle_load(read(calls)).toList();
  c10::Dict<std::string, at::Tensor> outputs;
  auto errors = nlohmann::json::object();
  for (size_t i = 0; i < list.size(); ++i) {
    const c10::IValue item = list.get(i);
    const auto& parts = item.toTupleRef().elements();
    const auto method = parts[0].toStringRef();
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(parts[2].toStringRef() == "float64" ? at::kDouble : at::kFloat));
    Tensors inputs;
    for (const auto& value : parts[1].toList()) {
      const auto tensor = static_cast<c10::IValue>(value).toTensor();
      auto moved = tensor.to(model.device());
      // `to` drops the strides of what it copies; the layout is part of the call.
      if (!model.device().is_cpu()) {
        moved = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(model.device()));
        moved.copy_(tensor);
      }
      inputs.push_back(moved);
    }
    try {
      const auto got = model.call(method, inputs);
      for (size_t k = 0; k < got.size(); ++k) {
        if (got[k].device() != model.device())
          throw Error(TF_ERROR_DEVICE, "output " + std::to_string(k) + " is on " + got[k].device().str() +
                                           " instead of " + model.device().str());
        outputs.insert(std::to_string(i) + "/" + std::to_string(k), got[k].detach().cpu().clone());
      }
    } catch (const Error& error) {
      errors[std::to_string(i)] = error.what();
    }
  }
  const auto bytes = torch::jit::pickle_save(outputs);
  std::ofstream file(results, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw Error(TF_ERROR_FILE, "the results cannot be written\n  where: " + results);
  return {{"calls", list.size()}, {"errors", errors}};
}

}  // namespace torchferry::harness
