#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <dlfcn.h>
#ifdef __linux__
#include <elf.h>
#endif

#include "kernel.hpp"
#include "machine.hpp"
#include "text.hpp"
#include "text_cases.hpp"

namespace torchferry {
namespace {

constexpr const char* kSymbol = "torchferry_kernel";
constexpr const char* kAgain = "build it again here, from the kernel's folder, with cmake -DBUILD_SHARED_LIBS=ON";

/// As exporter/kernels/templates/shared.c.jinja has them.
struct TableMethod {
  const char* name;
  KernelFunction* function;
  size_t workspace;
};
struct Table {
  const char *format, *instructions;
  const char *const *contract, *const *cases;
  size_t count;
  const TableMethod* methods;
};

std::string joined(const char* const* pieces) {
  std::string text;
  for (; *pieces; ++pieces) text += *pieces;
  return text;
}

/// Whether the file ends before what it says that it has: the system maps one such, and ends the process later.
bool is_cut([[maybe_unused]] const std::string& bytes) {
#if defined(__linux__) && defined(__LP64__)
  Elf64_Ehdr head{};
  if (bytes.size() < sizeof head) return true;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.e_ident[EI_CLASS] != ELFCLASS64) return false;
  const auto beyond = [&](uint64_t offset, uint64_t size) { return offset > bytes.size() || size > bytes.size() - offset; };
  if (beyond(head.e_shoff, uint64_t{head.e_shnum} * head.e_shentsize)) return true;
  if (head.e_phentsize != sizeof(Elf64_Phdr) || beyond(head.e_phoff, uint64_t{head.e_phnum} * head.e_phentsize)) return true;
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr part{};
    std::memcpy(&part, bytes.data() + head.e_phoff + i * sizeof part, sizeof part);
    if (beyond(part.p_offset, part.p_filesz)) return true;
  }
#endif
  return false;
}

const Table& table_of(const Library& library, const std::string& path) {
  const auto* table = static_cast<const Table*>(dlsym(library.get(), kSymbol));
  const std::string format = table && table->format ? table->format : "";
  if (format != kKernelFormat)
    fail(TF_ERROR_ARCHIVE, {"this shared object is no kernel that this torchferry knows", path,
                            format.empty() ? "one without the symbol torchferry_kernel" : format, kKernelFormat, kAgain});
  return *table;
}

void hold_machine(const Table& table, const std::string& path) {
  const auto here = instructions();
  std::string missing;
  std::istringstream words(table.instructions);
  for (std::string word; words >> word;)
    if (!here.empty() && !here.count(word)) missing += (missing.empty() ? "" : ", ") + word;
  if (!missing.empty())
    fail(TF_ERROR_ARCHIVE, {"the kernel was compiled for another machine", path, "a processor without " + missing,
                            "those instructions", kAgain});
}

/// Names that the program, or what it links, has too are bound to those.
void hold_own(const Table& table, const std::string& path) {
  Dl_info own{}, other{};
  for (size_t i = 0; i < table.count; ++i)
    if (!dladdr(&table, &own) || !dladdr(reinterpret_cast<void*>(table.methods[i].function), &other) ||
        own.dli_fbase != other.dli_fbase)
      fail(TF_ERROR_ARCHIVE, {"the functions of another shared object stand in the place of its own", path,
                              std::string(table.methods[i].name) + " of " + (other.dli_fname ? other.dli_fname : "nothing"),
                              "", "link it with -Wl,-Bsymbolic"});
}

}  // namespace

bool is_library(const std::string& bytes) {
  return bytes.rfind("\x7f" "ELF", 0) == 0 || bytes.rfind("\xcf\xfa\xed\xfe", 0) == 0;
}

ArchiveFile read_library(const std::string& path, const std::string& bytes) {
  if (is_cut(bytes))
    fail(TF_ERROR_ARCHIVE, {"the shared object is truncated", path, std::to_string(bytes.size()) + " bytes", "", kAgain});
  // Loading one runs what it likes to: not one that cannot be ours.
  if (bytes.find(kSymbol) == std::string::npos)
    fail(TF_ERROR_ARCHIVE, {"this shared object is no kernel", path, "one without the symbol torchferry_kernel",
                            "the kernel's NAME.c and NAME_shared.c in one shared object", kAgain});
  ArchiveFile file;
  file.library = open_library(bytes, path);
  const auto& table = table_of(file.library, path);
  hold_machine(table, path);
  hold_own(table, path);
  file.contract = joined(table.contract);
  file.cases = joined(table.cases);
  return file;
}

std::unique_ptr<Engine> library_engine(const ArchiveFile& file, const std::string& path, const Contract& contract,
                                       const Options& options) {
  const auto& table = table_of(file.library, path);
  Kernel kernel{file.library, {}, text_parameters(file.cases, contract, path)};
  for (size_t i = 0; i < table.count; ++i)
    kernel.methods.push_back({table.methods[i].name, table.methods[i].function, table.methods[i].workspace});
  return kernel_engine(std::move(kernel), contract, options);
}

}  // namespace torchferry
