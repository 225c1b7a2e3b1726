// stress ARCHIVE threads CALLS: eight threads on one shared handle; every output must have the bits of the first.
// stress ARCHIVE race COUNT: two threads on one number, for the sanitizer of threads to find.
// stress ARCHIVE sizes COUNT: so many different batch sizes; prints the resident memory before and after, in kB.
// stress ARCHIVE leaks COUNT: the same, with results that are borrowed and never freed.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <torchferry/torchferry.h>

namespace {

long resident() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.rfind("VmRSS:", 0) == 0) return std::atol(line.c_str() + 6);
  return -1;
}

/// Elastic's variables for a batch of n, each element another.
struct Elastic {
  explicit Elastic(int64_t n, double seed = 0.25) : n(n), f(9 * n), v(3 * n), s(n), force(9 * n), pushed(3 * n), energy(n) {
    for (size_t i = 0; i < f.size(); ++i) f[i] = seed + 0.125 * static_cast<double>(i % 17);
    for (size_t i = 0; i < v.size(); ++i) v[i] = seed - 0.5 * static_cast<double>(i % 5);
    for (size_t i = 0; i < s.size(); ++i) s[i] = seed * static_cast<double>(i % 3 + 1);
  }
  tf_status call(tf_model model, bool leak = false) {
    const tf_tensor in[] = {{f.data(), TF_FLOAT64, 3, shape, nullptr, {TF_CPU, 0}},
                            {v.data(), TF_FLOAT64, 2, shape, nullptr, {TF_CPU, 0}},
                            {s.data(), TF_FLOAT64, 1, shape, nullptr, {TF_CPU, 0}}};
    const tf_tensor out[] = {{force.data(), TF_FLOAT64, 3, shape, nullptr, {TF_CPU, 0}},
                             {pushed.data(), TF_FLOAT64, 2, shape, nullptr, {TF_CPU, 0}},
                             {energy.data(), TF_FLOAT64, 1, shape, nullptr, {TF_CPU, 0}}};
    tf_result never_freed;
    return leak ? tf_call_borrow(model, nullptr, 3, in, &never_freed) : tf_call(model, nullptr, 3, in, 3, out);
  }
  int64_t n;
  int64_t shape[3] = {n, 3, 3};
  std::vector<double> f, v, s, force, pushed, energy;
};

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  tf_model model = nullptr;
  if (tf_load(argv[1], "cpu", nullptr, &model) != TF_OK) return std::fprintf(stderr, "%s\n", tf_last_error(nullptr)), 1;
  const long count = std::atol(argv[3]);
  if (std::string(argv[2]) == "threads") {
    std::atomic<long> mismatches{0}, calls{0}, wrong_messages{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        Elastic first(t + 1, 0.25 * (t + 1)), again(t + 1, 0.25 * (t + 1));
        if (first.call(model) != TF_OK) ++mismatches;
        for (long i = 0; i < count / 8; ++i) {
          if (again.call(model) != TF_OK || !same(again.force, first.force) || !same(again.pushed, first.pushed) ||
              !same(again.energy, first.energy))
            ++mismatches;
          ++calls;
          // Each thread sees its own last error, whatever the others do with the handle.
          if (i % 100 == 0) {
            const auto name = "thread" + std::to_string(t);
            int32_t number = 0;
            if (tf_input_count(model, name.c_str(), &number) != TF_ERROR_NAME ||
                std::string(tf_last_error(model)).find(name) == std::string::npos)
              ++wrong_messages;
          }
        }
      });
    for (auto& thread : threads) thread.join();
    std::printf("%ld calls, %ld mismatches, %ld wrong messages\n", calls.load(), mismatches.load(),
                wrong_messages.load());
    return mismatches || wrong_messages ? 1 : 0;
  }
  if (std::string(argv[2]) == "race") {
    volatile long shared = 0;
    const auto add = [&] {
      for (long i = 0; i < count; ++i) shared = shared + 1;
    };
    std::thread first(add), second(add);
    first.join(), second.join();
    return 0;
  }
  // Memory that the largest batch needs is taken first; what grows after that is kept for a size.
  for (int i = 0; i < 50; ++i) Elastic(count + 10).call(model);
  const long before = resident();
  for (long n = 1; n <= count; ++n)
    if (Elastic(n).call(model, std::string(argv[2]) == "leaks") != TF_OK) return std::fprintf(stderr, "%s\n", tf_last_error(model)), 1;
  std::printf("%ld %ld\n", before, resident());
  return tf_close(model) == TF_OK ? 0 : 1;
}
