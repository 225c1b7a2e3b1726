#include "signature.hpp"

#include <array>
#include <cstddef>
#include <ctime>
#include <fstream>
#include <regex>

#include <dlfcn.h>

#include <torchferry/error.hpp>
#include <torchferry/torchferry.h>

#include "sha256.hpp"

namespace torchferry {
namespace {

constexpr size_t kLongestText = 1024, kKeyBytes = 32;
/// In front of the 32 bytes of a public key: RFC 8410, section 4.
const std::string kKeyPrefix("\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12);

/// What is called of libcrypto, from OpenSSL 1.1.1 on.
struct Crypto {
  int (*decode_block)(unsigned char*, const unsigned char*, int);
  void* (*new_key)(int, void*, const unsigned char*, size_t);
  void (*free_key)(void*);
  void* (*new_context)();
  void (*free_context)(void*);
  int (*start)(void*, void**, const void*, void*, void*);
  int (*verify)(void*, const unsigned char*, size_t, const unsigned char*, size_t);
  static constexpr int kEd25519 = 1087;

  Crypto() {
    void* library = nullptr;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so", "libcrypto.3.dylib"})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(library ? dlsym(library, name) : nullptr);
      if (!function)
        fail(TF_ERROR_UNAVAILABLE, {"signatures cannot be checked here", "", library ? std::string("no ") + name : "no libcrypto",
                                    "OpenSSL 1.1.1 or newer", "install it (apt-get install libssl3)"});
    };
    find(decode_block, "EVP_DecodeBlock");
    find(new_key, "EVP_PKEY_new_raw_public_key");
    find(free_key, "EVP_PKEY_free");
    find(new_context, "EVP_MD_CTX_new");
    find(free_context, "EVP_MD_CTX_free");
    find(start, "EVP_DigestVerifyInit");
    find(verify, "EVP_DigestVerify");
  }

  /// Whether `value` is the signature of `text` by the key of these bytes.
  bool is_signed(const std::string& key, const std::string& text, const std::string& value) const {
    const auto bytes = [](const std::string& one) { return reinterpret_cast<const unsigned char*>(one.data()); };
    auto* made = new_key(kEd25519, nullptr, bytes(key), key.size());
    auto* context = new_context();
    const bool good = made && context && start(context, nullptr, nullptr, nullptr, made) == 1 &&
                      verify(context, bytes(value), value.size(), bytes(text), text.size()) == 1;
    free_context(context);
    free_key(made);
    return good;
  }
};

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kLongestText + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

/// The 32 bytes of a public key of Ed25519 in PEM.
std::string read_key(const Crypto& crypto, const std::string& path) {
  static const std::regex pem("-----BEGIN PUBLIC KEY-----\\s+([A-Za-z0-9+/=]{60})\\s+-----END PUBLIC KEY-----\\s*");
  std::smatch match;
  const auto text = read_text(path);
  std::array<unsigned char, 48> decoded{};
  const bool is_pem = std::regex_match(text, match, pem);
  const auto body = is_pem ? match[1].str() : "";
  // 60 digits are 45 bytes, the last of which is padding.
  const int length =
      is_pem ? crypto.decode_block(decoded.data(), reinterpret_cast<const unsigned char*>(body.data()), 60) : 0;
  const std::string key(reinterpret_cast<const char*>(decoded.data()), kKeyPrefix.size() + kKeyBytes);
  if (length != 45 || key.compare(0, kKeyPrefix.size(), kKeyPrefix) != 0)
    fail(TF_ERROR_ARGUMENT, {"the file is no public key", path, "", "Ed25519 in PEM",
                             "make one with torchferry keygen, or with openssl genpkey -algorithm ed25519"});
  return key.substr(kKeyPrefix.size());
}

std::string unhex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string now() {
  const auto time = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& got,
                         const std::string& expected, const std::string& mend) {
  fail(TF_ERROR_SIGNATURE, {what, where, got, expected, mend});
}

}  // namespace

void check_signature(const std::string& path, const std::string& bytes, const std::string& public_key) {
  const Crypto crypto;
  const auto key = read_key(crypto, public_key);
  const auto where = path + ".sig";
  if (!std::ifstream(where))
    refuse("the file is not signed", path, "", where, "ask who made it for a signature: torchferry sign");
  static const std::string time = "\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ";
  static const std::regex format("(torchferry signature 1\nsha256 ([0-9a-f]{64})\nkey ([0-9a-f]{64})\nsigned " + time +
                                 "\nexpires (" + time + "|never)\n)signature ([0-9a-f]{128})\n");
  std::smatch match;
  const auto text = read_text(where);
  if (!std::regex_match(text, match, format))
    refuse("the signature is damaged", where, "", "what torchferry sign writes",
           "get the signature again: a copy must not change a byte");
  const auto known = sha256(key.data(), key.size());
  if (match[3] != known)
    refuse("the file is signed with another key", path, "key " + match[3].str(), "key " + known,
           "ask who signed it, or name that key");
  if (!crypto.is_signed(key, match[1], unhex(match[5])))
    refuse("the signature was changed, or is not by that key", where, "", "", "get the file and its signature again");
  const auto digest = sha256(bytes.data(), bytes.size());
  if (match[2] != digest)
    refuse("the file was changed after it was signed", path, "sha256 " + digest, match[2], "get the file again");
  if (match[4] != "never" && match[4].str() < now())
    refuse("the signature has expired", where, match[4], "after " + now(), "ask who signed it to sign it again");
}

}  // namespace torchferry
