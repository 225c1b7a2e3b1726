// Kernels in the C++ and C interfaces. The environment names the same model as TF_ARCHIVE (a .pt that carries its kernel),
// TF_KERNEL (its shared object) and TF_PARTS (one that refuses more than 5,000 elements), and TF_OTHER, the shared object
// of another model.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>

#include <ATen/ATen.h>
#include <torchferry/model.hpp>

#include "testing.hpp"

using namespace torchferry;

namespace {

Model archive() {
  Options options;
  options.settable_parameters = true;
  return Model::load(path("TF_ARCHIVE"), "cpu", options);
}

/// What a host says that loads code which somebody built.
Options allow_native() {
  Options options;
  options.trust = Trust::kNative;
  return options;
}

Model kernel(int threads = 1, bool settable = true) {
  auto options = allow_native();
  options.settable_parameters = settable;
  options.intra_op_threads = threads;
  return Model::load(path("TF_KERNEL"), "cpu", options);
}

/// Strains that yield, of elements that have not, in a batch of any shape.
Tensors inputs(const Model& model, const std::vector<int64_t>& batch) {
  at::manual_seed(3);
  Tensors found;
  for (const auto& variable : model.contract().method("forward").inputs) {
    auto shape = batch;
    shape.insert(shape.end(), variable.shape.begin(), variable.shape.end());
    const auto options = at::TensorOptions().dtype(at::kDouble);
    found.push_back(found.empty() ? at::randn(shape, options) * 4e-3 : at::zeros(shape, options));
  }
  return found;
}

at::Tensor scaled(const Model& model, const std::string& parameter, double factor) {
  const auto value = model.parameter(parameter);
  return (value * factor).to(value.dtype());
}

void check_close(const Tensors& got, const Tensors& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i].sizes() == wanted[i].sizes());
    const double largest = wanted[i].numel() ? wanted[i].abs().max().item<double>() : 0.0;
    CHECK(at::allclose(got[i], wanted[i], 1e-9, 1e-9 * largest));
  }
}

}  // namespace

TEST_CASE("a shared object is loaded as an archive is") {
  const auto model = kernel(), plain = archive();
  CHECK(std::string(model.engine()) == "kernel");
  CHECK(std::string(plain.engine()) == "torchscript");
  CHECK(model.contract().methods.size() == plain.contract().methods.size());
  CHECK(model.cases().size() > 4);
  for (const auto& one : model.run_cases()) CHECK_MESSAGE(one.comparison.passed, one.name << " " << one.method << " " << one.output);
}

TEST_CASE("it gives the archive's numbers, whatever the batch") {
  const auto model = kernel(), plain = archive();
  for (const auto& batch : std::vector<std::vector<int64_t>>{{1}, {17}, {}, {3, 5}, {0}})
    for (const auto* method : {"forward", "jacobian"})
      check_close(model.call(method, inputs(plain, batch)), plain.call(method, inputs(plain, batch)));
  auto broadcast = inputs(plain, {4, 1});
  broadcast[0] = inputs(plain, {1, 6})[0];
  check_close(model(broadcast), plain(broadcast));
}

TEST_CASE("arrays of structures and structures of arrays are read where they are") {
  const auto model = kernel(), plain = archive();
  auto given = inputs(plain, {21});
  const auto wanted = model(given);
  given[0] = given[0].t().contiguous().t();
  const auto found = model(given);
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(at::equal(found[i], wanted[i]));
}

TEST_CASE("threads change no number") {
  const auto given = inputs(archive(), {9001});
  const auto one = kernel(1)(given), four = kernel(4)(given);
  for (size_t i = 0; i < one.size(); ++i) CHECK(at::equal(one[i], four[i]));
  auto options = allow_native();
  CHECK(status_of([&] { Model::load(path("TF_PARTS"), "cpu", options)(given); }) == TF_ERROR_MODEL);
  options.intra_op_threads = 4;
  const auto parts = Model::load(path("TF_PARTS"), "cpu", options)(given);
  for (size_t i = 0; i < one.size(); ++i) CHECK(at::equal(one[i], parts[i]));
}

TEST_CASE("a shared object that is replaced while another one of its path is open") {
  const auto place = path("TF_KERNEL") + ".copy";
  std::filesystem::copy_file(path("TF_KERNEL"), place);
  const auto first = Model::load(place, "cpu", allow_native());
  std::filesystem::copy_file(path("TF_OTHER"), place + ".new");
  std::filesystem::rename(place + ".new", place);
  const auto second = Model::load(place, "cpu", allow_native());
  for (const auto* model : {&first, &second})
    for (const auto& result : model->run_cases()) CHECK(result.comparison.passed);
  CHECK(second.contract().methods.at(0).inputs.size() == Model::load(path("TF_OTHER"), "cpu", allow_native()).contract().methods.at(0).inputs.size());
  std::filesystem::remove(place);
}

TEST_CASE("tensors without dense numbers") {
  const auto model = kernel();
  auto given = inputs(model, {4});
  auto zero = given;
  zero[0] = at::_efficientzerotensor({4, 6}, at::TensorOptions().dtype(at::kDouble));
  given[0] = at::zeros({4, 6}, at::kDouble);
  const auto wanted = model(given), found = model(zero);
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(at::equal(found[i], wanted[i]));
  given[0] = given[0].to_sparse();
  CHECK(status_of([&] { model(given); }) == TF_ERROR_ARGUMENT);
}

TEST_CASE("eight callers of one model") {
  const auto model = kernel();
  const auto given = inputs(model, {50});
  const auto wanted = model(given);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i)
    callers.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const auto found = model(given);
        for (size_t j = 0; j < found.size(); ++j) wrong += !at::equal(found[j], wanted[j]);
      }
    });
  for (auto& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("parameters are set, where they may be") {
  auto model = kernel(), plain = archive();
  const auto given = inputs(plain, {9});
  const auto before = model(given);
  const auto name = plain.contract().parameters.at(0).name;
  for (const auto& known : plain.contract().parameters) {
    CHECK(at::equal(model.parameter(known.name), plain.parameter(known.name)));
    model.set_parameter(known.name, scaled(plain, known.name, 1.25));
    plain.set_parameter(known.name, scaled(plain, known.name, 1.25));
  }
  check_close(model(given), plain(given));
  CHECK_FALSE(at::allclose(model(given)[0], before[0], 1e-6));
  auto frozen = kernel(1, false);
  CHECK(status_of([&] { frozen.set_parameter(name, frozen.parameter(name)); }) == TF_ERROR_FROZEN);
  CHECK(status_of([&] { model.set_parameter("none", at::zeros({})); }) == TF_ERROR_NAME);
}

TEST_CASE("an element that does not converge is said in C") {
  tf_options options;
  REQUIRE(tf_default_options(&options) == TF_OK);
  CHECK(options.trust == TF_TRUST_GRAPHS);
  tf_model handle = nullptr;
  REQUIRE(tf_load(path("TF_KERNEL").c_str(), nullptr, &options, &handle) == TF_ERROR_TRUST);
  options.trust = TF_TRUST_NATIVE;
  REQUIRE(tf_load(path("TF_KERNEL").c_str(), nullptr, &options, &handle) == TF_OK);
  const char* engine = nullptr;
  CHECK(tf_engine(handle, &engine) == TF_OK);
  CHECK(std::strcmp(engine, "kernel") == 0);
  const auto model = kernel();
  auto given = inputs(model, {5});
  given[0][3][0] = std::numeric_limits<double>::quiet_NaN();
  const auto& method = model.contract().method("forward");
  Tensors results;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<tf_tensor> in, out;
  for (const auto& output : method.outputs) {
    auto shape = output.shape;
    shape.insert(shape.begin(), 5);
    results.push_back(at::zeros(shape, at::kDouble));
  }
  for (const auto* side : {&given, &results})
    for (const auto& value : *side) shapes.push_back(value.sizes().vec());
  for (size_t i = 0; i < given.size(); ++i) in.push_back(view(given[i].data_ptr<double>(), shapes[i]));
  for (size_t i = 0; i < results.size(); ++i)
    out.push_back(view(results[i].data_ptr<double>(), shapes[given.size() + i]));
  CHECK(tf_call(handle, nullptr, static_cast<int32_t>(in.size()), in.data(), static_cast<int32_t>(out.size()),
                out.data()) == TF_NOT_CONVERGED);
  CHECK(std::string(tf_last_error(handle)).find("elements 3 (from 0)") != std::string::npos);
  CHECK(results[0][3].isnan().all().item<bool>());
  CHECK(results[0][2].isfinite().all().item<bool>());
  int32_t compared = 0, failed = -1;
  CHECK(tf_run_cases(handle, &compared, &failed) == TF_OK);
  CHECK(compared > 0);
  CHECK(failed == 0);
  CHECK(tf_close(handle) == TF_OK);
}

TEST_CASE("two kernels in one process") {
  const auto one = kernel();
  const auto other = Model::load(path("TF_OTHER"), "cpu", allow_native());
  CHECK(one.contract().methods.at(0).inputs.size() != other.contract().methods.at(0).inputs.size());
  for (const auto* model : {&one, &other})
    for (const auto& result : model->run_cases()) CHECK(result.comparison.passed);
}

TEST_CASE("an archive lets the kernel that it carries run it") {
  auto options = allow_native();
  options.engine = EngineKind::kKernel;
  options.settable_parameters = true;
  std::string said;
  options.warn = [&](const std::string& text) { said = text; };
  auto model = Model::load(path("TF_ARCHIVE"), "cpu", options), plain = archive();
  CHECK(said == "");
  CHECK(std::string(model.engine()) == "kernel");
  const auto given = inputs(plain, {33});
  for (const auto& known : plain.contract().parameters) {
    model.set_parameter(known.name, scaled(plain, known.name, 0.75));
    plain.set_parameter(known.name, scaled(plain, known.name, 0.75));
  }
  check_close(model(given), plain(given));
}

TEST_CASE("an engine that there is not") {
  tf_options options;
  REQUIRE(tf_default_options(&options) == TF_OK);
  CHECK(options.engine == TF_ENGINE_TORCHSCRIPT);
  options.engine = 7;
  tf_model handle = nullptr;
  CHECK(tf_load(path("TF_ARCHIVE").c_str(), nullptr, &options, &handle) == TF_ERROR_ARGUMENT);
  CHECK(handle == nullptr);
}
