// Newton's method on seven unknowns, one element after the other: Gaussian elimination with partial pivoting, and the rule
// that ends it of exporter/model/implicit/newton_solver.py.
#pragma once

#include <cmath>

constexpr int N = 7;

inline bool solve(double (*A)[N], double* x) {
  for (int k = 0; k < N; ++k) {
    int p = k;
    for (int i = k + 1; i < N; ++i)
      if (std::fabs(A[i][k]) > std::fabs(A[p][k])) p = i;
    if (A[p][k] == 0.0) return false;
    if (p != k) {
      for (int j = k; j < N; ++j) {
        const double t = A[k][j];
        A[k][j] = A[p][j];
        A[p][j] = t;
      }
      const double t = x[k];
      x[k] = x[p];
      x[p] = t;
    }
    const double inverse = 1 / A[k][k];
    for (int i = k + 1; i < N; ++i) {
      const double factor = A[i][k] * inverse;
      for (int j = k + 1; j < N; ++j) A[i][j] -= factor * A[k][j];
      x[i] -= factor * x[k];
    }
  }
  for (int k = N - 1; k >= 0; --k) {
    for (int j = k + 1; j < N; ++j) x[k] -= A[k][j] * x[j];
    x[k] /= A[k][k];
  }
  return true;
}

inline double size(const double* r) {
  double square = 0;
  for (int i = 0; i < N; ++i) square += r[i] * r[i];
  return std::sqrt(square);
}

/// ``evaluate(u, residual, jacobian or null)``; whether it has converged, from the guess ``u`` to the solution.
template <class Evaluate>
bool newton(double* u, double abs_tol, double rel_tol, int max_its, const Evaluate& evaluate) {
  double r[N], J[N][N], step[N], first = 0;
  for (int count = 0; count <= max_its; ++count) {
    evaluate(u, r, J);
    const double norm = size(r);
    if (count == 0) first = norm;
    for (int i = 0; i < N; ++i) step[i] = -r[i];
    if (!std::isfinite(norm) || !solve(J, step)) return false;
    if (norm < abs_tol || (count && norm / first < rel_tol)) {
      double last[N], rest[N];
      for (int i = 0; i < N; ++i) last[i] = u[i] + step[i];
      evaluate(last, rest, nullptr);
      if (size(rest) <= norm)
        for (int i = 0; i < N; ++i) u[i] = last[i];
      return true;
    }
    for (int i = 0; i < N; ++i) u[i] += step[i];
  }
  return false;
}
