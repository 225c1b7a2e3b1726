// hardening.i by hand: one element after the other, seven unknowns, Newton's method with its analytic
// Jacobian and Gaussian elimination with partial pivoting; the rule that ends it is that of exporter/model/implicit/newton_solver.py.
#include "newton.hpp"

namespace {

constexpr double E = 210000.0, NU = 0.3, G = E / (2 * (1 + NU)), LAMBDA = E * NU / ((1 + NU) * (1 - 2 * NU));
constexpr double YIELD = 120.0, H = 1500.0, ETA = 200.0;
// NEML2's yield function is this times the distance of the Mises stress from the yield stress.
const double ROOT = std::sqrt(2.0 / 3.0);

struct Element {
  double increment[6], old_stress[6], old_ep, dt;
};

void evaluate(const Element& e, const double* u, double* r, double (*J)[N]) {
  const double mean = (u[0] + u[1] + u[2]) / 3, ep = u[6];
  double deviator[6], square = 0, flow[6];
  for (int i = 0; i < 6; ++i) {
    deviator[i] = u[i] - (i < 3 ? mean : 0.0);
    square += deviator[i] * deviator[i];
  }
  const double mises = std::sqrt(1.5 * square + 1e-30);
  for (int i = 0; i < 6; ++i) flow[i] = ROOT * 1.5 * deviator[i] / mises;
  const double excess = ROOT * (mises - YIELD - H * ep), over = excess > 0 ? excess / ETA : 0.0;
  const double rate = over * over, by_excess = excess > 0 ? 2 * over / ETA : 0.0;
  double elastic[6];
  for (int i = 0; i < 6; ++i) elastic[i] = e.increment[i] - e.dt * rate * flow[i];
  const double volume = elastic[0] + elastic[1] + elastic[2];
  for (int i = 0; i < 6; ++i)
    r[i] = u[i] - e.old_stress[i] - (i < 3 ? LAMBDA * volume : 0.0) - 2 * G * elastic[i];
  r[6] = ep - e.old_ep - e.dt * ROOT * rate;
  if (!J) return;
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) {
      const double projected = (i == j) - (i < 3 && j < 3 ? 1.0 / 3 : 0.0);
      const double by = ROOT * 1.5 / mises * projected - flow[i] * flow[j] / (ROOT * mises);
      J[i][j] = (i == j) + 2 * G * e.dt * (by_excess * flow[i] * flow[j] + rate * by);
    }
    J[i][6] = -2 * G * e.dt * by_excess * ROOT * H * flow[i];
  }
  for (int j = 0; j < 6; ++j) J[6][j] = -e.dt * ROOT * by_excess * flow[j];
  J[6][6] = 1 + e.dt * ROOT * ROOT * by_excess * H;
}

}  // namespace

extern "C" void by_hand(long n, const double* const* in, double* const* out) {
  const double *guess = in[0], *guess_ep = in[1], *strain = in[2], *old_strain = in[3], *t = in[4], *old_t = in[5];
  const double *old_ep = in[6], *old_stress = in[7];
  double *stress = out[0], *ep = out[1];
  for (long at = 0; at < n; ++at) {
    Element e;
    double u[N];
    for (int i = 0; i < 6; ++i) {
      e.increment[i] = strain[6 * at + i] - old_strain[6 * at + i];
      e.old_stress[i] = old_stress[6 * at + i];
      u[i] = guess[6 * at + i];
    }
    u[6] = guess_ep[at];
    e.old_ep = old_ep[at];
    e.dt = t[at] - old_t[at];
    const bool good = newton(u, 1e-10, 1e-8, 25, [&e](const double* at_u, double* r, double (*J)[N]) { evaluate(e, at_u, r, J); });
    for (int i = 0; i < 6; ++i) stress[6 * at + i] = good ? u[i] : NAN;
    ep[at] = good ? u[6] : NAN;
  }
}
