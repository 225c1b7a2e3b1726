#pragma once

#include <map>
#include <string>
#include <vector>

#include <torchferry/model.hpp>

/// `cases.txt` of a kernel (exporter/archive/kernel_container.py): floats as C writes them with %a, names percent-encoded.
namespace torchferry {

bool are_text_cases(const std::string& bytes);
/// Throws `Error` (TF_ERROR_ARCHIVE) where the text is not whole, or is of another contract.
std::vector<Case> text_cases(const std::string& text, const Contract& contract, const std::string& where);
std::map<std::string, at::Tensor> text_parameters(const std::string& text, const Contract& contract,
                                                  const std::string& where);

}  // namespace torchferry
