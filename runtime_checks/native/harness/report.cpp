#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include <link.h>

#include "harness.hpp"

namespace torchferry::harness {

Exit exit_code(tf_status status) {
  switch (status) {
    case TF_OK:
      return kGood;
    case TF_ERROR_INTERNAL:
      return kBug;
    case TF_ERROR_FILE:
    case TF_ERROR_ARCHIVE:
    case TF_ERROR_SIGNATURE:
    case TF_ERROR_MODEL:
      return kDamaged;
    case TF_ERROR_MISMATCH:
      return kDiffers;
    case TF_ERROR_UNAVAILABLE:
      return kMissing;
    default:
      return kUsage;
  }
}

nlohmann::json finite(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

nlohmann::json as_json(const std::vector<CaseResult>& results) {
  auto all = nlohmann::json::array();
  for (const auto& one : results) {
    const auto& c = one.comparison;
    all.push_back({{"case", one.name},
                   {"method", one.method},
                   {"output", one.output},
                   {"passed", c.passed},
                   {"reason", c.reason},
                   {"max_abs", finite(c.max_abs)},
                   {"max_rel", finite(c.max_rel)},
                   {"max_ulp", c.max_ulp},
                   {"worst", c.worst},
                   {"got", c.got},
                   {"expected", c.expected},
                   {"inputs", one.inputs}});
  }
  return all;
}

void print(const std::vector<CaseResult>& results, const Model& model) {
  std::printf("%s on %s, %zu records, %lld nodes%s\n", model.contract().name.c_str(), model.device().str().c_str(),
              model.records(), static_cast<long long>(model.nodes()),
              model.optimized() ? "" : ", not optimised");
  std::printf("%-16s %-12s %-24s %-8s %9s %9s %6s\n", "case", "method", "output", "verdict", "max abs", "max rel",
              "ULP");
  for (const auto& one : results) {
    const auto& c = one.comparison;
    std::printf("%-16s %-12s %-24s %-8s %9.2e %9.2e %6lld\n", one.name.c_str(), one.method.c_str(),
                one.output.c_str(), c.passed ? "passed" : "FAILED", c.max_abs, c.max_rel,
                static_cast<long long>(c.max_ulp));
    if (c.passed) continue;
    std::printf("    %s\n", c.reason.c_str());
    if (!c.got.empty())
      std::printf("    worst element %s: got %s, expected %s\n", shape_text(c.worst).c_str(), c.got.c_str(),
                  c.expected.c_str());
    for (const auto& [name, value] : one.inputs) std::printf("    %s = %s\n", name.c_str(), value.c_str());
  }
}

namespace {

/// Whether a shared object is a library's: `libNAME.so`, `_NAME.cpython.so`, `libNAME_more.so.1`.
bool is_of(const std::string& file, const std::string& name) {
  // The C library's parts have short names, which a source may have as well.
  static const std::set<std::string> system{"c", "m", "dl", "rt", "util", "pthread", "resolv"};
  if (name.empty() || system.count(name)) return false;
  auto start = file.rfind("lib", 0) == 0 ? size_t{3} : size_t{0};
  start = std::min(file.find_first_not_of('_', start), file.size());
  if (file.compare(start, name.size(), name) != 0) return false;
  const auto next = start + name.size();
  return next >= file.size() || std::string("._-").find(file[next]) != std::string::npos;
}

}  // namespace

std::vector<std::string> foreign_objects(const std::vector<std::string>& names) {
  struct Search {
    const std::vector<std::string>& names;
    std::vector<std::string> found;
  } search{names, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& s = *static_cast<Search*>(data);
        const std::string path = info->dlpi_name ? info->dlpi_name : "";
        const auto file = path.substr(path.find_last_of('/') + 1);
        bool foreign = file.rfind("libpython", 0) == 0;
        for (const auto& name : s.names) foreign |= is_of(file, name);
        if (foreign) s.found.push_back(path);
        return 0;
      },
      &search);
  return search.found;
}

}  // namespace torchferry::harness
