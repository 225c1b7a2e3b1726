#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace torchferry {

/// The checksums of a zip file's records by name, without the folder that they share. What torch's reader does not look at is
/// held as Python's zipfile holds it, and as exporter/archive/zip_records.py does. Throws `Error` (TF_ERROR_ARCHIVE) for a
/// record's name, and std::runtime_error for a file that is damaged.
std::map<std::string, uint32_t> read_directory(const std::string& bytes, const std::string& path);

/// How many bytes all records of a zip file expand to, as its list says. torch's reader makes room for a record of any size as
/// soon as it is made. Throws std::runtime_error for a file that is damaged.
uint64_t expanded_size(const std::string& bytes);

/// The checksum of zip files (CRC-32 of ISO 3309), which torch's reader does not hold records against.
uint32_t checksum_of(const void* record, size_t size);

}  // namespace torchferry
