#include <algorithm>
#include <chrono>
#include <cstdio>

#include <ATen/ATen.h>

#include "harness.hpp"

namespace torchferry::harness {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Rows of a stored case, repeated to a batch of `rows`; a case without a batch is taken whole.
Tensors inputs_of(const Model& model, const Case& one, int64_t rows) {
  Tensors inputs;
  for (const auto& stored : one.inputs) {
    auto value = stored;
    if (model.contract().batch_ndim) {
      const auto index = at::arange(rows, at::kLong).remainder(std::max<int64_t>(stored.size(0), 1));
      value = stored.index_select(0, index);
    }
    inputs.push_back(value.contiguous().to(model.device()));
  }
  return inputs;
}

double call(const Model& model, const std::string& method, const Tensors& inputs) {
  const auto start = Clock::now();
  model.call(method, inputs);
  model.synchronize();
  return milliseconds(start);
}

}  // namespace

nlohmann::json latency(const std::string& path, const std::string& device, const Options& options) {
  auto curve = nlohmann::json::array();
  for (const int64_t rows : {1, 10, 100, 1000, 10000, 100000}) {
    // Loaded anew: the first calls of a process are what a user waits for.
    const auto start = Clock::now();
    const auto model = Model::load(path, device, options);
    const double load = milliseconds(start);
    const auto cases = model.cases();
    const auto inputs = inputs_of(model, cases.front(), rows);
    nlohmann::json first = nlohmann::json::array();
    for (int i = 0; i < 5; ++i) first.push_back(call(model, cases.front().method, inputs));
    std::vector<double> steady;
    const auto until = Clock::now() + std::chrono::milliseconds(300);
    while (steady.size() < 20 || (Clock::now() < until && steady.size() < 20000))
      steady.push_back(call(model, cases.front().method, inputs));
    std::sort(steady.begin(), steady.end());
    curve.push_back({{"batch", rows},
                     {"load_ms", load},
                     {"first_calls_ms", first},
                     {"median_ms", steady[steady.size() / 2]},
                     {"p99_ms", steady[steady.size() * 99 / 100]},
                     {"calls", steady.size()}});
    if (!model.contract().batch_ndim) break;
  }
  return curve;
}

void print_latency(const nlohmann::json& curve) {
  std::printf("\n%8s %9s %46s %11s %11s   (ms)\n", "batch", "load", "calls 1 to 5", "median", "p99");
  for (const auto& point : curve) {
    std::printf("%8lld %9.2f", static_cast<long long>(point["batch"].get<int64_t>()), point["load_ms"].get<double>());
    for (const auto& value : point["first_calls_ms"]) std::printf(" %8.4f", value.get<double>());
    std::printf("  %11.4f %11.4f\n", point["median_ms"].get<double>(), point["p99_ms"].get<double>());
  }
}

}  // namespace torchferry::harness
