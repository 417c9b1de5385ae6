#include "kube/signature.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "base/files.h"

namespace sluice::kube {
namespace {

constexpr size_t kSignatureBytes = 64;
constexpr size_t kBase64Characters = 88;

Key own(EVP_PKEY* raw) {
  return Key(raw, EVP_PKEY_free);
}

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;

const unsigned char* bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Result<Signer> Signer::load(const std::string& path) {
  Result<std::string> pem = read_file(path, 64u << 10);
  if (!pem) return std::move(pem).error();
  Bio bio(BIO_new_mem_buf(pem->data(), static_cast<int>(pem->size())));
  Key key = own(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (!key || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_ED25519) {
    return invalid(
        fmt::format("{} is no Ed25519 private key in PEM; make one with: openssl genpkey -algorithm ed25519", path));
  }
  return Signer(std::move(key));
}

Signer Signer::generate() {
  return Signer(own(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519")));
}

std::string Signer::sign(std::string_view text) const {
  Context context(EVP_MD_CTX_new());
  unsigned char signature[kSignatureBytes];
  size_t size = sizeof(signature);
  if (EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_.get()) != 1 ||
      EVP_DigestSign(context.get(), signature, &size, bytes(text), text.size()) != 1) {
    std::abort();  // a loaded Ed25519 key always signs
  }
  std::string out(kBase64Characters + 1, '\0');
  int written = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), signature, static_cast<int>(size));
  out.resize(static_cast<size_t>(written));
  return out;
}

std::string Signer::public_pem() const {
  Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PUBKEY(bio.get(), key_.get());
  char* data = nullptr;
  long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Result<Verifier> Verifier::from_pem(const std::vector<std::string>& pems) {
  Verifier verifier;
  for (const std::string& pem : pems) {
    Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
    Key key = own(PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr));
    if (!key || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_ED25519) return invalid("not an Ed25519 public key in PEM");
    verifier.keys_.push_back(std::move(key));
  }
  return verifier;
}

bool Verifier::verify(std::string_view text, const std::string& signature) const {
  if (signature.size() != kBase64Characters) return false;
  unsigned char raw[kBase64Characters];
  int size = EVP_DecodeBlock(raw, bytes(signature), static_cast<int>(signature.size()));
  if (size < static_cast<int>(kSignatureBytes)) return false;
  for (const Key& key : keys_) {
    Context context(EVP_MD_CTX_new());
    if (EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
        EVP_DigestVerify(context.get(), raw, kSignatureBytes, bytes(text), text.size()) == 1) {
      return true;
    }
  }
  return false;
}

}  // namespace sluice::kube
