#pragma once

#include <functional>
#include <map>
#include <string>

#include <torchferry/model.hpp>

/// Native code in files: it runs where the host asks for it, or where this user made it here. The record of one's own
/// code is that of runtime_checks/native_code.py: an empty file, named by the sha256 of the code, in the folder `own` of
/// the cache.
namespace torchferry {

/// Of the names and the digests of a kernel's sources and its manifest.
std::string kernel_digest(const std::map<std::string, std::string>& files);

/// Throws TF_ERROR_TRUST where the code is not this user's own and nobody asked for it, TF_ERROR_ARCHIVE where others
/// can write to the record. Who names a public key has asked: by then the file was held against it. `digest` is called
/// when it is needed.
void refuse_foreign_code(const std::function<std::string()>& digest, const std::string& path, const Options& options);

}  // namespace torchferry
