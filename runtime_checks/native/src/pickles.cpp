#include "pickles.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "archive.hpp"
#include "limits.hpp"
#include "text.hpp"

namespace torchferry {
namespace {

/// A value on the pickle's stack: a list or a dict may grow, and is in one place only.
struct Item {
  int depth = 0;
  bool grows = false;
};

/// Runs the opcodes that torch.save writes (Python, Lib/pickletools.py, protocol 2), for the depth alone.
class Machine {
 public:
  Machine(const std::string& bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  int run() {
    while (true) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      step(code);
    }
    if (stack_.size() != 1) refuse("a stack of " + std::to_string(stack_.size()) + " values");
    return stack_[0].depth;
  }

 private:
  void step(unsigned char code) {
    switch (code) {
      case 0x80: take(1); return;                                    // PROTO
      case 'c': line(), line(); return push({});                     // GLOBAL
      case 'X': take(number(4)); return push({});                    // BINUNICODE
      case 0x8a: take(number(1)); return push({});                   // LONG1
      case 'K': take(1); return push({});                            // BININT1
      case 'M': take(2); return push({});                            // BININT2
      case 'J': take(4); return push({});                            // BININT
      case 'G': take(8); return push({});                            // BINFLOAT
      case 'N': case 0x88: case 0x89: return push({});               // NONE, NEWTRUE, NEWFALSE
      case '(': marks_.push_back(stack_.size()); return;             // MARK
      case ')': return push({1, false});                             // EMPTY_TUPLE
      case '}': case ']': return push({1, true});                    // EMPTY_DICT, EMPTY_LIST
      case 't': return collect(stack_.size() - mark());              // TUPLE
      case 0x85: case 0x86: case 0x87: return collect(code - 0x84);  // TUPLE1 to TUPLE3
      case 'R': case 'b': return collect(2);                         // REDUCE, BUILD
      case 'Q': return collect(1);                                   // BINPERSID
      case 'a': return grow(1);                                      // APPEND
      case 's': return grow(2);                                      // SETITEM
      case 'e': case 'u': return grow(stack_.size() - mark());       // APPENDS, SETITEMS
      case 'q': memo_[number(1)] = top(); return;                    // BINPUT
      case 'r': memo_[number(4)] = top(); return;                    // LONG_BINPUT
      case 'h': return recall(number(1));                            // BINGET
      case 'j': return recall(number(4));                            // LONG_BINGET
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
  const Item& top() {
    if (stack_.empty()) refuse("an empty stack");
    return stack_.back();
  }
  void push(Item item) {
    if (item.depth > kMaxNesting) refuse("containers nested more deeply than " + std::to_string(kMaxNesting));
    stack_.push_back(item);
  }
  int pop(size_t count) {
    if (count > stack_.size()) refuse("an empty stack");
    int deepest = 0;
    for (size_t i = stack_.size() - count; i < stack_.size(); ++i) deepest = std::max(deepest, stack_[i].depth);
    stack_.resize(stack_.size() - count);
    return deepest;
  }
  void collect(size_t count) { push({pop(count) + 1, false}); }
  void grow(size_t count) {
    const int deepest = pop(count);
    if (!top().grows) refuse("a container that does not grow");
    const int depth = std::max(top().depth, deepest + 1);
    stack_.pop_back();
    push({depth, true});
  }
  void recall(size_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) refuse("a value that was not kept");
    // One that grows in two places could hold itself.
    if (found->second.grows) refuse("a container in two places");
    push(found->second);
  }

  [[noreturn]] void refuse(const std::string& got) const {
    fail(TF_ERROR_ARCHIVE, {"the stored cases are not tensors by name", where_, got,
                            "what torch.save writes of a dict of tensors"});
  }

  const std::string& bytes_;
  const std::string& where_;
  size_t at_ = 0;
  std::vector<Item> stack_;
  std::vector<size_t> marks_;
  std::map<size_t, Item> memo_;
};

}  // namespace

c10::impl::GenericDict load_pickled_dict(const std::string& bytes, const std::string& where) {
  try {
    // A pickle is a program, and one that nests a hundred thousand lists ends the process when they are destroyed.
    caffe2::serialize::PyTorchStreamReader reader(torchferry::reader(std::make_shared<const std::string>(bytes)));
    const auto [pickle, size] = reader.getRecord("data.pkl");
    measure_depth({static_cast<const char*>(pickle.get()), size}, where);
    const auto value = torch::jit::pickle_load({bytes.begin(), bytes.end()});
    if (value.isGenericDict()) return value.toGenericDict();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail(TF_ERROR_ARCHIVE, {"what torch.save wrote cannot be read", where, text.substr(0, text.find('\n'))});
  }
  fail(TF_ERROR_ARCHIVE, {"the stored cases are not tensors by name", where, "something else than a dict"});
}

int measure_depth(const std::string& pickle, const std::string& where) { return Machine(pickle, where).run(); }

}  // namespace torchferry
