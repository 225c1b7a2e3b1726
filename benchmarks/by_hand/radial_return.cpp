// examples/radial_return.py by hand: one loop over the elements, everything in registers.
#include <cmath>

extern "C" void by_hand(long n, const double* const* in, double* const* out) {
  constexpr double K = 166667.0, G = 76923.0, YIELD = 250.0, H = 2000.0;
  const double root = std::sqrt(1.5);
  const double *strain = in[0], *old_plastic = in[1], *old_ep = in[2];
  double *stress = out[0], *plastic = out[1], *ep = out[2];
#pragma GCC ivdep
  for (long at = 0; at < n; ++at) {
    double elastic[6], deviator[6], square = 1e-24;
    for (int i = 0; i < 6; ++i) elastic[i] = strain[6 * at + i] - old_plastic[6 * at + i];
    const double volume = elastic[0] + elastic[1] + elastic[2];
    for (int i = 0; i < 6; ++i) {
      deviator[i] = 2 * G * (elastic[i] - (i < 3 ? volume / 3 : 0.0));
      square += deviator[i] * deviator[i];
    }
    const double norm = std::sqrt(square), excess = root * norm - YIELD - H * old_ep[at];
    const double rate = excess > 0 ? excess / (3 * G + H) : 0.0;
    for (int i = 0; i < 6; ++i) {
      const double increment = rate * root * deviator[i] / norm;
      stress[6 * at + i] = (i < 3 ? K * volume : 0.0) + deviator[i] - 2 * G * increment;
      plastic[6 * at + i] = old_plastic[6 * at + i] + increment;
    }
    ep[at] = old_ep[at] + rate;
  }
}
