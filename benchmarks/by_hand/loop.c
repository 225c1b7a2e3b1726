/* Seconds of many calls, of a kernel's function, of one that is prepared, and of one that was written by hand: without Python between them. */
#define _POSIX_C_SOURCE 199309L
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int kernel(ptrdiff_t, const void *, const void *, const void *const *, int32_t *, void *);
typedef int prepared(void *, const void *const *, void *const *, int32_t *, void *);
typedef void hand(long, const double *const *, double *const *);

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

double kernel_seconds(kernel *run, long times, long n, const void *in, const void *out) {
  const double start = now();
  for (long i = 0; i < times; i++) run(n, in, out, 0, 0, 0);
  return (now() - start) / (double)times;
}

double prepared_seconds(prepared *run, long times, void *call, const void *const *in, void *const *out) {
  const double start = now();
  for (long i = 0; i < times; i++) run(call, in, out, 0, 0);
  return (now() - start) / (double)times;
}

double hand_seconds(hand *run, long times, long n, const double *const *in, double *const *out) {
  const double start = now();
  for (long i = 0; i < times; i++) run(n, in, out);
  return (now() - start) / (double)times;
}
