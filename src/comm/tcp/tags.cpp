#include "comm/tcp/tags.h"

#include <lockstep/errors.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/check.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kGmacNonceBytes = 12;

void check(int good, const char* what) {
  if (good != 1) throw Unavailable(std::string("OpenSSL cannot tag frames: ") + what + " failed");
}

const unsigned char* as_bytes(const void* from) {
  return static_cast<const unsigned char*>(from);
}

}  // namespace

void Tagger::Free::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);
}

Tagger::Tagger(std::string_view key) : context_(EVP_CIPHER_CTX_new()) {
  LOCKSTEP_CHECK(key.size() == kTagKeyBytes, "a key of tags has its length");
  check(context_ != nullptr, "EVP_CIPHER_CTX_new");
  check(
      EVP_EncryptInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, as_bytes(key.data()), nullptr),
      "AES-256-GCM");
  begin();
}

void Tagger::begin() {
  std::array<unsigned char, kGmacNonceBytes> nonce{};
  std::memcpy(nonce.data(), &number_, sizeof number_);
  ++number_;
  check(EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data()), "a nonce");
}

void Tagger::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<std::size_t>(bytes.size(), INT_MAX));
    int done = 0;
    check(EVP_EncryptUpdate(context_.get(), nullptr, &done, as_bytes(part.data()),
                            static_cast<int>(part.size())),
          "EVP_EncryptUpdate");
    bytes = bytes.subspan(part.size());
  }
}

Tag Tagger::finish() {
  Tag tag;
  std::array<unsigned char, kTagBytes> nothing{};
  int done = 0;
  check(EVP_EncryptFinal_ex(context_.get(), nothing.data(), &done), "EVP_EncryptFinal_ex");
  check(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data()),
        "EVP_CTRL_GCM_GET_TAG");
  begin();
  return tag;
}

bool equal(const Tag& a, const Tag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep::comm
