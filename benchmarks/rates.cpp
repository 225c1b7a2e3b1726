// The three rates of examples/rates by hand: one loop, each value read and written once.
extern "C" void rates(long n, const double* const* in, double* const* out) {
  const double* a = in[0];
  const double* a0 = in[1];
  const double* t = in[2];
  const double* t0 = in[3];
  const double* b = in[4];
  const double* b0 = in[5];
  const double* c = in[6];
  const double* c0 = in[7];
#pragma GCC ivdep
  for (long i = 0; i < n; ++i) {
    const double step = t[i] - t0[i];
    out[0][i] = (a[i] - a0[i]) / step;
    out[1][i] = (b[i] - b0[i]) / step;
    out[2][i] = (c[i] - c0[i]) / step;
  }
}
