#pragma once

#include <string>
#include <vector>

#include <torchferry/model.hpp>

namespace torchferry {

/// Reads `cases.pt`, or the text of a kernel, and holds every tensor against the contract. Throws `Error` (TF_ERROR_ARCHIVE).
std::vector<Case> unpack_cases(const std::string& bytes, const Contract& contract, const std::string& where);

/// What `model` gives for `cases`, moved to its device, compared with what eager mode gave.
std::vector<CaseResult> replay(const Model& model, const std::vector<Case>& cases);

}  // namespace torchferry
