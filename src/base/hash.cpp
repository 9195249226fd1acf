#include "base/hash.h"

#include <fmt/format.h>
#include <lockstep/errors.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace lockstep::base {

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string hmac_sha256(std::string_view key, std::string_view bytes) {
  std::string digest(kDigestBytes, '\0');
  unsigned int length = 0;
  const auto* result = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                            reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                            reinterpret_cast<unsigned char*>(digest.data()), &length);
  LOCKSTEP_CHECK(result != nullptr && length == kDigestBytes, "OpenSSL computes HMAC-SHA-256");
  return digest;
}

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  const bool ok = context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  LOCKSTEP_CHECK(ok, "OpenSSL begins a SHA-256");
}

void Sha256::update(std::string_view bytes) {
  const int ok = EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  LOCKSTEP_CHECK(ok == 1, "OpenSSL continues a SHA-256");
}

std::string Sha256::finish() {
  std::string digest(kDigestBytes, '\0');
  unsigned int length = 0;
  const int ok =
      EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), &length);
  LOCKSTEP_CHECK(ok == 1 && length == kDigestBytes, "OpenSSL ends a SHA-256");
  return digest;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t filled = 0;
  while (filled < count) {
    const ssize_t got = getrandom(bytes.data() + filled, count - filled, 0);
    if (got < 0 && errno != EINTR) {
      throw Unavailable(
          fmt::format("the kernel gives no random bytes (getrandom: {})", std::strerror(errno)));
    }
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    hex.push_back(kDigits[(static_cast<unsigned char>(c) >> 4) & 0xf]);
    hex.push_back(kDigits[static_cast<unsigned char>(c) & 0xf]);
  }
  return hex;
}

}  // namespace lockstep::base
