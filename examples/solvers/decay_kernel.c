/* Heun's method for dy/dt = rate(y, k, t), with the rate as a kernel: no library but libm.
 *   torchferry export examples/solvers/decay.py:make_model --format c -o kernel
 *   cc -O2 -Ikernel decay_kernel.c kernel/make_model.c -lm -o decay_kernel */
#include "make_model.h"
#include <stdio.h>

enum { N = 4, STEPS = 200 };

int main(void) {
  double y[N] = {1, 2, 3, 4}, k[N] = {0.5, 1, 1.5, 2}, heat[N] = {0};
  double t[N], guess[N], rate1[N], heat1[N], rate2[N], heat2[N];
  const double dt = 0.01;
  const make_model_array now[] = {{y, NULL}, {k, NULL}, {t, NULL}}, first[] = {{rate1, NULL}, {heat1, NULL}};
  const make_model_array then[] = {{guess, NULL}, {k, NULL}, {t, NULL}}, second[] = {{rate2, NULL}, {heat2, NULL}};

  for (int step = 0; step < STEPS; ++step) {
    for (int i = 0; i < N; ++i) t[i] = step * dt;
    if (make_model_forward(N, now, first, NULL, NULL, NULL) != MAKE_MODEL_OK) return 1;
    for (int i = 0; i < N; ++i) guess[i] = y[i] + dt * rate1[i], t[i] += dt;
    if (make_model_forward(N, then, second, NULL, NULL, NULL) != MAKE_MODEL_OK) return 1;
    for (int i = 0; i < N; ++i) {
      heat[i] += 0.5 * dt * (heat1[i] + heat2[i]);
      y[i] += 0.5 * dt * (rate1[i] + rate2[i]);
    }
  }
  for (int i = 0; i < N; ++i) printf("%24.16e %24.16e\n", y[i], heat[i]);
  return 0;
}
