/* Heun's method for dy/dt = rate(y, k, t) on a GPU, with the rate as a kernel: everything stays in the device's memory.
 *   torchferry export examples/solvers/decay.py:make_model --format cuda -o kernel
 *   nvcc -O2 -fmad=false -arch=native -Ikernel decay_gpu.cu kernel/make_model.cu -o decay_gpu */
#include "make_model_cuda.h"
#include <stdio.h>

enum { N = 4, STEPS = 200 };
/* The variables, one after the other: each has a number for each of the N elements. */
enum { Y, K, T, GUESS, RATE1, HEAT1, RATE2, HEAT2, HEAT, VARIABLES };

static const double dt = 0.01;

__global__ void predict(double *x, int step) {
  const int i = threadIdx.x;
  x[GUESS * N + i] = x[Y * N + i] + dt * x[RATE1 * N + i];
  x[T * N + i] = step * dt + dt;
}

__global__ void correct(double *x, int step) {
  const int i = threadIdx.x;
  x[HEAT * N + i] += 0.5 * dt * (x[HEAT1 * N + i] + x[HEAT2 * N + i]);
  x[Y * N + i] += 0.5 * dt * (x[RATE1 * N + i] + x[RATE2 * N + i]);
  x[T * N + i] = (step + 1) * dt;
}

int main() {
  double start[VARIABLES * N] = {1, 2, 3, 4, 0.5, 1, 1.5, 2}, *x = NULL;
  void *workspace = NULL;
  if (cudaMalloc(&x, sizeof start) || cudaMalloc(&workspace, make_model_cuda_forward_workspace() + 1)) return 1;
  if (cudaMemcpy(x, start, sizeof start, cudaMemcpyHostToDevice)) return 1;
  const make_model_array now[] = {{x + Y * N, NULL}, {x + K * N, NULL}, {x + T * N, NULL}};
  const make_model_array then[] = {{x + GUESS * N, NULL}, {x + K * N, NULL}, {x + T * N, NULL}};
  const make_model_array first[] = {{x + RATE1 * N, NULL}, {x + HEAT1 * N, NULL}};
  const make_model_array second[] = {{x + RATE2 * N, NULL}, {x + HEAT2 * N, NULL}};

  /* Calls follow each other in the default stream; nothing waits until the end. */
  for (int step = 0; step < STEPS; ++step) {
    if (make_model_cuda_forward(N, now, first, NULL, NULL, workspace, NULL) != MAKE_MODEL_OK) return 1;
    predict<<<1, N>>>(x, step);
    if (make_model_cuda_forward(N, then, second, NULL, NULL, workspace, NULL) != MAKE_MODEL_OK) return 1;
    correct<<<1, N>>>(x, step);
  }
  if (cudaMemcpy(start, x, sizeof start, cudaMemcpyDeviceToHost)) return 1;
  for (int i = 0; i < N; ++i) printf("%24.16e %24.16e\n", start[Y * N + i], start[HEAT * N + i]);
  return 0;
}
