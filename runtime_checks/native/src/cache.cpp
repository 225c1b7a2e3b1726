#include "cache.hpp"

#include <cstdlib>
#include <string>

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <torchferry/error.hpp>
#include <torchferry/torchferry.h>

namespace torchferry {

std::filesystem::path cache_folder() {
  const auto variable = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  const auto setting = variable("TORCHFERRY_CACHE"), base = variable("XDG_CACHE_HOME");
  if (!setting.empty()) return setting;
  const auto* user = getpwuid(getuid());
  // As Python's Path.home().
  std::string home = std::getenv("HOME") ? variable("HOME") : user ? user->pw_dir : "";
  if (std::getenv("HOME") && home.empty()) home = "/";
  const auto folder = base.empty() ? std::filesystem::path(home) / ".cache" : std::filesystem::path(base);
  if (!folder.is_absolute())
    // Below the folder that a host works in, somebody else may have put one.
    fail(TF_ERROR_UNAVAILABLE, {"there is no place for the cache", "HOME, XDG_CACHE_HOME", folder.string(),
                                "an absolute path", "set TORCHFERRY_CACHE to a folder of one's own"});
  return folder / "torchferry";
}

void refuse_shared_folder(const std::filesystem::path& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) == 0 && status.st_uid == getuid() && !(status.st_mode & 022)) return;
  fail(TF_ERROR_ARCHIVE, {"others can write to a folder of the cache", folder.string(), "",
                          "a folder of one's own, with mode 700",
                          "remove it, or set TORCHFERRY_CACHE to another folder"});
}

}  // namespace torchferry
