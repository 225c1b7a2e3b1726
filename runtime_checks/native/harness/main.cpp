// torchferry_verify: an archive checked where no Python is.

#include <cstdio>
#include <iostream>
#include <thread>

#include <CLI/CLI.hpp>
#include <torch/version.h>

#include "harness.hpp"

using namespace torchferry;
using nlohmann::json;

namespace {

struct Arguments {
  std::string file;
  std::string device = "cpu";
  bool as_json = false;
  int threads = 1;
  bool latency = false;
  int fusion_depth = 0;
  bool optimize = true;
  bool keep_memory = false;
  bool allow_native = false;
  std::string envelope = "off", engine = "torchscript";
  std::string calls, results, history, failures, key;
  std::vector<std::string> absent;
};

int fail(const Arguments& arguments, const Error& error) {
  const auto code = harness::exit_code(error.status());
  if (arguments.as_json)
    std::cout << json{{"passed", false},
                      {"error", error.what()},
                      {"status", tf_status_name(error.status())},
                      {"exit_code", static_cast<int>(code)}}
                     .dump(1, ' ', false, json::error_handler_t::replace)
              << "\n";
  std::cerr << "error: " << error.what() << "\n";
  return code;
}

int run(const Arguments& arguments) {
  Options options;
  options.intra_op_threads = arguments.threads;
  options.fusion_depth = arguments.fusion_depth;
  options.optimize = arguments.optimize;
  options.keep_memory = arguments.keep_memory;
  std::vector<std::string> warnings;
  options.warn = [&warnings](const std::string& text) { warnings.push_back(text); };
  if (arguments.envelope == "warn") options.envelope = OutsideEnvelope::kWarn;
  if (arguments.envelope == "error") options.envelope = OutsideEnvelope::kError;
  if (arguments.engine == "kernel") options.engine = EngineKind::kKernel;
  if (arguments.allow_native) options.trust = Trust::kNative;
  options.public_key = arguments.key;
  const auto model = Model::load(arguments.file, arguments.device, options);
  const auto cases = model.run_cases();
  const auto foreign = harness::foreign_objects(arguments.absent);
  bool passed = foreign.empty();
  for (const auto& one : cases) passed &= one.comparison.passed;

  json report = {{"passed", passed},
                 {"archive", arguments.file},
                 {"model", model.contract().name},
                 {"device", model.device().str()},
                 {"torch", TORCH_VERSION},
                 {"threads", arguments.threads},
                 {"engine", model.engine()},
                 {"records", model.records()},
                 {"nodes", model.nodes()},
                 {"optimized", model.optimized()},
                 {"foreign_objects", foreign},
                 {"warnings", warnings},
                 {"cases", harness::as_json(cases)}};
  if (!arguments.calls.empty())
    report["replay"] = harness::replay_calls(model, arguments.file, arguments.calls, arguments.results);
  if (!arguments.history.empty()) {
    report["history"] = harness::run_history(model, arguments.history, arguments.failures);
    report["passed"] = passed = passed && report["history"]["passed"].get<bool>();
  }
  if (arguments.latency) report["latency"] = harness::latency(arguments.file, arguments.device, options);

  if (arguments.as_json) {
    std::cout << report.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  } else {
    harness::print(cases, model);
    if (!arguments.history.empty()) harness::print_history(report["history"]);
    if (arguments.latency) harness::print_latency(report["latency"]);
    for (const auto& text : warnings) std::cout << "warning: " << text << "\n";
    for (const auto& object : foreign) std::cout << "in this process although it should be absent: " << object << "\n";
    std::cout << (passed ? "verified" : "NOT VERIFIED") << "\n";
  }
  return passed ? harness::kGood : harness::kDiffers;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Replays the cases of a torchferry archive with libtorch alone and compares them with eager mode.");
  app.set_version_flag("--version", std::string(tf_version()));
  app.add_option("file", arguments.file, "An archive")->required();
  app.add_option("--device", arguments.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_flag("--json", arguments.as_json, "Print the report for machines");
  app.add_option("--threads", arguments.threads, "Intra-op threads; 0 leaves torch's own setting")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("--latency", arguments.latency, "Measure load, first calls and steady state at several batch sizes");
  app.add_option("--fusion-depth", arguments.fusion_depth, "Specialisations by shape; -1 is torch's own setting")
      ->check(CLI::Range(-1, 20))
      ->capture_default_str();
  app.add_flag("!--no-optimize", arguments.optimize, "Run the graphs as they are");
  app.add_flag("--keep-memory", arguments.keep_memory, "Freed memory stays with the process");
  app.add_option("--envelope", arguments.envelope, "Inputs outside the range that was checked: error, warn or off")
      ->check(CLI::IsMember({"error", "warn", "off"}))
      ->capture_default_str();
  app.add_option("--engine", arguments.engine, "What runs a .pt: torchscript, or the kernel that it carries")
      ->check(CLI::IsMember({"torchscript", "kernel"}))
      ->capture_default_str();
  app.add_option("--key", arguments.key, "A public key that has to have signed the file");
  app.add_flag("--allow-native", arguments.allow_native, "Run native code that was not made here");
  app.add_option("--absent", arguments.absent, "Libraries that this process must not hold");
  auto* history = app.add_option("--history", arguments.history, "A load history to step through, states fed back: a .pt file");
  app.add_option("--failures", arguments.failures, "Where the inputs of elements that fail go, for torchferry run --replay")
      ->needs(history);
  auto* calls = app.add_option("--replay", arguments.calls, "Calls that a Python runner wrote");
  app.add_option("--results", arguments.results, "Where their outputs go")->needs(calls);
  calls->needs(app.get_option("--results"));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? harness::kGood : harness::kUsage;
  }
  try {
    return run(arguments);
  } catch (const Error& error) {
    return fail(arguments, error);
  } catch (const std::exception& error) {
    return fail(arguments, Error(TF_ERROR_INTERNAL, error.what()));
  }
}
