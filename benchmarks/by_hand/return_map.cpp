// examples/return_map.py by hand: one element after the other, seven unknowns, Newton's method with its analytic
// Jacobian and Gaussian elimination with partial pivoting; the rule that ends it is that of exporter/model/implicit/newton_solver.py.
#include "newton.hpp"

namespace {

constexpr double K = 166667.0, G = 76923.0, YIELD = 250.0, H = 2000.0;
const double ROOT = std::sqrt(1.5);

struct Element {
  double increment[6], old_stress[6], old_ep;
};

void evaluate(const Element& e, const double* u, double* r, double (*J)[N]) {
  const double mean = (u[0] + u[1] + u[2]) / 3, ep = u[6], rate = ep - e.old_ep;
  double deviator[6], square = 1e-12, flow[6];
  for (int i = 0; i < 6; ++i) {
    deviator[i] = u[i] - (i < 3 ? mean : 0.0);
    square += deviator[i] * deviator[i];
  }
  const double norm = std::sqrt(square);
  for (int i = 0; i < 6; ++i) flow[i] = ROOT * deviator[i] / norm;
  double elastic[6];
  for (int i = 0; i < 6; ++i) elastic[i] = e.increment[i] - rate * flow[i];
  const double volume = elastic[0] + elastic[1] + elastic[2];
  for (int i = 0; i < 6; ++i) {
    const double one = i < 3 ? 1.0 : 0.0;
    const double trial = e.old_stress[i] + K * volume * one + 2 * G * (elastic[i] - volume / 3 * one);
    r[i] = (u[i] - trial) / (2 * G);
  }
  const double excess = (ROOT * norm - YIELD - H * ep) / (3 * G);
  const double length = std::sqrt(rate * rate + excess * excess + 1e-24);
  r[6] = rate - excess - length;
  if (!J) return;
  // The flow's derivative is deviatoric: the volume does not change with the stress.
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) {
      const double projected = (i == j) - (i < 3 && j < 3 ? 1.0 / 3 : 0.0);
      const double by = ROOT / norm * (projected - deviator[i] * deviator[j] / square);
      J[i][j] = ((i == j) + 2 * G * rate * by) / (2 * G);
    }
    J[i][6] = flow[i];
  }
  const double by_excess = -1 - excess / length;
  for (int j = 0; j < 6; ++j) J[6][j] = by_excess * ROOT * deviator[j] / norm / (3 * G);
  J[6][6] = 1 - rate / length - by_excess * H / (3 * G);
}

}  // namespace

extern "C" void by_hand(long n, const double* const* in, double* const* out) {
  const double *strain = in[0], *old_strain = in[1], *old_stress = in[2], *old_ep = in[3];
  double *stress = out[0], *ep = out[1];
  for (long at = 0; at < n; ++at) {
    Element e;
    double u[N];
    for (int i = 0; i < 6; ++i) {
      e.increment[i] = strain[6 * at + i] - old_strain[6 * at + i];
      u[i] = e.old_stress[i] = old_stress[6 * at + i];
    }
    u[6] = e.old_ep = old_ep[at];
    const bool good = newton(u, 1e-12, 1e-10, 30, [&e](const double* at_u, double* r, double (*J)[N]) { evaluate(e, at_u, r, J); });
    for (int i = 0; i < 6; ++i) stress[6 * at + i] = good ? u[i] : NAN;
    ep[at] = good ? u[6] : NAN;
  }
}
