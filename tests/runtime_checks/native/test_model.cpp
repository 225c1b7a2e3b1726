// The C++ interface. Archives come from the environment: TF_ELASTIC, TF_SINGLE, TF_PICKS, TF_WHOLE.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <limits>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torchferry/model.hpp>

#include "testing.hpp"

using namespace torchferry;

namespace {

Model elastic(bool settable = false) {
  Options options;
  options.settable_parameters = settable;
  return Model::load(path("TF_ELASTIC"), "cpu", options);
}

Tensors inputs(int64_t n) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  return {at::rand({n, 3, 3}, options), at::rand({n, 3}, options), at::rand({n}, options)};
}

}  // namespace

TEST_CASE("the contract as plain values") {
  const auto model = elastic();
  const auto& contract = model.contract();
  CHECK(contract.name == "Elastic");
  CHECK(contract.batch_ndim == 1);
  const auto& forward = contract.method("forward");
  CHECK(forward.inputs.at(0).name == "F");
  CHECK((forward.inputs.at(0).shape == std::vector<int64_t>{3, 3}));
  CHECK(forward.outputs.at(2).label() == "energy");
  CHECK(contract.parameters.size() == 2);
  CHECK(contract.bounds(forward.outputs[0]).rtol == 1e-10);
  CHECK(contract.json.find("\"schema\"") != std::string::npos);
}

TEST_CASE("tensors by position and by name, at batches and values that were not traced") {
  const auto model = elastic();
  for (const int64_t n : {0, 1, 3, 17, 1000}) {
    const auto given = inputs(n);
    const auto out = model(given);
    CHECK(at::equal(out[0], 2.5 * given[0].transpose(-1, -2)));
    const auto named = model.call("forward", {{"s", given[2]}, {"v", given[1]}, {"F", given[0]}});
    CHECK(at::equal(named.at("energy"), out[2]));
    CHECK(named.size() == 3);
  }
  const auto one = inputs(1);
  CHECK(model({one[0][0], one[1][0], one[2][0]})[0].dim() == 2);
}

TEST_CASE("memory of the caller's, in place, also where an output is an input") {
  const auto model = elastic();
  const int64_t n = 5;
  auto given = inputs(n);
  const auto expected = model(given);
  const std::vector<int64_t> f{n, 3, 3}, v{n, 3}, s{n};
  auto F = given[0].clone();
  std::vector<double> pushed(n * 3), energy(n);
  model.call("forward", {view(F.mutable_data_ptr<double>(), f), view(given[1].mutable_data_ptr<double>(), v),
                         view(given[2].mutable_data_ptr<double>(), s)},
             {view(F.mutable_data_ptr<double>(), f), view(pushed.data(), v), view(energy.data(), s)});
  CHECK(at::equal(F, expected[0]));
  CHECK(at::equal(at::from_blob(energy.data(), {n}, at::kDouble), expected[2]));
  CHECK(status_of([&] { model.call("forward", std::vector<tf_tensor>{}, {}); }) == TF_ERROR_COUNT);
}

TEST_CASE("parameters") {
  auto settable = elastic(true);
  settable.set_parameter("stiffness", at::scalar_tensor(4.0, at::kDouble));
  const auto given = inputs(3);
  CHECK(at::equal(settable(given)[0], 4.0 * given[0].transpose(-1, -2)));
  CHECK(settable.parameter("stiffness").item<double>() == 4.0);
  CHECK(status_of([&] { settable.set_parameter("stiffness", at::ones({2}, at::kDouble)); }) == TF_ERROR_SHAPE);
  CHECK(status_of([&] { settable.set_parameter("stiffness", at::scalar_tensor(4.0, at::kFloat)); }) == TF_ERROR_DTYPE);
  auto folded = elastic();
  CHECK(status_of([&] { folded.set_parameter("stiffness", at::scalar_tensor(4.0, at::kDouble)); }) == TF_ERROR_FROZEN);
  CHECK(status_of([&] { folded.parameter("other"); }) == TF_ERROR_NAME);
  // the cases were made with the old stiffness
  int failed = 0;
  for (const auto& one : settable.run_cases()) failed += !one.comparison.passed;
  CHECK(failed > 0);
}

TEST_CASE("stored cases replay to the bit") {
  for (const char* name : {"TF_ELASTIC", "TF_SINGLE", "TF_PICKS", "TF_WHOLE"}) {
    const auto results = Model::load(path(name)).run_cases();
    CHECK(!results.empty());
    for (const auto& one : results) {
      CHECK_MESSAGE(one.comparison.passed, one.name << " " << one.output << " " << one.comparison.reason);
      CHECK(one.comparison.max_abs == 0.0);
    }
  }
}

TEST_CASE("settings change the way, not the numbers") {
  const auto given = inputs(11);
  const auto expected = elastic()(given);
  for (const int depth : {-1, 0, 2})
    for (const bool optimize : {true, false})
      for (const bool settable : {true, false}) {
        Options options;
        options.fusion_depth = depth;
        options.optimize = optimize;
        options.settable_parameters = settable;
        const auto model = Model::load(path("TF_ELASTIC"), "cpu", options);
        for (int call = 0; call < 4; ++call) CHECK(at::equal(model(given)[1], expected[1]));
        CHECK(model.optimized() == optimize);
      }
}

namespace {
thread_local int threads_seen = 0;
std::unique_ptr<at::ObserverContext> see_threads(const at::RecordFunction&) {
  threads_seen = at::get_num_threads();
  return nullptr;
}
}  // namespace

TEST_CASE("intra-op threads are those asked for while the model runs, and the host's before and after") {
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(see_threads).scopes({at::RecordScope::FUNCTION}));
  for (const auto& [asked, seen] : {std::pair{1, 1}, {3, 3}, {0, 2}}) {
    at::set_num_threads(2);
    Options options;
    options.intra_op_threads = asked;
    Model::load(path("TF_ELASTIC"), "cpu", options)(inputs(2));
    CHECK(threads_seen == seen);
    CHECK(at::get_num_threads() == 2);
  }
  at::removeCallback(handle);
}

TEST_CASE("setting a parameter does not wait for ever while others call") {
  auto model = elastic(true);
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t)
    callers.emplace_back([&] {
      const auto given = inputs(2);
      while (!stop) model(given);
    });
  for (int i = 0; i < 20; ++i) model.set_parameter("stiffness", at::scalar_tensor(i, at::kDouble));
  stop = true;
  for (auto& caller : callers) caller.join();
  CHECK(model.parameter("stiffness").item<double>() == 19.0);
}

TEST_CASE("lazily conjugated outputs have the numbers that they stand for") {
  const auto model = Model::load(path("TF_CONJUGATE"));
  for (const auto& one : model.run_cases()) CHECK_MESSAGE(one.comparison.passed, one.comparison.reason);
  std::vector<std::complex<double>> z{{1, 2}, {3, -4}}, out(2);
  const int64_t shape[] = {2};
  const auto tensor = [&](std::complex<double>* data) {
    return tf_tensor{data, TF_COMPLEX128, 1, shape, nullptr, {TF_CPU, 0}};
  };
  model.call("forward", {tensor(z.data())}, {tensor(out.data())});
  CHECK(out[0] == std::complex<double>(3, -6));
  CHECK(out[1] == std::complex<double>(9, 12));
}

TEST_CASE("borrowed outputs are nobody else's") {
  const auto model = elastic();
  const auto& method = model.contract().method("forward");
  auto given = inputs(2);
  const std::vector<std::vector<int64_t>> shapes{{2, 3, 3}, {2, 3}, {2}};
  std::vector<tf_tensor> in;
  for (size_t i = 0; i < 3; ++i) in.push_back(view(given[i].mutable_data_ptr<double>(), shapes[i]));
  const auto first = model.borrow(method, in.data());
  const auto kept = first[0].clone();
  for (const auto& output : model.borrow(method, in.data()))
    std::fill_n(output.mutable_data_ptr<double>(), output.numel(), 0.0);
  CHECK(at::equal(first[0], kept));
  CHECK(at::equal(model.borrow(method, in.data())[0], kept));
  for (const auto& output : first) CHECK(output.storage().use_count() == 1);
}

TEST_CASE("errors") {
  const auto model = elastic();
  auto given = inputs(2);
  CHECK(status_of([&] { model({given[0]}); }) == TF_ERROR_COUNT);
  CHECK(status_of([&] { model({given[0], given[1], at::Tensor()}); }) == TF_ERROR_ARGUMENT);
  CHECK(status_of([&] { model({given[0], given[1], given[2].to(at::kFloat)}); }) == TF_ERROR_DTYPE);
  CHECK(status_of([&] { model({given[0], given[0], given[2]}); }) == TF_ERROR_SHAPE);
  CHECK(status_of([&] { model({given[0], given[1].to(at::kMeta), given[2]}); }) == TF_ERROR_DEVICE);
  CHECK(status_of([&] { model.call("jacobian", given); }) == TF_ERROR_NAME);
  CHECK(status_of([&] { model.call("forward", {{"F", given[0]}}); }) == TF_ERROR_NAME);
  CHECK(status_of([] { Model::load("nowhere.pt"); }) == TF_ERROR_FILE);
  CHECK(status_of([&] { model({given[0], given[1], at::rand({5}, at::kDouble)}); }) == TF_ERROR_SHAPE);
  const auto picks = Model::load(path("TF_PICKS"));
  CHECK(status_of([&] { picks({at::rand({1, 3}, at::kDouble), at::full({1}, 9, at::kLong)}); }) == TF_ERROR_MODEL);
}

TEST_CASE("moving to where it is keeps it") {
  auto model = elastic();
  model.to("cpu");
  model.synchronize();
  const auto given = inputs(2);
  CHECK(at::equal(model(given)[0], 2.5 * given[0].transpose(-1, -2)));
  CHECK(status_of([&] { model.to("cuda:97"); }) == TF_ERROR_UNAVAILABLE);
  CHECK(model.device().is_cpu());
}

TEST_CASE("comparison: NaN and infinities agree in place and sign, nothing else passes") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto t = [](std::vector<double> values) { return at::tensor(values, at::kDouble); };
  const Bounds bounds{1e-10, 1e-12};
  CHECK(compare(t({nan, inf, 1.0}), t({nan, inf, 1.0}), bounds).passed);
  CHECK(!compare(t({nan, 1.0}), t({1.0, 1.0}), bounds).passed);
  CHECK(!compare(t({1.0, 1.0}), t({1.0, nan}), bounds).passed);
  CHECK(!compare(t({-inf}), t({inf}), bounds).passed);
  CHECK(!compare(t({inf}), t({1e308}), bounds).passed);
  CHECK(!compare(t({1.0, 1.0 + 1e-6}), t({1.0, 1.0}), bounds).passed);
  CHECK(compare(t({1.0, 1.0 + 1e-6}), t({1.0, 1.0}), bounds).worst == std::vector<int64_t>{1});
  CHECK(!compare(t({1.0}), t({1.0, 1.0}), bounds).passed);
  CHECK(!compare(t({1.0}).to(at::kFloat), t({1.0}), bounds).passed);
  CHECK(compare(t({}), t({}), bounds).passed);
  CHECK(compare(t({std::nextafter(1.0, 2.0)}), t({1.0}), bounds).max_ulp == 1);
  CHECK(compare(t({5e-324}), t({-5e-324}), bounds).max_ulp == 2);
  // an output of size 1e-13 is not right because it is small
  CHECK(!compare(t({2e-13}), t({1e-13}), bounds).passed);
  CHECK(!compare(at::tensor({1, 2}), at::tensor({1, 3}), {}).passed);
  // a NaN in the real part is no NaN in the imaginary part
  CHECK(!compare(at::complex(t({nan}), t({5.0})), at::complex(t({1.0}), t({nan})), bounds).passed);
  CHECK(compare(at::complex(t({nan}), t({5.0})), at::complex(t({nan}), t({5.0})), bounds).passed);
}
