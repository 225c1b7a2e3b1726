#pragma once

#include <filesystem>

namespace torchferry {

/// The cache of what is built here, as in runtime_checks/cache.py: `$TORCHFERRY_CACHE`, else
/// `$XDG_CACHE_HOME/torchferry`, else `~/.cache/torchferry`. Throws TF_ERROR_UNAVAILABLE where that is no absolute path.
std::filesystem::path cache_folder();

/// Throws TF_ERROR_ARCHIVE where somebody else could put code into a folder of the cache.
void refuse_shared_folder(const std::filesystem::path& folder);

}  // namespace torchferry
