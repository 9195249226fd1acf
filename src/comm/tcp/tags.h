// Tags of frames (AES-256-GMAC, by OpenSSL). Without the key nobody can change, add, repeat,
// reorder or drop a frame unnoticed.
//
// Each direction of a connection has a key of its own, and each tag a number that both sides count.
// The number is the nonce, so no nonce is used twice with a key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace lockstep::comm {

inline constexpr std::size_t kTagBytes = 16;
inline constexpr std::size_t kTagKeyBytes = 32;
using Tag = std::array<std::byte, kTagBytes>;

// The tags of one direction, one after the other: add() what a tag is over, in any parts, then
// finish().
//
// Threads:   one.
// Blocking:  never.
// Failure:   Unavailable if OpenSSL has no AES-GCM.
// Ownership: the key is copied.
class Tagger {
 public:
  explicit Tagger(std::string_view key);

  void add(std::span<const std::byte> bytes);
  Tag finish();  // the next one begins

 private:
  void begin();

  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::uint64_t number_ = 0;
};

bool equal(const Tag& a, const Tag& b);

}  // namespace lockstep::comm
