// Where the API server is and who we are to it: read from kubeconfig files or from the files a pod is given.
//
// Facts: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/ (merging: the first file
// that names a thing wins; relative paths resolve against the file that holds them) and
// https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/ (in-cluster files and environment).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::kube {

struct Endpoint {
  std::string server;           // https://host:port, no trailing slash
  std::string tls_server_name;  // empty: the host of `server`
  bool insecure = false;        // certificate not checked
  std::string proxy_url;

  // Either a file or the PEM text itself; both empty: the system's store (CA) or none (client certificate).
  std::string ca_file;
  std::string ca_pem;
  std::string certificate_file;
  std::string certificate_pem;
  std::string key_file;
  std::string key_pem;

  // A token that may change while we run is named by its file and read again; see TokenSource.
  std::string token;
  std::string token_file;

  std::string default_namespace = "default";
};

// Stands in the error about users that sign in in a way that is kubectl's alone (plugins, passwords, impersonation),
// which callers may recognise: kubectl can still ask for them.
inline constexpr std::string_view kSignsInThrough = "this user signs in through";

// The `context` (empty: current-context) of the merged files. Errors name the file and the key that is wrong. Users
// that sign in in a way we do not know are refused with a sentence that says so, and so is a file that is named and
// cannot be read: nobody is turned into an anonymous caller.
Result<Endpoint> load_kubeconfig(const std::vector<std::string>& paths, const std::string& context);

// One kubeconfig as text; `path` is where it stands: relative paths in it are meant from there, and errors name it.
Result<Endpoint> parse_kubeconfig(std::string_view text, const std::string& path, const std::string& context);

// kInvalid, beginning with `what`, where the text is no http or https URL with a host.
Result<void> check_server_url(std::string_view what, std::string_view url);

// The token without white space around it. kInvalid where it is empty or holds what a header cannot (RFC 6750, 2.1), a
// line break above all; the error does not repeat it.
Result<std::string> check_token(std::string_view text);
Result<std::string> read_token_file(const std::string& path);

// The files that a client uses when none is named: $KUBECONFIG split at ':', else ~/.kube/config.
std::vector<std::string> default_kubeconfig_paths();

// Service account of the pod that we run in. `root` is prepended to the fixed paths, for tests.
Result<Endpoint> in_cluster(const std::string& root = "");

// A named kubeconfig, else in-cluster where the environment says so, else the default files.
Result<Endpoint> find_endpoint(const std::string& kubeconfig, const std::string& context);

}  // namespace sluice::kube
