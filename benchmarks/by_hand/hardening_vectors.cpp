// hardening.i by hand, eight elements at once, in three ways: the seven unknowns of hardening.cpp with exchanges of rows and
// a power of any exponent; the same without exchanges and with the exponent known; and what a textbook makes of it, one
// equation for the stress beyond the yield surface (Simo and Hughes, Computational Inelasticity, 1998, box 3.1), for which
// the flow's direction is that of the trial stress.
#include "vectors.hpp"

namespace {

constexpr double E = 210000.0, NU = 0.3, G = E / (2 * (1 + NU)), LAMBDA = E * NU / ((1 + NU) * (1 - 2 * NU));
constexpr double YIELD = 120.0, H = 1500.0, ETA = 200.0, EXPONENT = 2.0;
const double ROOT = std::sqrt(2.0 / 3.0);

struct Elements {
  Numbers guess[7], increment[6], old_stress[6], old_ep, dt;
};

Elements read(const double* const* in, long at, long left) {
  const double *guess = in[0], *guess_ep = in[1], *strain = in[2], *old_strain = in[3], *t = in[4], *old_t = in[5];
  const double *old_ep = in[6], *old_stress = in[7];
  Elements e;
  for (int i = 0; i < 6; ++i) {
    e.increment[i] = load(strain + 6 * at + i, 6, left) - load(old_strain + 6 * at + i, 6, left);
    e.old_stress[i] = load(old_stress + 6 * at + i, 6, left);
    e.guess[i] = load(guess + 6 * at + i, 6, left);
  }
  e.guess[6] = load(guess_ep + at, 1, left);
  e.old_ep = load(old_ep + at, 1, left);
  e.dt = load(t + at, 1, left) - load(old_t + at, 1, left);
  return e;
}

template <bool EXPONENT_IS_KNOWN>
inline void evaluate(const Elements& e, const Numbers (&u)[7], Numbers (&r)[7], Numbers (*J)[7][7]) {
  const Numbers mean = (u[0] + u[1] + u[2]) / 3.0, ep = u[6];
  Numbers deviator[6], square{}, flow[6], elastic[6];
  for (int i = 0; i < 6; ++i) {
    deviator[i] = i < 3 ? u[i] - mean : u[i];
    square += deviator[i] * deviator[i];
  }
  const Numbers mises = root(1.5 * square + 1e-30), by_mises = 1.0 / mises;
  for (int i = 0; i < 6; ++i) flow[i] = ROOT * 1.5 * deviator[i] * by_mises;
  const Numbers excess = ROOT * (mises - YIELD - H * ep), over = larger(excess / ETA, 0.0);
  const Numbers rate = EXPONENT_IS_KNOWN ? over * over : power(over, fill(EXPONENT));
  // From the same power, as n x^n / x.
  const Numbers by_excess = EXPONENT_IS_KNOWN ? 2.0 * over / ETA : over > 0.0 ? EXPONENT / ETA * rate / over : fill(0.0);
  for (int i = 0; i < 6; ++i) elastic[i] = e.increment[i] - e.dt * rate * flow[i];
  const Numbers pressure = LAMBDA * (elastic[0] + elastic[1] + elastic[2]);
  for (int i = 0; i < 6; ++i) {
    r[i] = u[i] - e.old_stress[i] - 2 * G * elastic[i];
    if (i < 3) r[i] -= pressure;
  }
  r[6] = ep - e.old_ep - e.dt * ROOT * rate;
  if (!J) return;
  const Numbers across = 2 * G * e.dt * (by_excess - rate * by_mises / ROOT), along = 2 * G * e.dt * rate * ROOT * 1.5 * by_mises;
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) {
      (*J)[i][j] = across * flow[i] * flow[j];
      if (i < 3 && j < 3) (*J)[i][j] -= along / 3.0;
      if (i == j) (*J)[i][j] += 1.0 + along;
    }
    (*J)[i][6] = -2 * G * ROOT * H * e.dt * by_excess * flow[i];
  }
  for (int j = 0; j < 6; ++j) (*J)[6][j] = -ROOT * e.dt * by_excess * flow[j];
  (*J)[6][6] = 1.0 + ROOT * ROOT * H * e.dt * by_excess;
}

template <bool TUNED>
inline Mask solve_seven(const Elements& e, Numbers (&u)[7]) {
  for (int i = 0; i < 7; ++i) u[i] = e.guess[i];
  return newton<!TUNED>(u, 1e-10, 1e-8, 25, [&e](const Numbers(&at)[7], Numbers(&r)[7], Numbers(*J)[7][7]) {
    evaluate<TUNED>(e, at, r, J);
  });
}

/// With x the stress beyond the yield surface over ETA: x ETA / ROOT + dt x^n (2 G / ROOT + ROOT H) is what the trial stress has
/// beyond it, from where Newton's method goes down without a turn: the left side is convex.
inline Mask solve_one(const Elements& e, Numbers (&u)[7]) {
  Numbers trial[6], square{};
  const Numbers volume = e.increment[0] + e.increment[1] + e.increment[2];
  for (int i = 0; i < 6; ++i) {
    trial[i] = e.old_stress[i] + 2 * G * e.increment[i];
    if (i < 3) trial[i] += LAMBDA * volume;
  }
  const Numbers mean = (trial[0] + trial[1] + trial[2]) / 3.0;
  for (int i = 0; i < 6; ++i) {
    const Numbers deviator = i < 3 ? trial[i] - mean : trial[i];
    square += deviator * deviator;
  }
  const Numbers mises = root(1.5 * square + 1e-30), beyond = mises - YIELD - H * e.old_ep;
  const Numbers factor = e.dt * (2 * G / ROOT + ROOT * H);
  // Both terms are positive: each alone bounds the root.
  const Numbers one = larger(beyond * (ROOT / ETA), 0.0), other = root(larger(beyond, 0.0) / factor);
  Numbers x = one < other ? one : other;
  Mask active = beyond > 0.0;
  for (int count = 0; count < 25 && any(active); ++count) {
    const Numbers left = x * (ETA / ROOT) + factor * x * x - beyond;
    x = active ? x - left / (ETA / ROOT + 2.0 * factor * x) : x;
    active &= magnitude(left) > 1e-12 * beyond;
  }
  const Numbers rate = x * x, back = 2 * G * e.dt * rate * (ROOT * 1.5) / mises;
  for (int i = 0; i < 6; ++i) u[i] = trial[i] - back * (i < 3 ? trial[i] - mean : trial[i]);
  u[6] = e.old_ep + e.dt * ROOT * rate;
  return ~active;
}

template <class Solve>
inline void run(long n, const double* const* in, double* const* out, const Solve& solve) {
  for (long at = 0; at < n; at += LANES) {
    const Elements e = read(in, at, n - at);
    Numbers u[7];
    const Mask good = solve(e, u);
    for (int i = 0; i < 7; ++i) u[i] = good ? u[i] : fill(NAN);
    for (int i = 0; i < 6; ++i) store(u[i], out[0] + 6 * at + i, 6, n - at);
    store(u[6], out[1] + at, 1, n - at);
  }
}

}  // namespace

extern "C" void by_hand_vectors(long n, const double* const* in, double* const* out) { run(n, in, out, solve_seven<false>); }
extern "C" void by_hand_tuned(long n, const double* const* in, double* const* out) { run(n, in, out, solve_seven<true>); }
extern "C" void by_hand_scalar(long n, const double* const* in, double* const* out) { run(n, in, out, solve_one); }
