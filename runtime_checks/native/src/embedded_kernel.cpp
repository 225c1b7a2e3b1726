#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <dlfcn.h>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "kernel.hpp"
#include "native_code.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

/// What of a contract no kernel does.
void refuse_unfit(const Contract& contract, const std::string& path) {
  const auto raw = nlohmann::json::parse(contract.json, nullptr, false);
  if (raw.value("differentiable", false))
    fail(TF_ERROR_UNAVAILABLE, {"torch's gradients do not go through compiled code", path});
  for (const auto& solver : raw.value("solvers", nlohmann::json::array()))
    if (solver.value("on_failure", "") == "raise")
      fail(TF_ERROR_UNAVAILABLE, {"compiled code gives NaN where Newton's method does not converge, and this model raises "
                                  "an error", path});
}

/// A kernel may iterate on fewer numbers than the archive, and a residual below the solver's own tolerance is rounding: as
/// derive_kernel_contract in exporter/archive/kernel_container.py.
std::map<std::string, Bounds> tolerance_of_kernel(const Contract& contract) {
  const auto raw = nlohmann::json::parse(contract.json, nullptr, false);
  const auto solvers = raw.value("solvers", nlohmann::json::array());
  if (solvers.empty()) return {};
  double most = 0.0, least = 0.0;
  for (const auto& solver : solvers) {
    most = std::max(most, solver.at("settings").at("max_its").get<double>());
    least = std::max(least, solver.at("settings").at("abs_tol").get<double>());
  }
  auto norm = contract.bounds(Output{"residual_norm", std::nullopt, {}, TF_FLOAT64, ""});
  norm.floor = std::max(norm.floor, least);
  return {{"iterations", {0.0, 0.0, most}}, {"residual_norm", norm}};
}

nlohmann::json described(const std::string& name, tf_dtype dtype, const std::vector<int64_t>& shape) {
  return {{"name", name}, {"dtype", dtype_name(dtype)}, {"shape", shape}};
}

/// Whether a manifest describes the contract's variables and methods, with shapes and dtypes: as check_description in
/// exporter/archive/kernel_container.py. A kernel writes as much memory as its own shapes say.
bool fits(const nlohmann::json& manifest, const Contract& contract) {
  using nlohmann::json;
  json methods = json::object(), parameters = json::array();
  std::set<std::string> workspace;
  for (const auto& method : contract.methods) {
    json inputs = json::array(), outputs = json::array();
    for (const auto& v : method.inputs) inputs.push_back(described(v.name, v.dtype, v.shape));
    for (const auto& o : method.outputs)
      outputs.push_back(described(o.by ? "d " + o.name + " / d " + *o.by : o.name, o.dtype, o.shape));
    methods[method.name] = {{"inputs", inputs}, {"outputs", outputs}};
    workspace.insert(method.name);
  }
  for (const auto& p : contract.parameters) parameters.push_back(described(p.name, p.dtype, p.shape));
  for (const auto& [name, bytes] : manifest.at("workspace").items()) {
    if (!workspace.erase(name) || !bytes.is_number_unsigned()) return false;
  }
  return workspace.empty() && manifest.at("methods") == methods && manifest.at("parameters") == parameters &&
         manifest.at("batched") == (contract.batch_ndim != 0);
}

}  // namespace

Carried carried_engine(const std::map<std::string, std::string>& files, const std::string& path,
                       const Contract& contract, const Options& options, const Engine& script) {
  if (files.empty())
    fail(TF_ERROR_UNAVAILABLE, {"it carries no kernel", path, "", "", "export it with --format pt,c"});
  refuse_foreign_code([&] { return kernel_digest(files); }, path, options);
  try {
    refuse_unfit(contract, path);
    const auto manifest = nlohmann::json::parse(files.at("manifest.json"));
    if (manifest.at("format") != kKernelFormat)
      fail(TF_ERROR_ARCHIVE, {"its kernel is of another format", path, manifest.at("format").dump(), kKernelFormat,
                              "export it with this torchferry"});
    const auto name = manifest.at("name").get<std::string>();
    auto sources = files;
    sources.erase("manifest.json");
    if (!sources.count(name + ".c") || !fits(manifest, contract))
      fail(TF_ERROR_ARCHIVE, {"its kernel has other variables or methods", path, "", "", "export it again"});
    Kernel kernel;
    kernel.library = open_library(built(sources, name + ".c"), path);
    for (const auto& method : contract.methods)
      kernel.methods.push_back(
          {method.name, reinterpret_cast<KernelFunction*>(dlsym(kernel.library.get(), (name + "_" + method.name).c_str())),
           manifest.at("workspace").at(method.name).get<size_t>()});
    for (const auto& parameter : contract.parameters)
      kernel.parameters[parameter.name] = script.parameter(parameter.name).detach().to(at::kCPU).clone(at::MemoryFormat::Contiguous);
    auto engine = kernel_engine(std::move(kernel), contract, options);
    engine->check(contract, path);
    return {std::move(engine), manifest.at("left_out").get<std::vector<std::string>>(), tolerance_of_kernel(contract)};
  } catch (const nlohmann::json::exception& error) {
    fail(TF_ERROR_ARCHIVE, {"the manifest of its kernel is damaged", path, error.what()});
  } catch (const std::out_of_range&) {
    fail(TF_ERROR_ARCHIVE, {"its kernel has no manifest", path});
  }
}

}  // namespace torchferry
