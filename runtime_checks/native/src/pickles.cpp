#include "pickles.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "archive.hpp"
#include "limits.hpp"
#include "text.hpp"
#include "zip_directory.hpp"

namespace torchferry {
namespace {

/// Runs the opcodes that torch writes (Python, Lib/pickletools.py, protocol 2), for what holds what alone.
class Machine {
 public:
  Machine(const std::string& bytes, const std::string& where, size_t most_parts)
      : bytes_(bytes), where_(where), most_parts_(most_parts) {}

  /// How many containers are in each other in the result.
  int run() {
    while (true) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      step(code);
    }
    if (stack_.size() != 1) refuse("a stack of " + std::to_string(stack_.size()) + " values");
    return longest_path(stack_[0]);
  }

 private:
  void step(unsigned char code) {
    switch (code) {
      case 0x80: take(1); return;                                   // PROTO
      case 'c': line(), line(); return push();                      // GLOBAL
      case 'X': return text(number(4));                             // BINUNICODE
      case 0x8a: take(number(1)); return push();                    // LONG1
      case 'K': take(1); return push();                             // BININT1
      case 'M': take(2); return push();                             // BININT2
      case 'J': take(4); return push();                             // BININT
      case 'G': take(8); return push();                             // BINFLOAT
      case 'N': case 0x88: case 0x89: return push();                // NONE, NEWTRUE, NEWFALSE
      case ')': case '}': case ']': return push();                  // EMPTY_TUPLE, EMPTY_DICT, EMPTY_LIST
      case '(': marks_.push_back(stack_.size()); return;            // MARK
      case 't': return push(pop(stack_.size() - mark()));           // TUPLE
      case 0x85: case 0x86: case 0x87: return push(pop(code - 0x84));  // TUPLE1 to TUPLE3
      case 'R': case 'b': case 0x81: return push(pop(2));           // REDUCE, BUILD, NEWOBJ
      case 'Q': return push(pop(1));                                // BINPERSID
      case 'a': return grow(pop(1));                                // APPEND
      case 's': return grow(pop(2));                                // SETITEM
      case 'e': case 'u': return grow(pop(stack_.size() - mark())); // APPENDS, SETITEMS
      case 'q': return keep(number(1));                             // BINPUT
      case 'r': return keep(number(4));                             // LONG_BINPUT
      case 'h': return recall(number(1));                           // BINGET
      case 'j': return recall(number(4));                           // LONG_BINGET
      default: refuse("the opcode " + std::to_string(code));
    }
  }

  const char* take(size_t count) {
    if (count > bytes_.size() - at_) refuse("an early end");
    at_ += count;
    return bytes_.data() + at_ - count;
  }
  size_t number(size_t count) {
    const char* digits = take(count);
    size_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(digits[i]);
    return value;
  }
  /// torch parses the names of types by recursion.
  void text(size_t count) {
    const char* characters = take(count);
    if (std::count(characters, characters + count, '[') > kMaxCodeNesting)
      refuse("a text with more than " + std::to_string(kMaxCodeNesting) + " brackets");
    push();
  }
  void line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string::npos) refuse("an early end");
    at_ = end + 1;
  }
  size_t mark() {
    if (marks_.empty()) refuse("no mark");
    const auto place = marks_.back();
    marks_.pop_back();
    if (place > stack_.size()) refuse("a mark above the stack");
    return place;
  }
  size_t top() {
    if (stack_.empty()) refuse("an empty stack");
    return stack_.back();
  }
  void push(std::vector<size_t> values = {}) {
    held_.push_back(std::move(values));
    stack_.push_back(held_.size() - 1);
  }
  std::vector<size_t> pop(size_t count) {
    if (count > stack_.size()) refuse("an empty stack");
    const auto start = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<size_t> values(start, stack_.end());
    stack_.erase(start, stack_.end());
    return values;
  }
  void grow(const std::vector<size_t>& values) {
    auto& inside = held_[top()];
    inside.insert(inside.end(), values.begin(), values.end());
  }
  /// torch makes room for all places below: a few bytes would ask for 64 GiB. Who writes a pickle counts them.
  void keep(size_t place) {
    if (place > memo_.size()) refuse("a value kept at place " + std::to_string(place));
    memo_[place] = top();
  }
  void recall(size_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) refuse("a value that was not kept");
    stack_.push_back(found->second);
  }

  /// A container may have grown after others held it: what holds what is known at the end.
  int longest_path(size_t root) {
    std::vector<int> depths(held_.size(), -1);
    // torch walks through a constant as if nothing was shared.
    std::vector<size_t> sizes(held_.size(), 1);
    const size_t largest = held_.size() + kMaxSharedValues;
    std::vector<bool> open(held_.size(), false);
    std::vector<size_t> todo{root};
    while (!todo.empty()) {
      const auto value = todo.back();
      // It may have been put there for each that holds it.
      if (depths[value] >= 0) {
        todo.pop_back();
        continue;
      }
      const bool visited = open[value];
      open[value] = true;
      bool ready = true;
      int depth = 0;
      size_t size = 1;
      for (const auto inner : held_[value]) {
        if (depths[inner] >= 0) {
          depth = std::max(depth, depths[inner] + 1);
          size += sizes[inner];
          continue;
        }
        if (visited || open[inner]) refuse("a container that holds itself");
        ready = false;
        todo.push_back(inner);
      }
      if (!ready) continue;
      if (size > largest) refuse("more than " + std::to_string(largest) + " values if none were shared");
      if (value != root && size > most_parts_) refuse("a value of " + std::to_string(size) + " parts");
      depths[value] = depth;
      sizes[value] = size;
      open[value] = false;
      todo.pop_back();
    }
    return depths[root];
  }

  [[noreturn]] void refuse(const std::string& got) const {
    fail(TF_ERROR_ARCHIVE, {"a pickle is not one that torch writes", where_, got, "values in lists, tuples and dicts"});
  }

  const std::string& bytes_;
  const std::string& where_;
  size_t most_parts_;
  size_t at_ = 0;
  /// What each value holds, by its number.
  std::vector<std::vector<size_t>> held_;
  std::vector<size_t> stack_;
  std::vector<size_t> marks_;
  std::map<size_t, size_t> memo_;
};

/// Throws where a tensor is not dense, on the CPU, and has the bytes of all its elements, as in
/// exporter/archive/packed_tensors.py: a small file makes no large tensor.
void check_whole(const c10::IValue& value, const std::string& where) {
  if (value.isGenericDict())
    for (const auto& item : value.toGenericDict()) check_whole(item.value(), where);
  if (!value.isTensor()) return;
  const auto tensor = value.toTensor();
  if (tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() && !tensor.is_quantized() &&
      static_cast<size_t>(tensor.numel()) <= tensor.storage().nbytes() / tensor.element_size())
    return;
  fail(TF_ERROR_ARCHIVE, {"what torch.save wrote are not whole tensors", where,
                          tensor.defined() ? c10::str(tensor.sizes(), ", ", tensor.layout(), ", on ", tensor.device())
                                           : "none",
                          "dense tensors on the CPU, with the bytes of all their elements"});
}

}  // namespace

c10::impl::GenericDict load_pickled_dict(const std::string& bytes, const std::string& where) {
  try {
    // A pickle is a program, and one that nests a hundred thousand lists ends the process when they are destroyed.
    if (const auto expanded = expanded_size(bytes); expanded > bytes.size())
      fail(TF_ERROR_ARCHIVE, {"what torch.save wrote cannot be read", where,
                              "records of " + std::to_string(expanded) + " bytes in " + std::to_string(bytes.size())});
    caffe2::serialize::PyTorchStreamReader reader(torchferry::reader(std::make_shared<const std::string>(bytes)));
    const auto [pickle, size] = reader.getRecord("data.pkl");
    const auto depth = measure_depth({static_cast<const char*>(pickle.get()), size}, where);
    if (depth > kMaxNesting)
      fail(TF_ERROR_ARCHIVE, {"the stored cases are not tensors by name", where,
                              std::to_string(depth) + " containers in each other", "at most " + std::to_string(kMaxNesting)});
    const auto value = torch::jit::pickle_load({bytes.begin(), bytes.end()});
    check_whole(value, where);
    if (value.isGenericDict()) return value.toGenericDict();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail(TF_ERROR_ARCHIVE, {"what torch.save wrote cannot be read", where, text.substr(0, text.find('\n'))});
  }
  fail(TF_ERROR_ARCHIVE, {"the stored cases are not tensors by name", where, "something else than a dict"});
}

int measure_depth(const std::string& pickle, const std::string& where, size_t most_parts) {
  return Machine(pickle, where, most_parts).run();
}

int measure_code_depth(const std::string& code) {
  int depth = 0, deepest = 0, indent = 0, widest = 0;
  bool at_start = true;
  for (const char c : code) {
    if (c == '(' || c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ')' || c == ']' || c == '}') depth = std::max(0, depth - 1);
    if (c == '\n' || c == '\r') {
      at_start = true, indent = 0;
    } else if (at_start && (c == ' ' || c == '\t')) {
      ++indent;
    } else if (at_start) {
      at_start = false;
      widest = std::max(widest, indent);
    }
  }
  return std::max(deepest, widest / 2);
}

}  // namespace torchferry
