#pragma once

#include <map>
#include <memory>
#include <string>

#include <torchferry/model.hpp>

namespace caffe2::serialize {
class ReadAdapterInterface;
}

namespace torchferry {

/// An archive file in memory, checked: what is hashed is what is loaded. Of a kernel's shared object there are no bytes.
struct ArchiveFile {
  std::shared_ptr<const std::string> bytes;
  std::string contract;
  std::string cases;
  std::string graph_digest;  ///< sha256 of the canonical text of its graphs
  size_t records = 0;
  bool compiled = false;   ///< code of AOTInductor's in the place of graphs
  std::string machine;     ///< that it is for, as JSON
  std::string parameters;  ///< what its methods take behind their inputs, pickled
  std::map<std::string, std::string> kernel = {};  ///< the sources that it carries, and their manifest
  std::shared_ptr<void> library = nullptr;         ///< a kernel, in the place of all other
};

/// The bytes as torch reads files; it keeps them alive.
std::shared_ptr<caffe2::serialize::ReadAdapterInterface> reader(std::shared_ptr<const std::string> bytes);

/// Throws `Error`: TF_ERROR_FILE where there is none, TF_ERROR_ARCHIVE where it is damaged or not ours, TF_ERROR_TRUST
/// where it is native code that nobody asked for, TF_ERROR_SIGNATURE where it is not signed as it has to be. Without
/// `check_integrity` no record is compared with the manifest.
ArchiveFile read_archive(const std::string& path, const Options& options);

}  // namespace torchferry
