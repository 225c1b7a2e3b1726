/* Heun's method for dy/dt = rate(y, k, t), with the rate from an archive: decay ARCHIVE */
#include <stdio.h>
#include <torchferry/torchferry.h>

enum { N = 4, STEPS = 200 };

static int fail(tf_model model) {
  fprintf(stderr, "decay: %s\n", tf_last_error(model));
  return 1;
}

int main(int argc, char** argv) {
  double y[N] = {1, 2, 3, 4}, k[N] = {0.5, 1, 1.5, 2}, heat[N] = {0};
  double t[N], guess[N], rate1[N], heat1[N], rate2[N], heat2[N];
  const double dt = 0.01;
  const int64_t shape[] = {N};
  tf_model model;

  if (argc != 2) return fprintf(stderr, "usage: decay ARCHIVE\n"), 2;
  if (tf_load(argv[1], "cpu", NULL, &model) != TF_OK) return fail(NULL);
  if (tf_run_cases(model, NULL, NULL) != TF_OK) return fail(model); /* the numbers of eager mode, here */

#define ARRAY(x) {x, TF_FLOAT64, 1, shape, NULL, {TF_CPU, 0}}
  const tf_tensor now[] = {ARRAY(y), ARRAY(k), ARRAY(t)}, first[] = {ARRAY(rate1), ARRAY(heat1)};
  const tf_tensor then[] = {ARRAY(guess), ARRAY(k), ARRAY(t)}, second[] = {ARRAY(rate2), ARRAY(heat2)};
  for (int step = 0; step < STEPS; ++step) {
    for (int i = 0; i < N; ++i) t[i] = step * dt;
    if (tf_call(model, "forward", 3, now, 2, first) != TF_OK) return fail(model);
    for (int i = 0; i < N; ++i) guess[i] = y[i] + dt * rate1[i], t[i] += dt;
    if (tf_call(model, "forward", 3, then, 2, second) != TF_OK) return fail(model);
    for (int i = 0; i < N; ++i) {
      heat[i] += 0.5 * dt * (heat1[i] + heat2[i]);
      y[i] += 0.5 * dt * (rate1[i] + rate2[i]);
    }
  }
  for (int i = 0; i < N; ++i) printf("%24.16e %24.16e\n", y[i], heat[i]);
  tf_close(model);
  return 0;
}
