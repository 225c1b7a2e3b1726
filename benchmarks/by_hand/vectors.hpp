// Eight elements at once by the vectors of GCC and Clang, as somebody writes them who knows the machine: Newton's method of
// newton.hpp, which goes on until all eight have ended, and Gaussian elimination with and without exchanges of rows.
#pragma once

#include <cmath>
#include <limits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

constexpr int LANES = 8;
typedef double Numbers __attribute__((vector_size(8 * LANES)));
typedef long long Mask __attribute__((vector_size(8 * LANES)));

// glibc's vector mathematics (libmvec), at most 4 units in the last place, where the processor has such vectors.
#if defined(__AVX512F__) && defined(__GLIBC__)
extern "C" Numbers _ZGVeN8vv_pow(Numbers, Numbers);
inline Numbers power(Numbers x, Numbers exponent) { return _ZGVeN8vv_pow(x, exponent); }
#else
inline Numbers power(Numbers x, Numbers exponent) {
  for (int l = 0; l < LANES; ++l) x[l] = std::pow(x[l], exponent[l]);
  return x;
}
#endif

inline Numbers fill(double value) { return Numbers{} + value; }

#if defined(__AVX512F__)
inline bool any(Mask mask) { return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0; }
#else
inline bool any(Mask mask) {
  long long all = 0;
  for (int l = 0; l < LANES; ++l) all |= mask[l];
  return all != 0;
}
#endif

inline Numbers root(Numbers x) {
  for (int l = 0; l < LANES; ++l) x[l] = std::sqrt(x[l]);
  return x;
}

inline Numbers magnitude(Numbers x) { return (Numbers)((Mask)x & 0x7fffffffffffffffLL); }
inline Numbers larger(Numbers x, double least) { return x > least ? x : fill(least); }

/// Numbers of eight elements, `step` apart; lanes beyond the last element repeat it.
inline Numbers load(const double* from, long step, long left) {
  Numbers x;
  for (int l = 0; l < LANES; ++l) x[l] = from[(l < left ? l : left - 1) * step];
  return x;
}

inline void store(Numbers x, double* to, long step, long left) {
  for (int l = 0; l < LANES && l < left; ++l) to[l * step] = x[l];
}

template <bool EXCHANGES, int N>
inline void eliminate(Numbers (&A)[N][N], Numbers (&x)[N]) {
  Numbers inverse[N];
  for (int k = 0; k < N; ++k) {
    if (EXCHANGES) {
      Numbers largest = magnitude(A[k][k]);
      for (int i = k + 1; i < N; ++i) {
        const Numbers own = magnitude(A[i][k]);
        const Mask exchanged = own > largest;
        // Half of the time: no element exchanges these rows.
        if (!any(exchanged)) continue;
        largest = exchanged ? own : largest;
        for (int j = k; j < N; ++j) {
          const Numbers upper = A[k][j], lower = A[i][j];
          A[k][j] = exchanged ? lower : upper;
          A[i][j] = exchanged ? upper : lower;
        }
        const Numbers upper = x[k], lower = x[i];
        x[k] = exchanged ? lower : upper;
        x[i] = exchanged ? upper : lower;
      }
    }
    inverse[k] = 1.0 / A[k][k];
    for (int i = k + 1; i < N; ++i) {
      const Numbers factor = A[i][k] * inverse[k];
      for (int j = k + 1; j < N; ++j) A[i][j] -= factor * A[k][j];
      x[i] -= factor * x[k];
    }
  }
  for (int k = N - 1; k >= 0; --k) {
    x[k] *= inverse[k];
    for (int i = 0; i < k; ++i) x[i] -= A[i][k] * x[k];
  }
}

template <int N>
inline Numbers size(const Numbers (&r)[N]) {
  Numbers square{};
  for (int i = 0; i < N; ++i) square += r[i] * r[i];
  return root(square);
}

/// `evaluate(u, residual, Jacobian or null)`; which elements have converged, from the guess `u` to the solution.
template <bool EXCHANGES, int N, class Evaluate>
inline Mask newton(Numbers (&u)[N], double abs_tol, double rel_tol, int max_its, const Evaluate& evaluate) {
  Numbers first{};
  Mask active = Numbers{} == 0.0, converged = active ^ active;
  for (int count = 0; count <= max_its && any(active); ++count) {
    Numbers r[N], J[N][N], step[N], last[N];
    evaluate(u, r, &J);
    const Numbers norm = size(r);
    if (count == 0) first = norm;
    for (int i = 0; i < N; ++i) step[i] = -r[i];
    eliminate<EXCHANGES>(J, step);
    const Mask finite = norm < std::numeric_limits<double>::infinity();
    Mask small = norm < abs_tol;
    if (count) small |= norm < rel_tol * first;
    const Mask ended = active & small & finite;
    active &= finite & ~small;
    for (int i = 0; i < N; ++i) last[i] = u[i] + step[i];
    if (any(ended)) {
      Numbers rest[N];
      evaluate(last, rest, static_cast<Numbers(*)[N][N]>(nullptr));
      const Mask closer = ended & (size(rest) <= norm);
      for (int i = 0; i < N; ++i) u[i] = closer ? last[i] : u[i];
      converged |= ended;
    }
    for (int i = 0; i < N; ++i) u[i] = active ? last[i] : u[i];
  }
  return converged;
}
