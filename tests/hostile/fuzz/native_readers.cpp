// Readers of the native library under libFuzzer: native_readers --target=TARGET --seed=ARCHIVE [CORPUS].
//
// A reader may throw torchferry::Error, and nothing else. Built by run.py with all sources of the library in one file.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include <unistd.h>

#include <torchferry/contract.hpp>
#include <torchferry/error.hpp>

#include "archive.hpp"
#include "cases.hpp"
#include "contract_fields.hpp"
#include "pickles.hpp"
#include "signature.hpp"
#include "code_lines.hpp"
#include "code_check.hpp"
#include "text_cases.hpp"

namespace {

std::string target, seed_path, place;
std::unique_ptr<torchferry::Contract> seed;

std::string option(const std::string& argument, const std::string& name) {
  const auto start = "--" + name + "=";
  return argument.rfind(start, 0) == 0 ? argument.substr(start.size()) : "";
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

torchferry::Options make_options() {
  torchferry::Options options;
  // Who forges a file computes digests and seal again: what lies behind them is to be reached.
  options.check_integrity = false;
  return options;
}

void read_whole(const std::string& bytes) {
  using namespace torchferry;
  write(place, bytes);
  const auto file = read_archive(place, make_options());
  const auto contract = contract_from_json(file.contract, place);
  unpack_cases(file.cases, contract, place);
}

void read_machine(const std::string& bytes) {
  using namespace torchferry;
  check_fields(parse_strictly(bytes, kMachineKind, "fuzz"), kMachineKind, "fuzz");
}

void read_texts(const std::string& bytes) {
  torchferry::text_cases(bytes, *seed, "fuzz");
  torchferry::text_parameters(bytes, *seed, "fuzz");
}

void read_nesting(const std::string& bytes) {
  torchferry::measure_code_depth(bytes);
  torchferry::measure_depth(bytes, "fuzz");
}

void read_source(const std::string& bytes) {
  try {
    torchferry::check_code({{"code/__torch__/torchferry/___torch_mangle_0.py", bytes}});
  } catch (const torchferry::CodeError&) {
  }
}

/// Of an empty file, by a key of zeros.
void read_signature(const std::string& bytes) {
  const auto key = place + ".pub";
  write(key, "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA" + std::string(43, 'A') + "=\n-----END PUBLIC KEY-----\n");
  write(place + ".sig", bytes);
  torchferry::check_signature(place, "", key);
}

const std::map<std::string, std::function<void(const std::string&)>> readers{
    {"archive", read_whole},
    {"contract", [](const std::string& bytes) { torchferry::contract_from_json(bytes, "fuzz"); }},
    {"cases", [](const std::string& bytes) { torchferry::unpack_cases(bytes, *seed, "fuzz"); }},
    {"machine", read_machine},
    {"texts", read_texts},
    {"nesting", read_nesting},
    {"signature", read_signature},
    {"source", read_source},
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** words) {
  for (int i = 1; i < *count; ++i) {
    const std::string word = (*words)[i];
    if (const auto value = option(word, "target"); !value.empty()) target = value;
    if (const auto value = option(word, "seed"); !value.empty()) seed_path = value;
  }
  place = "/dev/shm/torchferry-fuzz-" + std::to_string(getpid()) + ".pt";
  std::atexit([] {
    for (const char* end : {"", ".sig", ".pub"}) std::remove((place + end).c_str());
  });
  const auto file = torchferry::read_archive(seed_path, {});
  seed = std::make_unique<torchferry::Contract>(torchferry::contract_from_json(file.contract, seed_path));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    readers.at(target)({reinterpret_cast<const char*>(data), size});
  } catch (const torchferry::Error&) {
  } catch (const std::bad_alloc&) {
  }
  return 0;
}
