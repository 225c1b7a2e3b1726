#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "archive.hpp"
#include "engine.hpp"

/// Kernels: functions in C that `torchferry export --format c` wrote, in a shared object.
namespace torchferry {

constexpr const char* kKernelFormat = "torchferry kernel 1";

extern "C" {
/// `NAME_array` of a kernel's header.
struct KernelArray {
  void* data;
  const std::ptrdiff_t* strides;
};
using KernelFunction = int(std::ptrdiff_t, const KernelArray*, const KernelArray*, const void* const*, int32_t*, void*);
}

/// The bytes that a function works in are its caller's.
struct KernelMethod {
  std::string name;
  KernelFunction* function = nullptr;
  size_t workspace = 0;
};

/// A shared object, closed with its last user.
using Library = std::shared_ptr<void>;
/// Of these bytes, whatever the file at `path` is by now. Throws TF_ERROR_ARCHIVE where it does not load.
Library open_library(const std::string& bytes, const std::string& path);

struct Kernel {
  Library library;
  std::vector<KernelMethod> methods;
  std::map<std::string, at::Tensor> parameters;
};

std::unique_ptr<Engine> kernel_engine(Kernel kernel, const Contract& contract, const Options& options);

/// Whether a file is one: by its first bytes.
bool is_library(const std::string& bytes);
/// A kernel's shared object with its contract and cases. Throws `Error` (TF_ERROR_ARCHIVE) for one that is none, or that
/// is for another machine.
ArchiveFile read_library(const std::string& path, const std::string& bytes);
std::unique_ptr<Engine> library_engine(const ArchiveFile& file, const std::string& path, const Contract& contract,
                                       const Options& options);

/// The kernel that an archive carries, built by this machine's compiler of C, and the names of the cases that say
/// nothing of it. Throws `Error`.
struct Carried {
  std::unique_ptr<Engine> engine;
  std::vector<std::string> left_out;
  std::map<std::string, Bounds> tolerance;  ///< by output, where a kernel's are wider
};
Carried carried_engine(const std::map<std::string, std::string>& files, const std::string& path,
                       const Contract& contract, const Options& options, const Engine& script);

/// The bytes of the shared object of `main` and what it includes, from the cache, where it is put when it is not there: the same
/// place, key and lock as in runtime_checks/kernels/compilation.py. Throws `Error` (TF_ERROR_UNAVAILABLE, TF_ERROR_ARCHIVE).
std::string built(const std::map<std::string, std::string>& files, const std::string& main);

}  // namespace torchferry
