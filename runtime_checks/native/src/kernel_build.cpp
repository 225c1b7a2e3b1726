#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

#include "cache.hpp"
#include "kernel.hpp"
#include "machine.hpp"
#include "sha256.hpp"
#include "text.hpp"

extern char** environ;

namespace torchferry {
namespace {

namespace fs = std::filesystem;

/// Nothing that changes a number: no contraction, no fast math.
const std::vector<std::string> kFlags = {"-std=c99", "-O3",  "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
                                         "-fPIC",    "-shared"};
constexpr const char* kNative = "-march=native";
constexpr double kSeconds = 3600;
constexpr const char* kLimit = "TORCHFERRY_COMPILE_SECONDS";
constexpr const char* kInstall = "install one (apt-get install gcc), or name it with the variable CC";

std::string variable(const char* name) {
  const char* found = std::getenv(name);
  return found ? found : "";
}

/// How long a compiler may take; that of runtime_checks/kernels/compilation.py.
double allowed_seconds() {
  const auto asked = variable(kLimit);
  if (asked.empty()) return kSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(asked.c_str(), &end);
  if (*end != '\0' || !(seconds > 0 && seconds <= 1e8))
    fail(TF_ERROR_ARGUMENT, {"a limit is not a positive number", kLimit, asked, "seconds, to 1e8", "leave it out: it is 3600"});
  return seconds;
}

struct Done {
  int code = -1;  ///< of what did not start: -1; of what took too long: kTooLong
  std::string out, errors;
};

std::string whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

constexpr int kTooLong = -2;

/// Wait for a process, and end it after so many seconds; return its exit code.
int wait_within(pid_t child, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  bool late = false;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    const auto found = waitpid(child, &status, late ? 0 : WNOHANG);
    if (found == child) break;
    // A host that ignores its children's ends has them reaped by the system.
    if (found < 0 && errno != EINTR) return errno == ECHILD ? 0 : -1;
    if (std::chrono::steady_clock::now() >= until && !late) {
      late = true;
      kill(child, SIGKILL);
    } else if (found == 0) {
      std::this_thread::sleep_for(pause);
    }
  }
  if (late) return kTooLong;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/// Its outputs go through files: of two pipes one would fill up while the other is read.
Done run(const std::vector<std::string>& words, const fs::path& folder) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const auto out = (folder / "out").string(), errors = (folder / "err").string();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const double seconds = allowed_seconds();
  pid_t child = 0;
  const int failed = posix_spawnp(&child, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return {-1, "", std::generic_category().message(failed)};
  const int code = wait_within(child, seconds);
  return {code, whole(out), whole(errors)};
}

bool on_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0;
  std::istringstream folders(variable("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((fs::path(folder) / name).c_str(), X_OK) == 0) return true;
  return false;
}

/// `$CC`, else the first of cc, gcc and clang.
std::vector<std::string> compiler() {
  const auto asked = variable("CC");
  if (!asked.empty()) {
    std::vector<std::string> words;
    wordexp_t found{};
    if (wordexp(asked.c_str(), &found, WRDE_NOCMD) == 0) {
      words.assign(found.we_wordv, found.we_wordv + found.we_wordc);
      wordfree(&found);
    }
    if (words.empty() || !on_path(words[0]))
      fail(TF_ERROR_UNAVAILABLE, {"the C compiler is not there", "CC", asked, "", kInstall});
    return words;
  }
  for (const char* name : {"cc", "gcc", "clang"})
    if (on_path(name)) return {name};
  fail(TF_ERROR_UNAVAILABLE, {"there is no C compiler", "", "", "cc, gcc or clang on the PATH", kInstall});
}

/// From its first error on.
std::string said(const std::string& text) {
  std::istringstream lines(text);
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) found.push_back(line);
  const auto at = std::find_if(found.begin(), found.end(),
                               [](const auto& line) { return line.find("error") != std::string::npos; });
  std::string shown;
  auto line = at == found.end() ? found.begin() : at;
  for (int i = 0; i < 5 && line != found.end(); ++i, ++line) shown += (i ? "\n" : "") + *line;
  return shown;
}

/// The instruction sets that compilers use: those of exporter/archive/target_machine.py.
bool is_set(const std::string& name) {
  for (const std::string_view start : {"avx", "sse", "ssse", "fma", "f16c", "bmi", "amx", "popcnt", "movbe", "abm", "asimd",
                                       "sve", "neon", "fp16", "bf16", "i8mm", "vnni", "gfni"})
    if (name.compare(0, start.size(), start) == 0) return true;
  return false;
}

std::string key(const std::vector<std::string>& command, const std::string& version,
                const std::map<std::string, std::string>& files) {
  std::string text;
  const auto add = [&](const std::string& part) { text += part + '\0'; };
  std::string joined;
  for (const auto& word : command) joined += (joined.empty() ? "" : " ") + word;
  add(joined);
  add(version);
  utsname system{};
  uname(&system);
  add(system.machine);
  for (const auto& name : instructions())
    if (is_set(name)) add(name);
  for (const auto& flag : kFlags) add(flag);
  for (const auto& [name, data] : files) {
    add(name);
    add(data);
  }
  return sha256(text.data(), text.size()).substr(0, 32);
}

/// Of this process for as long as it lives.
class Lock {
 public:
  explicit Lock(const std::string& path) : handle_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    int found = -1;
    while (handle_ >= 0 && (found = flock(handle_, LOCK_EX)) < 0 && errno == EINTR) {
    }
    if (found == 0) return;
    const std::error_code why(errno, std::generic_category());
    if (handle_ >= 0) close(handle_);
    throw fs::filesystem_error("lock", path, why);
  }
  ~Lock() { close(handle_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int handle_;
};

/// A folder that is gone with this. Its name and its lock are those of exporter/common/temporary_folders.py, which removes
/// what killed processes have left.
class Temporary {
 public:
  explicit Temporary(const fs::path& beside) {
    std::random_device random;
    char token[9];
    std::snprintf(token, sizeof token, "%08x", random());
    path_ = beside / (".build-" + host() + token);
    // Another process may take it for a leftover before it is locked.
    do {
      if (lock_ >= 0) close(lock_);
      if (mkdir(path_.c_str(), 0700) != 0)
        throw fs::filesystem_error("make", path_, std::error_code(errno, std::generic_category()));
      lock_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
      if (lock_ >= 0) flock(lock_, LOCK_EX);
    } while (!fs::exists(path_));
  }
  ~Temporary() {
    // Not std::filesystem's own, of which the libtorch of torch 2.10 exports a copy that calls a null pointer.
    const auto remove_one = [](const char* path, const struct stat*, int, FTW*) {
      std::remove(path);
      return 0;
    };
    nftw(path_.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (lock_ >= 0) close(lock_);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  fs::path path() const { return path_; }

 private:
  /// This host, as in the names of Python's: locks of another one may not be seen here.
  static std::string host() {
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return sha256(name, std::strlen(name)).substr(0, 8);
  }

  fs::path path_;
  int lock_ = -1;
};

void put(const fs::path& path, const std::string& data) {
  std::ofstream file(path, std::ios::binary);
  file.write(data.data(), static_cast<std::streamsize>(data.size()));
  file.close();
  if (!file) throw fs::filesystem_error("write", path, std::error_code(errno, std::generic_category()));
}

void compile(const std::vector<std::string>& command, const std::map<std::string, std::string>& files,
             const std::string& main, const fs::path& work, const fs::path& made) {
  for (const auto& [name, data] : files) put(work / name, data);
  auto words = command;
  words.insert(words.end(), kFlags.begin(), kFlags.end());
  Done done;
  for (const bool native : {true, false}) {
    auto all = words;
    if (native) all.push_back(kNative);
    for (const auto& word : {std::string("-o"), (made / "kernel.so").string(), (work / main).string(), std::string("-lm")})
      all.push_back(word);
    done = run(all, work);
    // Not every compiler knows the machine that it is on.
    if (done.code == 0 || done.code == kTooLong || done.errors.find(kNative) == std::string::npos) break;
  }
  const auto asked = variable(kLimit);
  if (done.code == kTooLong)
    fail(TF_ERROR_UNAVAILABLE, {"the C compiler does not end on the kernel", words[0],
                                "more than " + (asked.empty() ? "3600" : asked) + " s", kLimit,
                                "load the archive, which runs as it is"});
  if (done.errors.find("No space left on device") != std::string::npos)
    throw fs::filesystem_error("write", made, std::make_error_code(std::errc::no_space_on_device));
  if (done.code != 0 || !fs::exists(made / "kernel.so"))
    fail(TF_ERROR_UNAVAILABLE, {"the C compiler fails on the kernel", words[0] + " ... " + main, said(done.errors), "",
                                "set CC to a compiler of C99"});
  const auto bytes = whole(made / "kernel.so");
  put(made / "kernel.sha256", sha256(bytes.data(), bytes.size()));
}

}  // namespace

std::string built(const std::map<std::string, std::string>& files, const std::string& main) {
  const auto command = compiler();
  const auto folder = cache_folder() / "kernels";
  try {
    if (!fs::exists(folder)) {
      fs::create_directories(folder.parent_path());
      if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
        throw fs::filesystem_error("make", folder, std::error_code(errno, std::generic_category()));
    }
    refuse_shared_folder(folder);
    const Temporary work(folder);
    auto ask = command;
    ask.push_back("--version");
    const auto done = run(ask, work.path());
    if (done.code != 0)
      fail(TF_ERROR_UNAVAILABLE, {"the C compiler does not start", command[0],
                                  done.code == kTooLong ? "no end" : said(done.errors), "", kInstall});
    const auto target = folder / key(command, done.out.substr(0, done.out.find('\n')), files);
    {
      const Lock lock(target.string() + ".lock");
      if (!fs::exists(target)) {
        const auto made = work.path() / "made";
        fs::create_directory(made);
        fs::permissions(made, fs::perms::owner_all);
        compile(command, files, main, work.path(), made);
        fs::rename(made, target);
      }
    }
    const auto bytes = whole(target / "kernel.so");
    if (bytes.empty() || sha256(bytes.data(), bytes.size()) != whole(target / "kernel.sha256"))
      fail(TF_ERROR_ARCHIVE, {"the kernel in the cache was changed", target.string(), "", "what was built there",
                              "remove that folder: it is built anew"});
    return bytes;
  } catch (const fs::filesystem_error& error) {
    fail(TF_ERROR_UNAVAILABLE, {"the kernel has no place to be built", folder.string(), error.code().message(), "",
                                "set TORCHFERRY_CACHE to a folder that can be written"});
  }
}

}  // namespace torchferry
