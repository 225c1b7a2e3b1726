#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace torchferry {

/// The record of a contract, or of a machine: the class of its fields, and what messages call it.
struct RecordKind {
  const char* type;
  const char* what;
  const char* broken;
  const char* mend;
};
constexpr RecordKind kContractKind{"Contract", "the contract", "the contract is broken", "export the model again"};
constexpr RecordKind kMachineKind{"TargetMachine", "the record of the machine", "the record of the machine is damaged",
                                  "convert the .pt again"};

/// The JSON of a record, which every reader reads in the same way: UTF-8 without a mark, each key once. Throws `Error`.
nlohmann::ordered_json parse_strictly(const std::string& text, const RecordKind& kind, const std::string& where);

/// Throws `Error` for a record that has other fields or types than the format, or is beyond its limits.
void check_fields(const nlohmann::ordered_json& raw, const RecordKind& kind, const std::string& where);

/// Throws `Error` for a name that is empty, too long, or does not show as it is.
void check_name(const std::string& name, const std::string& of);

}  // namespace torchferry
