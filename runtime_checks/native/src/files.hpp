#pragma once

#include <cerrno>
#include <string>

#include <unistd.h>

namespace torchferry {

/// Whether all of it could be written.
inline bool write_all(int handle, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const auto count = write(handle, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace torchferry
