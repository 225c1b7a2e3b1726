/* Times calls of a UMAT and of the kernel that it is made on, in turn; prints seconds of a call of each.
   make_model.h is the return map's; the strains go through yield. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "make_model.h"

enum { CALLS = 20000, ROUNDS = 15 };
extern void umat_();

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void) {
  double best[2] = { 1e9, 1e9 }, sum = 0.0;
  const int ndi = 3, nshr = 3, ntens = 6, nstatv = 1, nprops = 0;
  for (int round = 0; round < ROUNDS; round++) {
    double start = now();
    for (int i = 0; i < CALLS; i++) {
      double stress[6] = { 0 }, statev[1] = { 0 }, ddsdde[36], stran[6] = { 0 }, dstran[6] = { 0 }, time[2] = { 0 }, dtime = 1, pnewdt = 1;
      dstran[0] = 1e-3 + 1e-7 * (i % 20000);
      dstran[3] = 1e-3;
      umat_(stress, statev, ddsdde, NULL, NULL, NULL, NULL, NULL, NULL, NULL, stran, dstran, time, &dtime, NULL, NULL, NULL, NULL,
          NULL, &ndi, &nshr, &ntens, &nstatv, NULL, &nprops, NULL, NULL, &pnewdt, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
      sum += stress[0];
    }
    double seconds = (now() - start) / CALLS;
    if (seconds < best[0]) best[0] = seconds;
    start = now();
    for (int i = 0; i < CALLS; i++) {
      double strain[6] = { 0 }, old[6] = { 0 }, stress_old[6] = { 0 }, ep_old = 0, stress[6], ep, block[36];
      strain[0] = 1e-3 + 1e-7 * (i % 20000);
      strain[5] = 1e-3 / 1.4142135623730951;
      const make_model_array in[] = { { strain, NULL }, { old, NULL }, { stress_old, NULL }, { &ep_old, NULL } };
      const make_model_array out[] = { { stress, NULL }, { &ep, NULL }, { block, NULL } };
      make_model_jacobian(1, in, out, NULL, NULL, NULL);
      sum -= stress[0];
    }
    seconds = (now() - start) / CALLS;
    if (seconds < best[1]) best[1] = seconds;
  }
  printf("%.6e %.6e %.3e\n", best[0], best[1], sum);
  return 0;
}
