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
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  const auto setting = variable("TORCHFERRY_CACHE"), base = variable("XDG_CACHE_HOME");
  if (!setting.empty()) return setting;
  const auto* user = getpwuid(getuid());
  const auto home = !variable("HOME").empty() || !user ? variable("HOME") : std::string(user->pw_dir);
  return (base.empty() ? std::filesystem::path(home) / ".cache" : std::filesystem::path(base)) / "torchferry";
}

void refuse_shared_folder(const std::filesystem::path& folder) {
  struct stat status {};
  if (stat(folder.c_str(), &status) == 0 && status.st_uid == getuid() && !(status.st_mode & 022)) return;
  fail(TF_ERROR_ARCHIVE, {"others can write to a folder of the cache", folder.string(), "",
                          "a folder of one's own, with mode 700",
                          "remove it, or set TORCHFERRY_CACHE to another folder"});
}

}  // namespace torchferry
