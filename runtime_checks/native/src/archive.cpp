#include "archive.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <nlohmann/json.hpp>

#include "container_kinds.hpp"
#include "kernel.hpp"
#include "native_code.hpp"
#include "limits.hpp"
#include "pickles.hpp"
#include "sha256.hpp"
#include "signature.hpp"
#include "code_lines.hpp"
#include "code_check.hpp"
#include "text.hpp"
#include "zip_directory.hpp"

namespace torchferry {
namespace {

constexpr std::string_view kSeal = "torchferry sha256 ";
constexpr size_t kDigits = 64;
const std::string kFolder = "extra/torchferry/";
const std::string kContract = kFolder + "contract.json";
const std::string kCases = kFolder + "cases.pt";
/// In a package (.pt2), of which torch reads all that is below extra/ as text.
const std::string kPackedCases = "data/torchferry/cases.pt";
const std::string kManifest = kFolder + "manifest.json";
const std::string kGraph = kFolder + "graph.txt";
const std::string kMachine = kFolder + "machine.json";
const std::string kKernel = kFolder + "kernel/";
const std::string kParameters = "data/torchferry/parameters.pt";

class Memory : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Memory(std::shared_ptr<const std::string> bytes) : bytes_(std::move(bytes)) {}
  size_t size() const override { return bytes_->size(); }
  size_t read(uint64_t pos, void* buf, size_t n, const char*) const override {
    if (pos >= bytes_->size()) return 0;
    n = std::min(n, bytes_->size() - static_cast<size_t>(pos));
    std::memcpy(buf, bytes_->data() + pos, n);
    return n;
  }

 private:
  std::shared_ptr<const std::string> bytes_;
};

std::shared_ptr<const std::string> read_bytes(const std::string& path) {
  const auto refuse = [&](const std::string& got) {
    fail(TF_ERROR_FILE, {"there is no archive that can be read", path, got, "a file that torchferry wrote"});
  };
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) refuse(std::generic_category().message(errno));
  if (S_ISDIR(status.st_mode)) {
    if (access((path + "/manifest.json").c_str(), F_OK) == 0)
      fail(TF_ERROR_FILE, {"a kernel is loaded as a shared object", path, "the folder of its sources", "libNAME.so",
                           "build it with cmake -DBUILD_SHARED_LIBS=ON"});
    refuse("a folder");
  }
  if (!S_ISREG(status.st_mode)) refuse("no regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(std::generic_category().message(errno));
  auto bytes = std::make_shared<std::string>(static_cast<size_t>(status.st_size), '\0');
  if (!bytes->empty() && !file.read(bytes->data(), static_cast<std::streamsize>(bytes->size())))
    refuse("a file that ends early while it is read");
  return bytes;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class Reader {
 public:
  Reader(const std::string& path, const std::shared_ptr<const std::string>& bytes)
      : path_(path), checksums_(checksums_in(*bytes, path)), reader_(std::make_shared<Memory>(bytes)) {
    const auto all = reader_.getAllRecords();
    names_ = {all.begin(), all.end()};
    if (all.size() > kMaxRecords)
      fail(TF_ERROR_ARCHIVE, {"the archive has too many records", path, std::to_string(all.size()),
                              "at most " + std::to_string(kMaxRecords)});
    if (names_.size() != all.size()) fail(TF_ERROR_ARCHIVE, {"a record stands in the archive twice", path});
    const uint64_t size = names_.count(kContract) ? reader_.getRecordSize(kContract) : 0;
    if (size > kMaxContractBytes)
      fail(TF_ERROR_ARCHIVE, {"the contract is too long", path, std::to_string(size), "at most " + std::to_string(kMaxContractBytes)});
  }

  const std::set<std::string>& names() const { return names_; }
  std::string record(const std::string& name) {
    const auto [data, size] = fetch(name);
    return {static_cast<const char*>(data.get()), size};
  }
  std::string digest(const std::string& name) {
    const auto [data, size] = fetch(name);
    return sha256(data.get(), size);
  }

  /// Every record is in the manifest, and the other way round.
  void check_manifest() {
    const std::string text = record(kManifest);
    const auto manifest = nlohmann::json::parse(text, nullptr, false);
    // One spelling only: a byte changed between two tokens is a damage as well.
    bool flat = manifest.is_object();
    if (flat)
      for (const auto& digest : manifest) flat &= digest.is_string();
    if (!flat || manifest.dump(-1, ' ', true) != text) fail(TF_ERROR_ARCHIVE, {"the manifest is damaged", path_});
    std::set<std::string> missing, added = names_;
    added.erase(kManifest);
    for (const auto& [name, digest] : manifest.items())
      if (!added.erase(name)) missing.insert(name);
    if (!missing.empty() || !added.empty())
      fail(TF_ERROR_ARCHIVE, {"the archive does not have the records that its manifest names", path_,
                              (missing.empty() ? "" : "missing: " + joined(missing)) +
                                  (missing.empty() || added.empty() ? "" : "; ") +
                                  (added.empty() ? "" : "added: " + joined(added)),
                              "", "export it again"});
    for (const auto& [name, expected] : manifest.items())
      if (!expected.is_string() || digest(name) != expected.get<std::string>())
        fail(TF_ERROR_ARCHIVE, {"a record of the archive was changed", path_ + ", record " + name,
                                "bytes whose sha256 is not the manifest's", "",
                                "copy it again, or export it again"});
  }

 private:
  static std::map<std::string, uint32_t> checksums_in(const std::string& bytes, const std::string& path) {
    const uint64_t size = expanded_size(bytes), most = bytes.size() + kMaxInflatedBytes;
    if (size > most)
      fail(TF_ERROR_ARCHIVE, {"the archive's records expand to an implausible size", path, std::to_string(size),
                              "at most " + std::to_string(most)});
    return read_directory(bytes, path);
  }

  /// A record's data, which agree with the checksum in the list of records.
  std::tuple<at::DataPtr, size_t> fetch(const std::string& name) {
    auto record = reader_.getRecord(name);
    const auto known = checksums_.find(name);
    if (known == checksums_.end() || known->second != checksum_of(std::get<0>(record).get(), std::get<1>(record)))
      throw std::runtime_error("a wrong checksum of the record " + name);
    return record;
  }

  std::string path_;
  std::map<std::string, uint32_t> checksums_;
  caffe2::serialize::PyTorchStreamReader reader_;
  std::set<std::string> names_;
};

/// torch calls __setstate__ of TorchScript's own classes, and of the C++ classes that are registered with it, while it
/// loads a file; what is loaded is to run when a host calls it. Code may have white space within a dotted name. What is
/// nested deeply overflows the stack of torch's parsers.
void check_no_code_at_load(Reader& reader, const std::string& path) {
  std::vector<std::pair<std::string, std::string>> code;
  const std::string mend = "do not load this file: nothing that torchferry writes is like it";
  for (const auto& name : reader.names()) {
    const auto ends_with = [&](const std::string& end) {
      return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
    };
    const bool is_pickle = ends_with(".pkl");
    if (!is_pickle && (name.rfind("code/", 0) != 0 || ends_with(".debug_pkl"))) continue;
    const auto record = reader.record(name);
    auto text = record;
    const auto is_gap = [](char c) { return std::strchr(" \t\r\n\f\v\\", c) && c; };
    if (!is_pickle) text.erase(std::remove_if(text.begin(), text.end(), is_gap), text.end());
    for (const char* word : {"__setstate__", "torch.classes"})
      if (text.find(word) != std::string::npos)
        fail(TF_ERROR_ARCHIVE, {"the file has code that runs while it is loaded", path,
                                std::string(word) + " in the record " + name, "methods that a host calls", mend});
    const auto most = name == "constants.pkl" ? kMaxConstantParts : kMaxSharedValues;
    const auto depth =
        is_pickle ? measure_depth(record, path + ", record " + name, most) : measure_code_depth(record);
    if (depth > kMaxCodeNesting)
      fail(TF_ERROR_ARCHIVE, {"a record of the file is nested too deeply", path,
                              std::to_string(depth) + " levels in the record " + name,
                              "at most " + std::to_string(kMaxCodeNesting), mend});
    if (ends_with(".py")) code.emplace_back(name, record);
  }
  try {
    check_code(code);
  } catch (const CodeError& error) {
    fail(TF_ERROR_ARCHIVE, {"the file's code costs torch more than it may, or is not what torch writes", path,
                            error.text, "code as torch.jit.save writes it, with types of few parts", mend});
  }
}

void check_seal(const std::string& path, const std::string& bytes) {
  const size_t body = bytes.size() < kDigits ? 0 : bytes.size() - kDigits;
  const bool sealed = body >= kSeal.size() && std::string_view(bytes).substr(body - kSeal.size(), kSeal.size()) == kSeal;
  if (!sealed || sha256(bytes.data(), body) != bytes.substr(body))
    fail(TF_ERROR_ARCHIVE, {"a byte between the records of the archive was changed", path,
                            "bytes whose sha256 is not the one at the end of the file", "",
                            "copy it again, or export it again"});
}

ArchiveFile read(const std::string& path, const std::shared_ptr<const std::string>& bytes, bool check_integrity) {
  Reader reader(path, bytes);
  std::set<std::string> missing;
  const auto& cases = reader.names().count(kPackedCases) ? kPackedCases : kCases;
  for (const auto& name : {kContract, cases, kGraph, kManifest})
    if (!reader.names().count(name)) missing.insert(name);
  if (missing.size() == 4)
    fail(TF_ERROR_ARCHIVE, {"this file is not a torchferry archive", path,
                            "a TorchScript or other zip file without torchferry's records",
                            "the record " + kContract + " and its companions", "make it with `torchferry export`"});
  if (!missing.empty())
    fail(TF_ERROR_ARCHIVE, {"the archive does not have the records that its manifest names", path,
                            "missing: " + joined(missing), "", "export it again"});
  if (check_integrity) {
    reader.check_manifest();
    check_seal(path, *bytes);
  }
  ArchiveFile file{bytes, reader.record(kContract), reader.record(cases), reader.digest(kGraph),
                   reader.names().size()};
  const auto kind = classify_records(reader.names(), path);
  check_suffix(path, kind);
  if (kind == Kind::kGraphs)
    check_no_code_at_load(reader, path);
  else if (!reader.names().count(kParameters))
    fail(TF_ERROR_ARCHIVE, {"this package has no parameters", path, "", "the record " + kParameters, "convert it again"});
  if (kind == Kind::kPrograms)
    fail(TF_ERROR_ARCHIVE, {"this file holds programs of torch.export, which run in Python", path, "", "",
                            "load the .pt, or what `torchferry convert --to pt2` makes of it"});
  for (const auto& name : reader.names())
    if (name.rfind(kKernel, 0) == 0) file.kernel[name.substr(kKernel.size())] = reader.record(name);
  file.compiled = kind == Kind::kCode;
  if (file.compiled) {
    if (!reader.names().count(kMachine))
      fail(TF_ERROR_ARCHIVE, {"this file holds no compiled code", path, "", "the record " + kMachine, "load it as .pt"});
    file.machine = reader.record(kMachine);
    file.parameters = reader.record(kParameters);
  }
  return file;
}

}  // namespace

std::shared_ptr<caffe2::serialize::ReadAdapterInterface> reader(std::shared_ptr<const std::string> bytes) {
  return std::make_shared<Memory>(std::move(bytes));
}

ArchiveFile read_archive(const std::string& path, const Options& options) {
  const auto bytes = read_bytes(path);
  if (bytes->empty()) fail(TF_ERROR_ARCHIVE, {"the archive is empty", path, "0 bytes", "", "export it again"});
  if (!options.public_key.empty()) check_signature(path, *bytes, options.public_key);
  const auto digest = [&] { return sha256(bytes->data(), bytes->size()); };
  if (is_library(*bytes)) {
    // A library's own code may run as soon as it is opened.
    refuse_foreign_code(digest, path, options);
    return read_library(path, *bytes);
  }
  try {
    auto file = read(path, bytes, options.check_integrity);
    if (file.compiled) refuse_foreign_code(digest, path, options);
    return file;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail(TF_ERROR_ARCHIVE, {"the archive is damaged, or is no TorchScript archive at all", path,
                            first_line(error.what()), "a zip file as torch.jit.save writes it",
                            "copy it again (in binary mode), or export it again"});
  }
}

}  // namespace torchferry
