// Digests and random bytes, from OpenSSL, and a fast mix for numbers that need no secrecy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace lockstep::base {

inline constexpr std::size_t kDigestBytes = 32;

std::string sha256(std::string_view bytes);
std::string hmac_sha256(std::string_view key, std::string_view bytes);

// SHA-256 of bytes that do not lie together: update() with each part, then finish() once.
class Sha256 {
 public:
  Sha256();
  void update(std::string_view bytes);
  std::string finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Bytes from the kernel's generator, fit for secrets and nonces.
std::string random_bytes(std::size_t count);

// Compares in a time that does not depend on where they differ.
bool equal_secrets(std::string_view a, std::string_view b);

std::string to_hex(std::string_view bytes);

// SplitMix64's finalizer: each input bit reaches every output bit.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace lockstep::base
