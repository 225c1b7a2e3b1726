#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace torchferry {

/// The JSON of a contract, which every reader reads in the same way: UTF-8 without a mark, each key once. Throws `Error`.
nlohmann::ordered_json parse_contract(const std::string& text, const std::string& where);

/// Throws `Error` for a contract that has other fields or types than the format, or is beyond its limits.
void check_fields(const nlohmann::ordered_json& raw, const std::string& where);

/// Throws `Error` for a name that is empty, too long, or does not show as it is.
void check_name(const std::string& name, const std::string& of);

}  // namespace torchferry
