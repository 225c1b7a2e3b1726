#pragma once
// What stands between a caller in C and the objects behind the handles.

#include <torchferry/torchferry.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include <torchferry/model.hpp>

#include "text.hpp"

namespace torchferry {

/// Objects by number. A handle is never dereferenced, so one that was closed or invented is an error and no crash;
/// an object in use by another thread lives on until that call returns.
template <class T, class Handle>
class Registry {
 public:
  Handle add(std::shared_ptr<T> object) {
    std::unique_lock lock(mutex_);
    const uintptr_t id = next_ += 8;
    objects_.emplace(id, std::move(object));
    return reinterpret_cast<Handle>(id);
  }
  std::shared_ptr<T> find(Handle handle, const char* what) const {
    std::shared_lock lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) missing(handle, what);
    return found->second;
  }
  void remove(Handle handle, const char* what) {
    std::shared_ptr<T> last;  // destroyed outside the lock
    std::unique_lock lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) missing(handle, what);
    last = std::move(found->second);
    objects_.erase(found);
    lock.unlock();
  }

 private:
  [[noreturn]] static void missing(Handle handle, const char* what) {
    fail(TF_ERROR_HANDLE, {std::string("there is no ") + what + " behind this handle",
                           std::string("argument '") + what + "'", handle ? "one that was closed, or never was" : "null",
                           std::string("a ") + what + " that is open"});
  }
  mutable std::shared_mutex mutex_;
  std::unordered_map<uintptr_t, std::shared_ptr<T>> objects_;
  uintptr_t next_ = 0x7f000;
};

/// This thread's last failure of each handle; null stands for calls without one.
inline std::unordered_map<tf_model, std::string>& errors() {
  thread_local std::unordered_map<tf_model, std::string> texts;
  return texts;
}

/// What was said of this thread's last call.
inline std::string& warning() {
  thread_local std::string text;
  return text;
}

inline tf_status report(tf_model model, tf_status status, const char* text) noexcept {
  try {
    auto& texts = errors();
    // Those of models that other threads closed would stay for ever.
    if (texts.size() > 1000) texts.clear();
    texts[status == TF_ERROR_HANDLE ? nullptr : model] = text;
  } catch (...) {
  }
  return status;
}

/// Runs `work` so that nothing leaves it but a status.
template <class Work>
tf_status guarded(tf_model model, Work work) noexcept {
  try {
    return work();
  } catch (const Error& error) {
    return report(model, error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return report(model, TF_ERROR_MEMORY, "there is not enough memory");
  } catch (const std::exception& error) {
    return report(model, TF_ERROR_INTERNAL, error.what());
  } catch (...) {
    return report(model, TF_ERROR_INTERNAL, "an exception of an unknown kind");
  }
}

}  // namespace torchferry
