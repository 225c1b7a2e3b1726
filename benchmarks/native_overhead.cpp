// native_overhead ARCHIVE: what the interfaces cost over a bare torch::jit::Module::forward, side by side in one run.
// Prints JSON: nanoseconds a call (the median over rounds that take turns), ratios, and the copies that torch makes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/script.h>
#include <torchferry/model.hpp>

namespace {

std::atomic<int> copies{0};

std::unique_ptr<at::ObserverContext> count_copy(const at::RecordFunction& fn) {
  static const char* const kinds[] = {"aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy"};
  for (const char* kind : kinds)
    if (std::strcmp(fn.name(), kind) == 0) ++copies;
  return nullptr;
}

int copies_in(const std::function<void()>& call) {
  copies = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(count_copy).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return copies;
}

double nanoseconds(const std::function<void()>& call, int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / calls;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  at::set_num_threads(1);
  c10::InferenceMode guard;
  auto bare = torch::jit::load(argv[1]);
  bare.eval();
  torch::jit::FusionStrategy none = {{torch::jit::FusionBehavior::STATIC, 0}};
  torch::jit::setFusionStrategy(none);
  const auto frozen = torch::jit::freeze(bare);
  const auto model = torchferry::Model::load(argv[1]);
  tf_model handle = nullptr;
  if (tf_load(argv[1], "cpu", nullptr, &handle) != TF_OK) return 1;

  const auto& method = model.contract().method("forward");
  std::printf("{");
  const char* comma = "";
  for (const int64_t rows : {1, 100, 10000}) {
    std::vector<at::Tensor> inputs;
    std::vector<torch::IValue> values;
    std::vector<std::vector<double>> buffers;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<tf_tensor> in, out;
    for (const auto& variable : method.inputs) {
      auto shape = variable.shape;
      shape.insert(shape.begin(), rows);
      inputs.push_back(at::rand(shape, at::kDouble));
      values.emplace_back(inputs.back());
    }
    buffers.reserve(method.outputs.size());
    shapes.reserve(method.inputs.size() + method.outputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      shapes.push_back(inputs[i].sizes().vec());
      in.push_back(torchferry::view(inputs[i].mutable_data_ptr<double>(), shapes.back()));
    }
    for (const auto& output : method.outputs) {
      auto shape = output.shape;
      shape.insert(shape.begin(), rows);
      shapes.push_back(shape);
      buffers.emplace_back(c10::multiply_integers(shape));
      out.push_back(torchferry::view(buffers.back().data(), shapes.back()));
    }
    auto plain = frozen;
    const std::vector<std::pair<std::string, std::function<void()>>> ways = {
        {"frozen forward", [&] { plain.forward(values); }},
        {"forward", [&] { bare.forward(values); }},
        {"forward by hand", [&] {
           // What a host with memory of its own writes against libtorch alone.
           std::vector<torch::IValue> wrapped;
           for (size_t i = 0; i < in.size(); ++i)
             wrapped.emplace_back(at::from_blob(in[i].data, inputs[i].sizes(), at::kDouble));
           const auto result = bare.forward(wrapped).toTuple();
           for (size_t i = 0; i < out.size(); ++i)
             at::from_blob(out[i].data, at::IntArrayRef(out[i].shape, out[i].rank), at::kDouble)
                 .copy_(result->elements()[i].toTensor());
         }},
        {"C++", [&] { model(inputs); }},
        {"C", [&] { tf_call(handle, nullptr, int32_t(in.size()), in.data(), int32_t(out.size()), out.data()); }},
        {"C, borrowed", [&] {
           tf_result result;
           tf_call_borrow(handle, nullptr, int32_t(in.size()), in.data(), &result);
           tf_result_free(result);
         }}};
    const int calls = rows > 1000 ? 500 : 5000;
    std::vector<std::vector<double>> times(ways.size());
    for (int round = 0; round < 21; ++round)
      for (size_t w = 0; w < ways.size(); ++w) times[w].push_back(nanoseconds(ways[w].second, calls));
    std::printf("%s\"batch %lld\": {", comma, static_cast<long long>(rows));
    const char* inner = "";
    std::sort(times[1].begin(), times[1].end());
    const double base = times[1][10];
    for (size_t w = 0; w < ways.size(); ++w) {
      std::sort(times[w].begin(), times[w].end());
      std::printf("%s\"%s\": {\"ns\": %.0f, \"ratio\": %.3f, \"copies\": %d}", inner, ways[w].first.c_str(), times[w][10],
                  times[w][10] / base, copies_in(ways[w].second));
      inner = ", ";
    }
    std::printf("}");
    comma = ", ";
  }
  std::printf("}\n");
}
