#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include <sys/utsname.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include "descriptors.hpp"
#include "engine.hpp"
#include "files.hpp"
#include "machine.hpp"
#include "pickles.hpp"
#include "call_scope.hpp"
#include "contract_fields.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

/// "2.13" of "2.13.0+cpu"
std::string minor(const std::string& version) {
  const auto first = version.find('.');
  return version.substr(0, first == std::string::npos ? first : version.find_first_of(".+", first + 1));
}

void hold_machine(const std::string& text, const std::string& path, const at::Device& device) {
  const auto raw = parse_strictly(text, kMachineKind, path);
  check_fields(raw, kMachineKind, path);
  std::string got, expected;
  const auto note = [&](const std::string& here, const std::string& there) {
    got += (got.empty() ? "" : "; ") + here;
    expected += (expected.empty() ? "" : "; ") + there;
  };
  utsname system{};
  uname(&system);
  const auto hold = [&](const char* what, const std::string& here) {
    const auto there = raw.at(what).get<std::string>();
    if (there != here) note(what + (" " + here), what + (" " + there));
  };
  hold("system", system.sysname);
  hold("processor", system.machine);
  hold("device", at::DeviceTypeName(device.type(), true));
  const auto here = instructions();
  std::set<std::string> missing;
  for (const auto& one : raw.at("instructions"))
    if (!here.count(one.get<std::string>())) missing.insert(one.get<std::string>());
  if (!missing.empty() && got.empty()) note("a processor without " + joined(missing), "those instructions");
  const auto torch = raw.at("torch").get<std::string>();
  if (minor(torch) != minor(TORCH_VERSION)) note("torch " TORCH_VERSION, "torch " + torch);
  if (!got.empty())
    fail(TF_ERROR_ARCHIVE, {"the compiled code in this file is for another machine", path, got, expected,
                            "make the .pt2 here with `torchferry convert ARCHIVE --to pt2`, or load the .pt"});
}

/// The bytes that were checked, as a file of nobody else's: torch's loader takes only files.
class Unpacked {
 public:
  explicit Unpacked(const std::string& bytes) {
    const char* folder = std::getenv("TMPDIR");
    path_ = std::string(folder && *folder ? folder : "/tmp") + "/torchferry-XXXXXX.pt2";
    const int handle = mkstemps(path_.data(), 4);
    const bool written = handle >= 0 && write_all(handle, bytes);
    if (handle >= 0) close(handle);
    if (!written) {
      if (handle >= 0) unlink(path_.c_str());
      fail(TF_ERROR_FILE, {"the compiled code cannot be unpacked", path_, "", "a folder for temporary files with room",
                           "set TMPDIR to another one"});
    }
  }
  ~Unpacked() { unlink(path_.c_str()); }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Compiled : public Engine {
 public:
  Compiled(const ArchiveFile& file, const std::string& path, const at::Device& device, const Options& options,
           const Contract& contract)
      : options_(options), device_(device) {
    hold_machine(file.machine, path, device);
    try {
      const Unpacked unpacked(*file.bytes);
      const auto held = load_pickled_dict(file.parameters, path);
      for (const auto& method : contract.methods) {
        Entry entry;
        entry.method = method;
        entry.loader = std::make_unique<torch::inductor::AOTIModelPackageLoader>(unpacked.path(), method.name);
        for (const auto& item : held.at(method.name).toGenericDict()) {
          const auto name = item.key().toStringRef();
          auto known = parameters_.find(name);
          if (known == parameters_.end()) known = parameters_.emplace(name, item.value().toTensor().to(device)).first;
          entry.held.push_back(known->second);
        }
        entries_.push_back(std::move(entry));
      }
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      fail(TF_ERROR_ARCHIVE, {"the compiled code does not load", path, text.substr(0, text.find('\n')), "",
                              "make the .pt2 here with `torchferry convert ARCHIVE --to pt2`, or load the .pt"});
    }
    batch_ndim_ = contract.batch_ndim;
  }

  void check(const Contract&, const std::string&) const override {}
  void prepare(const Contract&) override {}

  at::Tensor parameter(const std::string& name) const override {
    const auto found = parameters_.find(name);
    return found == parameters_.end() ? at::Tensor() : found->second;
  }

  void to(const at::Device& device) override {
    if (device != device_)
      fail(TF_ERROR_DEVICE, {"compiled code stays on the device that it was compiled for", "", device.str(),
                             device_.str(), "load the .pt there, or convert it there"});
  }

  /// The code knows one batch dimension and dense memory, and checks nothing itself.
  Tensors run(size_t index, Tensors inputs) const override {
    const auto& entry = entries_[index];
    return guarded(entry.method.name, options_.intra_op_threads, [&] {
      const at::NoGradGuard no_grad;
      const auto batch = flattened(entry.method, batch_ndim_, inputs);
      for (auto& input : inputs) input = input.contiguous();
      inputs.insert(inputs.end(), entry.held.begin(), entry.held.end());
      auto outputs = entry.loader->boxed_run(std::move(inputs));
      if (outputs.size() != entry.method.outputs.size())
        fail(TF_ERROR_MODEL, {"method " + in_quotes(entry.method.name) + " returned another number of outputs", "",
                              std::to_string(outputs.size()), std::to_string(entry.method.outputs.size())});
      restore(batch, batch_ndim_, outputs);
      return outputs;
    });
  }

  int64_t nodes() const override { return 0; }
  bool optimized() const override { return true; }
  const char* name() const override { return "pt2"; }

 private:
  struct Entry {
    Method method;
    std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader;
    Tensors held;
  };

  Options options_;
  at::Device device_;
  int batch_ndim_ = 1;
  std::vector<Entry> entries_;
  std::map<std::string, at::Tensor> parameters_;
};

}  // namespace

std::unique_ptr<Engine> compiled_engine(const ArchiveFile& file, const std::string& path, const at::Device& device,
                                        const Options& options, const Contract& contract) {
  return std::make_unique<Compiled>(file, path, device, options, contract);
}

}  // namespace torchferry
