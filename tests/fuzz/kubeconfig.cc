// A kubeconfig as text.
#include "check.h"
#include "kube/endpoint.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Result<kube::Endpoint> endpoint =
      kube::parse_kubeconfig({reinterpret_cast<const char*>(data), size}, "/etc/config", "");
  promise(endpoint.ok() || !endpoint.error().message.empty(), "a refusal says why");
  promise(!endpoint.ok() || !endpoint->server.ends_with('/'), "no slash at the end of the server");
  return 0;
}
