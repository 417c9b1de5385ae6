// Asks the API server through the program kubectl. For users whose kubeconfig signs in through a plugin (most managed
// clouds): kubectl runs that plugin, we need not.
#pragma once

#include <string>

#include "base/result.h"

namespace sluice::cli {

struct KubectlOptions {
  std::string kubeconfig;  // empty: kubectl's own choice
  std::string context;
  int timeout_seconds = 60;
};

// The body that a GET of this path gives (`kubectl get --raw`). Errors carry kubectl's sentence; kPermission and
// kNotFound where it says so, kUnavailable otherwise.
Result<std::string> kubectl_get(const KubectlOptions& options, const std::string& path);

}  // namespace sluice::cli
