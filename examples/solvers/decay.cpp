// Heun's method for dy/dt = rate(y, k, t), with the rate from an archive: decay_cpp ARCHIVE
#include <cstdio>

#include <ATen/ATen.h>
#include <torchferry/model.hpp>

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: decay_cpp ARCHIVE\n"), 2;
  const auto model = torchferry::Model::load(argv[1]);
  for (const auto& one : model.run_cases())  // the numbers of eager mode, here
    if (!one.comparison.passed) return std::fprintf(stderr, "case %s differs\n", one.name.c_str()), 1;

  const double dt = 0.01;
  auto y = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble);
  auto heat = at::zeros_like(y);
  const auto k = at::tensor({0.5, 1.0, 1.5, 2.0}, at::kDouble);
  for (int step = 0; step < 200; ++step) {
    const auto t = at::full_like(y, step * dt);
    const auto first = model({y, k, t});  // rate, heat
    const auto second = model({y + dt * first[0], k, t + dt});
    heat = heat + 0.5 * dt * (first[1] + second[1]);
    y = y + 0.5 * dt * (first[0] + second[0]);
  }
  for (int i = 0; i < 4; ++i) std::printf("%24.16e %24.16e\n", y[i].item<double>(), heat[i].item<double>());
} catch (const torchferry::Error& error) {
  return std::fprintf(stderr, "decay_cpp: %s\n", error.what()), 1;
}
