// Ed25519 signatures (RFC 8032) over short texts, and the one place that meets OpenSSL's keys. The scheduler alone
// holds the private key; agents hold public ones, two while a key is rotated.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct evp_pkey_st;

namespace sluice::kube {

using Key = std::shared_ptr<evp_pkey_st>;

class Signer {
 public:
  // A private key in PEM (PKCS #8), as `openssl genpkey -algorithm ed25519` writes it.
  static Result<Signer> load(const std::string& path);
  static Signer generate();                       // for tests and trials
  std::string sign(std::string_view text) const;  // base64, 88 characters
  std::string public_pem() const;

 private:
  explicit Signer(Key key) : key_(std::move(key)) {}
  Key key_;
};

class Verifier {
 public:
  // Public keys in PEM, any one of which may have signed.
  static Result<Verifier> from_pem(const std::vector<std::string>& pems);
  bool verify(std::string_view text, const std::string& signature) const;

 private:
  std::vector<Key> keys_;
};

}  // namespace sluice::kube
