#include "native_code.hpp"

#include <filesystem>
#include <system_error>

#include "cache.hpp"
#include "sha256.hpp"

namespace torchferry {

std::string kernel_digest(const std::map<std::string, std::string>& files) {
  std::string lines;
  for (const auto& [name, data] : files) lines += sha256(data.data(), data.size()) + "  " + name + "\n";
  return sha256(lines.data(), lines.size());
}

void refuse_foreign_code(const std::function<std::string()>& digest, const std::string& path, const Options& options) {
  if (options.trust == Trust::kNative || !options.public_key.empty()) return;
  const auto folder = cache_folder() / "own";
  const auto found = digest();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(folder / found, ignored)) return refuse_shared_folder(folder);
  fail(TF_ERROR_TRUST, {"the file holds native code that was not made here, and nobody asked for it", path,
                        "sha256 " + found, "code that this user exported or converted, and " + folder.string() + " knows",
                        "make it here from its .pt; or, if you trust who made it, load it with the option trust = "
                        "TF_TRUST_NATIVE"});
}

}  // namespace torchferry
