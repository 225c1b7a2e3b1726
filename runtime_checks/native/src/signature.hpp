#pragma once

#include <string>

namespace torchferry {

/// Holds a file's bytes against the signature beside it, `path` + ".sig", and a public key in PEM: as
/// exporter/archive/file_signature.py does, with OpenSSL's libcrypto, which is opened when it is needed. Throws `Error`:
/// TF_ERROR_SIGNATURE, TF_ERROR_ARGUMENT for a key that is none, TF_ERROR_UNAVAILABLE without libcrypto.
void check_signature(const std::string& path, const std::string& bytes, const std::string& public_key);

}  // namespace torchferry
