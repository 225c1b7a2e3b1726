#include "zip_directory.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <vector>

#include "limits.hpp"
#include "plain_text.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

/// Whether a loader that unpacks a record of this name would write outside of its folder.
bool leads_out(const std::string& name) {
  std::string part;
  for (const char c : name + "/") {
    if (c != '/' && c != '\\') {
      part += c;
      continue;
    }
    if (part == "..") return true;
    part.clear();
  }
  // Before the first slash a colon names a drive.
  return name[0] == '/' || name[0] == '\\' || name.substr(0, name.find_first_of("/\\")).find(':') != std::string::npos;
}

/// Little-endian, as zip files have numbers.
uint64_t number_at(const std::string& bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

/// A record as the list of a zip file has it: its whole name, the checksum of its data, and how many bytes it expands to.
struct Entry {
  std::string name;
  uint32_t checksum;
  uint64_t size;
};

/// Of the flags of a record: its name is UTF-8.
constexpr uint64_t kUtf8 = 0x800;

/// How many bytes the record at `at` of the list expands to; beyond 4 GiB that stands in its extra fields.
uint64_t size_of(const std::string& bytes, uint64_t at, uint64_t extra, uint64_t extra_size) {
  constexpr uint64_t elsewhere = 0xffffffff;
  const auto size = number_at(bytes, at + 24, 4);
  if (size != elsewhere) return size;
  for (uint64_t place = extra; place + 12 <= std::min<uint64_t>(extra + extra_size, bytes.size());
       place += 4 + number_at(bytes, place + 2, 2))
    if (number_at(bytes, place, 2) == 1 && number_at(bytes, place + 2, 2) >= 8) return number_at(bytes, place + 4, 8);
  return size;
}

/// The records in the list from `at` to `end`. Throws where one has another name in front of it, as Python's zipfile does.
std::vector<Entry> list_entries(const std::string& bytes, uint64_t at, uint64_t end) {
  constexpr size_t entry_size = 46, local_size = 30;
  std::vector<Entry> entries;
  while (at + entry_size <= end && bytes.compare(at, 4, "PK\1\2") == 0) {
    const auto length = number_at(bytes, at + 28, 2), place = number_at(bytes, at + 42, 4);
    const bool is_near = at + entry_size + length <= end && place + local_size + length <= bytes.size();
    // In a file beyond 4 GiB the place is elsewhere.
    if (place != 0xffffffff &&
        (!is_near || bytes.compare(place, 4, "PK\3\4") != 0 || number_at(bytes, place + 26, 2) != length ||
         bytes.compare(place + local_size, length, bytes, at + entry_size, length) != 0))
      throw std::runtime_error("a record has another name than in the list of records");
    const auto name = bytes.substr(at + entry_size, length);
    const bool is_ascii = std::all_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x80; });
    if (!is_ascii && !(number_at(bytes, at + 8, 2) & kUtf8)) throw std::runtime_error("a record's name is not said to be UTF-8");
    const auto extra_size = number_at(bytes, at + 30, 2);
    entries.push_back({name, static_cast<uint32_t>(number_at(bytes, at + 16, 4)),
                       size_of(bytes, at, at + entry_size + length, extra_size)});
    at += entry_size + length + extra_size + number_at(bytes, at + 32, 2);
  }
  if (at != end) throw std::runtime_error("the list of records is not one");
  return entries;
}

/// The records of a zip file that has one list of them, where its end says: see check_one_directory in
/// exporter/archive/zip_records.py.
std::vector<Entry> list_records(const std::string& bytes) {
  constexpr size_t end_size = 22, large_end_size = 56, place_size = 20;
  auto end = bytes.rfind("PK\5\6");
  if (end == std::string::npos || end + end_size > bytes.size() ||
      end + end_size + number_at(bytes, end + 20, 2) != bytes.size())
    throw std::runtime_error("no end of a zip file, or more bytes behind it");
  auto length = number_at(bytes, end + 12, 4), begin = number_at(bytes, end + 16, 4);
  if (end >= place_size && bytes.compare(end - place_size, 4, "PK\6\7") == 0) {
    const auto large = number_at(bytes, end - place_size + 8, 8);
    if (end < place_size + large_end_size || large != end - place_size - large_end_size)
      throw std::runtime_error("another end of the zip file than the last");
    length = number_at(bytes, large + 40, 8), begin = number_at(bytes, large + 48, 8);
    end = large;
  }
  if (begin > end || length != end - begin)
    throw std::runtime_error("the list of records is not where the end of the zip file says");
  return list_entries(bytes, begin, end);
}

/// Throws for what is no name, and for a name that leads out of the folder that a loader unpacks to.
void check_names(const std::vector<Entry>& entries, const std::string& path) {
  for (const auto& [name, checksum, size] : entries) {
    if (count_characters(name) > kMaxName || name.empty() || name.back() == '/' || !find_unsafe(name, true).empty())
      fail(TF_ERROR_ARCHIVE, {"a record's name is not a name", path, name.substr(0, kMaxName),
                              "at most " + std::to_string(kMaxName) + " characters, no control characters"});
    if (leads_out(name))
      fail(TF_ERROR_ARCHIVE, {"a record's name leads out of the archive", path, in_quotes(name), "names below one folder",
                              "do not load this file: nothing that torchferry writes has such names"});
  }
  std::set<std::string> folders;
  for (const auto& [name, checksum, size] : entries)
    folders.insert(name.find('/') == std::string::npos ? "" : name.substr(0, name.find('/')));
  if (folders.size() != 1 || folders.count(""))
    fail(TF_ERROR_ARCHIVE, {"this file is not a TorchScript archive", path,
                            "a zip file with " + std::to_string(folders.size()) + " top folders",
                            "one top folder, as torch.jit.save writes it"});
}

}  // namespace

std::map<std::string, uint32_t> read_directory(const std::string& bytes, const std::string& path) {
  const auto entries = list_records(bytes);
  check_names(entries, path);
  std::map<std::string, uint32_t> checksums;
  for (const auto& [name, checksum, size] : entries) checksums[name.substr(name.find('/') + 1)] = checksum;
  return checksums;
}

uint64_t expanded_size(const std::string& bytes) {
  uint64_t sum = 0;
  for (const auto& entry : list_records(bytes)) sum = entry.size > UINT64_MAX - sum ? UINT64_MAX : sum + entry.size;
  return sum;
}

uint32_t checksum_of(const void* record, size_t size) {
  const auto* data = static_cast<const unsigned char*>(record);
  static const auto table = [] {
    std::array<uint32_t, 256> values{};
    for (uint32_t i = 0; i < 256; ++i) {
      values[i] = i;
      for (int bit = 0; bit < 8; ++bit) values[i] = values[i] & 1 ? 0xedb88320u ^ values[i] >> 1 : values[i] >> 1;
    }
    return values;
  }();
  uint32_t value = 0xffffffffu;
  for (size_t i = 0; i < size; ++i) value = table[(value ^ data[i]) & 0xff] ^ value >> 8;
  return ~value;
}

}  // namespace torchferry
