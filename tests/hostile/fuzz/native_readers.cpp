// Readers of the native library under libFuzzer: native_readers --target=archive|contract|cases --seed=ARCHIVE [CORPUS].
//
// A reader may throw torchferry::Error, and nothing else. Built by run.py with all sources of the library in one file.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include <unistd.h>

#include <torchferry/contract.hpp>
#include <torchferry/error.hpp>

#include "archive.hpp"
#include "cases.hpp"

namespace {

std::string target, seed_path, place;
std::unique_ptr<torchferry::Contract> seed;

std::string option(const std::string& argument, const std::string& name) {
  const auto start = "--" + name + "=";
  return argument.rfind(start, 0) == 0 ? argument.substr(start.size()) : "";
}

void write(const std::string& bytes) {
  std::ofstream file(place, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

torchferry::Options make_options() {
  torchferry::Options options;
  // Who forges a file computes digests and seal again: what lies behind them is to be reached.
  options.check_integrity = false;
  return options;
}

void read(const std::string& bytes) {
  using namespace torchferry;
  if (target == "contract") {
    contract_from_json(bytes, "fuzz");
  } else if (target == "cases") {
    unpack_cases(bytes, *seed, "fuzz");
  } else {
    write(bytes);
    const auto file = read_archive(place, make_options());
    const auto contract = contract_from_json(file.contract, place);
    unpack_cases(file.cases, contract, place);
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** words) {
  for (int i = 1; i < *count; ++i) {
    const std::string word = (*words)[i];
    if (const auto value = option(word, "target"); !value.empty()) target = value;
    if (const auto value = option(word, "seed"); !value.empty()) seed_path = value;
  }
  place = "/dev/shm/torchferry-fuzz-" + std::to_string(getpid()) + ".pt";
  std::atexit([] { std::remove(place.c_str()); });
  const auto file = torchferry::read_archive(seed_path, {});
  seed = std::make_unique<torchferry::Contract>(torchferry::contract_from_json(file.contract, seed_path));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    read({reinterpret_cast<const char*>(data), size});
  } catch (const torchferry::Error&) {
  } catch (const std::bad_alloc&) {
  }
  return 0;
}
