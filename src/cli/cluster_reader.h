// Reads of a cluster with the caller's own rights, for the tools that look at one: straight at the API server, or
// through kubectl for users who sign in through a plugin (most managed clouds).
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "kube/endpoint.h"

namespace sluice::cli {

class ClusterReader {
 public:
  virtual ~ClusterReader() = default;

  // The body of a GET as it is. kPermission (401, 403), kNotFound (404), kExists (410: a list has grown too old on the
  // way), else kUnavailable, with the API server's own words.
  virtual Result<std::string> text(const std::string& path) = 0;

  // The same as an object of JSON.
  Result<json::Object> object(const std::string& path);

  // All items of a list, page by page; one that has grown too old on the way is begun once more.
  Result<json::Array> list(const std::string& path);
};

// `needed` ends the sentence of a refusal: "needed are 'list' on nodes and on pods of all namespaces".
std::unique_ptr<ClusterReader> read_directly(const kube::Endpoint& endpoint, const std::string& needed);
std::unique_ptr<ClusterReader> read_through_kubectl(const std::string& kubeconfig, const std::string& context,
                                                    const std::string& needed);

// One of the two, for kubectl's own choice of a server: a file that is named, then KUBECONFIG, then the pod that we run
// in, then ~/.kube/config.
Result<std::unique_ptr<ClusterReader>> open_cluster(const std::string& kubeconfig, const std::string& context,
                                                    const std::string& needed);

}  // namespace sluice::cli
