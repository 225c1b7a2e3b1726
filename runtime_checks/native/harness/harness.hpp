#pragma once

#include <string>

#include <nlohmann/json.hpp>
#include <torchferry/model.hpp>

namespace torchferry::harness {

/// Exit codes of the command line: README, "Exit codes".
enum Exit { kGood = 0, kBug = 1, kUsage = 2, kDamaged = 4, kDiffers = 5, kMissing = 6 };

Exit exit_code(tf_status status);

/// Figures of every output of every case, and whether all passed.
nlohmann::json as_json(const std::vector<CaseResult>& results);
void print(const std::vector<CaseResult>& results, const Model& model);

/// A number JSON can hold, or its text where it cannot.
nlohmann::json finite(double value);

/// Runs the calls that a Python runner wrote to `calls` and writes the outputs of those that did not fail as one flat
/// tuple; gives {"errors": {"<call>": text}}. `path` is the archive, for calls of one that is moved to the device.
nlohmann::json replay_calls(const Model& model, const std::string& path, const std::string& calls,
                            const std::string& results);

/// Milliseconds of loading and of calls 1 to 5, then median and 99th percentile of the steady state, by batch size.
nlohmann::json latency(const std::string& path, const std::string& device, const Options& options);
void print_latency(const nlohmann::json& curve);

/// A load history through the archive, its states fed back, each step held against what the file expects.
/// Steps through a history file; inputs of the first elements that fail go to the file `failures`, if that is named.
nlohmann::json run_history(const Model& model, const std::string& path, const std::string& failures);
void print_history(const nlohmann::json& history);

/// Shared objects of this process that belong to a Python or to the libraries that are named.
std::vector<std::string> foreign_objects(const std::vector<std::string>& names);

}  // namespace torchferry::harness
