// hardening.i by hand for a GPU, one thread for each element, in the three ways of hardening_vectors.cpp: seven unknowns with
// exchanges of rows and a power of any exponent; the same without exchanges and with the exponent known; one equation.
// Numbers of neighbouring elements are neighbours.
#include <math.h>

namespace {

// Blocks beside each other on a multiprocessor.
#ifndef RESIDENT
#define RESIDENT 4
#endif

constexpr int N = 7, THREADS = 128;
constexpr double E = 210000.0, NU = 0.3, G = E / (2 * (1 + NU)), LAMBDA = E * NU / ((1 + NU) * (1 - 2 * NU));
constexpr double YIELD = 120.0, H = 1500.0, ETA = 200.0, EXPONENT = 2.0, ROOT = 0.81649658092772603;

struct Element {
  double guess[N], increment[6], old_stress[6], old_ep, dt;
};

__device__ Element read(const double* const* in, long at, long n) {
  Element e;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    e.guess[i] = in[0][at + i * n];
    e.increment[i] = in[2][at + i * n] - in[3][at + i * n];
    e.old_stress[i] = in[7][at + i * n];
  }
  e.guess[6] = in[1][at];
  e.dt = in[4][at] - in[5][at];
  e.old_ep = in[6][at];
  return e;
}

template <bool TUNED>
__device__ __forceinline__ void evaluate(const Element& e, const double (&u)[N], double (&r)[N], double (*J)[N][N]) {
  const double mean = (u[0] + u[1] + u[2]) / 3.0, ep = u[6];
  double deviator[6], square = 0.0, flow[6], elastic[6];
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    deviator[i] = i < 3 ? u[i] - mean : u[i];
    square += deviator[i] * deviator[i];
  }
  const double mises = sqrt(1.5 * square + 1e-30), by_mises = 1.0 / mises;
  const double excess = ROOT * (mises - YIELD - H * ep), over = fmax(excess / ETA, 0.0);
  const double rate = TUNED ? over * over : pow(over, EXPONENT);
  const double by_excess = TUNED ? 2.0 * over / ETA : over > 0.0 ? EXPONENT / ETA * rate / over : 0.0;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    flow[i] = ROOT * 1.5 * deviator[i] * by_mises;
    elastic[i] = e.increment[i] - e.dt * rate * flow[i];
  }
  const double pressure = LAMBDA * (elastic[0] + elastic[1] + elastic[2]);
#pragma unroll
  for (int i = 0; i < 6; ++i) r[i] = u[i] - e.old_stress[i] - 2 * G * elastic[i] - (i < 3 ? pressure : 0.0);
  r[6] = ep - e.old_ep - e.dt * ROOT * rate;
  if (!J) return;
  const double across = 2 * G * e.dt * (by_excess - rate * by_mises / ROOT), along = 2 * G * e.dt * rate * ROOT * 1.5 * by_mises;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
#pragma unroll
    for (int j = 0; j < 6; ++j)
      (*J)[i][j] = across * flow[i] * flow[j] - (i < 3 && j < 3 ? along / 3.0 : 0.0) + (i == j ? 1.0 + along : 0.0);
    (*J)[i][6] = -2 * G * ROOT * H * e.dt * by_excess * flow[i];
    (*J)[6][i] = -ROOT * e.dt * by_excess * flow[i];
  }
  (*J)[6][6] = 1.0 + ROOT * ROOT * H * e.dt * by_excess;
}

template <bool EXCHANGES>
__device__ __forceinline__ void eliminate(double (&A)[N][N], double (&x)[N]) {
  double inverse[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (EXCHANGES) {
      double largest = fabs(A[k][k]);
#pragma unroll
      for (int i = k + 1; i < N; ++i) {
        const bool exchanged = fabs(A[i][k]) > largest;
        largest = exchanged ? fabs(A[i][k]) : largest;
#pragma unroll
        for (int j = k; j < N; ++j) {
          const double upper = A[k][j], lower = A[i][j];
          A[k][j] = exchanged ? lower : upper;
          A[i][j] = exchanged ? upper : lower;
        }
        const double upper = x[k], lower = x[i];
        x[k] = exchanged ? lower : upper;
        x[i] = exchanged ? upper : lower;
      }
    }
    inverse[k] = 1.0 / A[k][k];
#pragma unroll
    for (int i = k + 1; i < N; ++i) {
      const double factor = A[i][k] * inverse[k];
#pragma unroll
      for (int j = k + 1; j < N; ++j) A[i][j] -= factor * A[k][j];
      x[i] -= factor * x[k];
    }
  }
#pragma unroll
  for (int k = N - 1; k >= 0; --k) {
    x[k] *= inverse[k];
#pragma unroll
    for (int i = 0; i < k; ++i) x[i] -= A[i][k] * x[k];
  }
}

__device__ __forceinline__ double size(const double (&r)[N]) {
  double square = 0.0;
#pragma unroll
  for (int i = 0; i < N; ++i) square += r[i] * r[i];
  return sqrt(square);
}

template <bool TUNED>
__device__ bool solve_seven(const Element& e, double (&u)[N]) {
  double first = 0.0;
  for (int i = 0; i < N; ++i) u[i] = e.guess[i];
  for (int count = 0; count <= 25; ++count) {
    double r[N], J[N][N], step[N];
    evaluate<TUNED>(e, u, r, &J);
    const double norm = size(r);
    if (!(norm < INFINITY)) return false;
    if (count == 0) first = norm;
    const bool small = norm < 1e-10 || (count && norm < 1e-8 * first);
    for (int i = 0; i < N; ++i) step[i] = -r[i];
    eliminate<!TUNED>(J, step);
    for (int i = 0; i < N; ++i) step[i] += u[i];
    if (small) {
      evaluate<TUNED>(e, step, r, nullptr);
      if (size(r) <= norm)
        for (int i = 0; i < N; ++i) u[i] = step[i];
      return true;
    }
    for (int i = 0; i < N; ++i) u[i] = step[i];
  }
  return false;
}

__device__ bool solve_one(const Element& e, double (&u)[N]) {
  double trial[6], square = 0.0;
  const double volume = e.increment[0] + e.increment[1] + e.increment[2];
#pragma unroll
  for (int i = 0; i < 6; ++i) trial[i] = e.old_stress[i] + 2 * G * e.increment[i] + (i < 3 ? LAMBDA * volume : 0.0);
  const double mean = (trial[0] + trial[1] + trial[2]) / 3.0;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    const double deviator = i < 3 ? trial[i] - mean : trial[i];
    square += deviator * deviator;
  }
  const double mises = sqrt(1.5 * square + 1e-30), beyond = mises - YIELD - H * e.old_ep;
  const double factor = e.dt * (2 * G / ROOT + ROOT * H);
  double x = fmin(fmax(beyond * (ROOT / ETA), 0.0), sqrt(fmax(beyond, 0.0) / factor));
  bool active = beyond > 0.0;
  for (int count = 0; count < 25 && active; ++count) {
    const double left = x * (ETA / ROOT) + factor * x * x - beyond;
    x -= left / (ETA / ROOT + 2.0 * factor * x);
    active = fabs(left) > 1e-12 * beyond;
  }
  const double rate = x * x, back = 2 * G * e.dt * rate * (ROOT * 1.5) / mises;
#pragma unroll
  for (int i = 0; i < 6; ++i) u[i] = trial[i] - back * (i < 3 ? trial[i] - mean : trial[i]);
  u[6] = e.old_ep + e.dt * ROOT * rate;
  return !active;
}

struct Arrays {
  const double* in[8];
  double* out[2];
};

template <int WAY>
__global__ void __launch_bounds__(THREADS, RESIDENT) run(long n, Arrays arrays) {
  const long at = (long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= n) return;
  const Element e = read(arrays.in, at, n);
  double u[N];
  const bool good = WAY == 0 ? solve_seven<false>(e, u) : WAY == 1 ? solve_seven<true>(e, u) : solve_one(e, u);
#pragma unroll
  for (int i = 0; i < 6; ++i) arrays.out[0][at + i * n] = good ? u[i] : NAN;
  arrays.out[1][at] = good ? u[6] : NAN;
}

template <int WAY>
int launch(long n, const double* const* in, double* const* out) {
  Arrays arrays;
  for (int i = 0; i < 8; ++i) arrays.in[i] = in[i];
  for (int i = 0; i < 2; ++i) arrays.out[i] = out[i];
  run<WAY><<<(unsigned)((n + THREADS - 1) / THREADS), THREADS>>>(n, arrays);
  return cudaGetLastError() != cudaSuccess;
}

}  // namespace

extern "C" int by_hand_vectors(long n, const double* const* in, double* const* out) { return launch<0>(n, in, out); }
extern "C" int by_hand_tuned(long n, const double* const* in, double* const* out) { return launch<1>(n, in, out); }
extern "C" int by_hand_scalar(long n, const double* const* in, double* const* out) { return launch<2>(n, in, out); }
