#include "kube/endpoint.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>

#include "base/files.h"
#include "base/text.h"
#include "base/yaml.h"

namespace sluice::kube {
namespace {

constexpr char kServiceAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount/";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// One kubeconfig file, with the folder that its relative paths are meant from.
struct File {
  std::string path;
  json::Object root;

  std::string absolute(const std::string& name) const {
    if (name.empty() || name.front() == '/') return name;
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? name : path.substr(0, slash + 1) + name;
  }
};

Result<File> parse_file(std::string_view text, const std::string& path) {
  Result<std::vector<json::Value>> documents = yaml::parse_documents(text);
  if (!documents) return std::move(documents).error().wrap(path);
  if (documents->size() != 1 || !documents->front().is_object()) {
    return invalid(fmt::format("{}: a kubeconfig is one YAML mapping", path));
  }
  return File{path, documents->front().get_object()};
}

Result<File> load_file(const std::string& path) {
  Result<std::string> text = read_file(path, 4u << 20);
  if (!text) return std::move(text).error();
  return parse_file(*text, path);
}

// The member `field` of the entry called `name` in the list `list`, and the file it stands in.
struct Entry {
  const File* file = nullptr;
  const json::Object* value = nullptr;
};

Result<Entry> find_entry(const std::vector<File>& files, std::string_view list, std::string_view field,
                         std::string_view name) {
  for (const File& file : files) {
    const json::Value* entries = file.root.if_contains(list);
    if (entries == nullptr || !entries->is_array()) continue;
    for (const json::Value& entry : entries->get_array()) {
      if (!entry.is_object()) continue;
      Result<std::string> found = json::get_string(entry.get_object(), "name");
      if (!found || *found != name) continue;
      const json::Value* value = entry.get_object().if_contains(field);
      if (value == nullptr || !value->is_object()) {
        return invalid(fmt::format("{}: '{}' in {} has no '{}' mapping", file.path, name, list, field));
      }
      return Entry{&file, &value->get_object()};
    }
  }
  return not_found(fmt::format("the kubeconfig has no '{}' in {}", name, list));
}

Result<std::string> decode_base64(std::string_view key, std::string text) {
  std::erase_if(text, [](char c) { return c == '\n' || c == '\r' || c == ' '; });
  std::string out(text.size() / 4 * 3 + 3, '\0');
  int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                             reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return invalid(fmt::format("'{}' is not valid base64", key));
  // EVP_DecodeBlock counts padding as zero bytes.
  size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  if (static_cast<size_t>(size) < padding) return invalid(fmt::format("'{}' is not valid base64", key));
  out.resize(static_cast<size_t>(size) - padding);
  return out;
}

// A text that may be absent, which leaves `to` as it is.
Result<void> read_text(const json::Object& object, std::string_view key, const std::string& path, std::string& to) {
  Result<std::string> text = json::get_string_or(object, key, to);
  if (!text) return std::move(text).error().wrap(path);
  to = *std::move(text);
  return {};
}

// A PEM that stands inline (`key`-data) or in a file (`key`); inline wins, as in other clients.
Result<void> read_pem(const Entry& entry, const std::string& key, std::string& file, std::string& pem) {
  Result<std::string> data = json::get_string_or(*entry.value, key + "-data", "");
  if (!data) return std::move(data).error().wrap(entry.file->path);
  Result<std::string> path = json::get_string_or(*entry.value, key, "");
  if (!path) return std::move(path).error().wrap(entry.file->path);
  if (data->empty()) {
    file = entry.file->absolute(*path);
    if (file.empty()) return {};
    if (Result<std::string> there = read_file(file, 4u << 20); !there)
      return std::move(there).error().wrap(fmt::format("{}: '{}'", entry.file->path, key));
    return {};
  }
  Result<std::string> decoded = decode_base64(key + "-data", *data);
  if (!decoded) return std::move(decoded).error().wrap(entry.file->path);
  pem = *std::move(decoded);
  return {};
}

Result<void> read_cluster(const Entry& entry, Endpoint& endpoint) {
  Result<std::string> server = json::get_string(*entry.value, "server");
  if (!server) return std::move(server).error().wrap(entry.file->path);
  if (Result<void> fine = check_server_url(entry.file->path + ": the cluster's server", *server); !fine) return fine;
  endpoint.server = *server;
  while (endpoint.server.ends_with('/')) endpoint.server.pop_back();
  for (auto [key, to] :
       {std::pair{"tls-server-name", &endpoint.tls_server_name}, std::pair{"proxy-url", &endpoint.proxy_url}}) {
    if (Result<void> read = read_text(*entry.value, key, entry.file->path, *to); !read) return read;
  }
  Result<bool> insecure = json::get_bool_or(*entry.value, "insecure-skip-tls-verify", false);
  if (!insecure) return std::move(insecure).error().wrap(entry.file->path);
  endpoint.insecure = *insecure;
  return read_pem(entry, "certificate-authority", endpoint.ca_file, endpoint.ca_pem);
}

// What a user entry may hold that we do not do ourselves. Whoever leaves one of these out sends requests as somebody
// else, nobody for instance, so each is refused; callers that can run kubectl recognise the sentence.
struct Foreign {
  const char* key;
  const char* what;
};
constexpr Foreign kForeign[] = {
    {"exec", "the plugin 'exec'"},
    {"auth-provider", "the plugin 'auth-provider'"},
    {"username", "'username' and 'password'"},
    {"password", "'username' and 'password'"},
    {"as", "impersonation ('as')"},
    {"as-uid", "impersonation ('as-uid')"},
    {"as-groups", "impersonation ('as-groups')"},
    {"as-user-extra", "impersonation ('as-user-extra')"},
};

bool is_empty(const json::Value& value) {
  return value.is_null() || (value.is_string() && value.get_string().empty()) ||
         (value.is_array() && value.get_array().empty()) || (value.is_object() && value.get_object().empty());
}

Result<void> read_user(const Entry& entry, Endpoint& endpoint) {
  for (const Foreign& foreign : kForeign) {
    const json::Value* value = entry.value->if_contains(foreign.key);
    if (value == nullptr || is_empty(*value)) continue;
    return invalid(fmt::format("{}: {} {}, which is not supported; use a token, a token file or a client certificate",
                               entry.file->path, kSignsInThrough, foreign.what));
  }
  std::string token_file;
  for (auto [key, to] : {std::pair{"token", &endpoint.token}, std::pair{"tokenFile", &token_file}}) {
    if (Result<void> read = read_text(*entry.value, key, entry.file->path, *to); !read) return read;
  }
  if (!endpoint.token.empty()) {
    Result<std::string> token = check_token(endpoint.token);
    if (!token) return std::move(token).error().wrap(entry.file->path + ": 'token'");
    endpoint.token = *std::move(token);
  }
  endpoint.token_file = entry.file->absolute(token_file);
  // Read once here: a file that is missing from the start is a typing mistake, and no reason to ask without a name.
  if (!endpoint.token_file.empty()) {
    if (Result<std::string> token = read_token_file(endpoint.token_file); !token)
      return std::move(token).error().wrap(entry.file->path + ": 'tokenFile'");
  }
  Result<void> certificate = read_pem(entry, "client-certificate", endpoint.certificate_file, endpoint.certificate_pem);
  if (!certificate) return certificate;
  Result<void> key = read_pem(entry, "client-key", endpoint.key_file, endpoint.key_pem);
  if (!key) return key;
  const bool has_certificate = !endpoint.certificate_file.empty() || !endpoint.certificate_pem.empty();
  const bool has_key = !endpoint.key_file.empty() || !endpoint.key_pem.empty();
  if (has_certificate == has_key) return {};
  return invalid(fmt::format("{}: the user has a client-{} and no client-{}; they belong together", entry.file->path,
                             has_key ? "key" : "certificate", has_key ? "certificate" : "key"));
}

// The endpoint that `context` (empty: the current one) means over all files, the first that names a thing wins.
Result<Endpoint> resolve(const std::vector<File>& files, const std::string& context) {
  std::string name = context;
  for (const File& file : files) {
    if (!name.empty()) break;
    if (Result<void> read = read_text(file.root, "current-context", file.path, name); !read)
      return std::move(read).error();
  }
  if (name.empty()) return invalid("the kubeconfig has no current-context; name one with --context");
  Result<Entry> chosen = find_entry(files, "contexts", "context", name);
  if (!chosen) return std::move(chosen).error();
  Result<std::string> cluster_name = json::get_string(*chosen->value, "cluster");
  if (!cluster_name) return std::move(cluster_name).error().wrap(chosen->file->path);
  Result<std::string> user_name = json::get_string(*chosen->value, "user");
  if (!user_name) return std::move(user_name).error().wrap(chosen->file->path);
  Result<Entry> cluster = find_entry(files, "clusters", "cluster", *cluster_name);
  if (!cluster) return std::move(cluster).error();
  Result<Entry> user = find_entry(files, "users", "user", *user_name);
  if (!user) return std::move(user).error();

  Endpoint endpoint;
  if (Result<void> read = read_text(*chosen->value, "namespace", chosen->file->path, endpoint.default_namespace); !read)
    return std::move(read).error();
  if (Result<void> read = read_cluster(*cluster, endpoint); !read) return std::move(read).error();
  if (Result<void> read = read_user(*user, endpoint); !read) return std::move(read).error();
  return endpoint;
}

}  // namespace

Result<void> check_server_url(std::string_view what, std::string_view url) {
  const size_t host = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : url.size();
  // Nothing that could end the URL, or the header it stands in, early.
  const bool plain = std::all_of(url.begin(), url.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (plain && host < url.size() && url[host] != '/') return {};
  return invalid(fmt::format("{} is '{}', expected https://HOST:PORT", what, text::fit(url, 80)));
}

Result<std::string> check_token(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return invalid("the token is empty");
  text = text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
  if (std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; })) return std::string(text);
  return invalid("the token holds a space, a line break or a character that is not ASCII, which no token does");
}

Result<std::string> read_token_file(const std::string& path) {
  Result<std::string> text = read_file(path, 1u << 20);
  if (!text) return text;
  Result<std::string> token = check_token(*text);
  if (!token) return std::move(token).error().wrap(path);
  return token;
}

std::vector<std::string> default_kubeconfig_paths() {
  std::vector<std::string> paths;
  std::string list = environment("KUBECONFIG");
  for (size_t start = 0; start <= list.size();) {
    size_t colon = std::min(list.find(':', start), list.size());
    if (colon > start) paths.push_back(list.substr(start, colon - start));
    start = colon + 1;
  }
  if (paths.empty()) paths.push_back(environment("HOME") + "/.kube/config");
  return paths;
}

Result<Endpoint> load_kubeconfig(const std::vector<std::string>& paths, const std::string& context) {
  std::vector<File> files;
  for (const std::string& path : paths) {
    Result<File> file = load_file(path);
    // Of several files some may be missing, as with other clients; one named alone must be there.
    if (!file && file.error().code == ErrorCode::kNotFound && paths.size() > 1) continue;
    if (!file) return std::move(file).error();
    files.push_back(*std::move(file));
  }
  return resolve(files, context);
}

Result<Endpoint> parse_kubeconfig(std::string_view text, const std::string& path, const std::string& context) {
  Result<File> file = parse_file(text, path);
  if (!file) return std::move(file).error();
  return resolve({*file}, context);
}

Result<Endpoint> in_cluster(const std::string& root) {
  std::string host = environment("KUBERNETES_SERVICE_HOST");
  std::string port = environment("KUBERNETES_SERVICE_PORT");
  if (host.empty() || port.empty()) {
    return not_found("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is not a pod");
  }
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  std::string base = root + kServiceAccount;
  Endpoint endpoint;
  endpoint.server = "https://" + host + ":" + port;
  endpoint.ca_file = base + "ca.crt";
  endpoint.token_file = base + "token";
  if (Result<std::string> token = read_token_file(endpoint.token_file); !token) return std::move(token).error();
  if (Result<std::string> name = read_file(base + "namespace", 1024); name) endpoint.default_namespace = *name;
  return endpoint;
}

Result<Endpoint> find_endpoint(const std::string& kubeconfig, const std::string& context) {
  if (!kubeconfig.empty()) return load_kubeconfig({kubeconfig}, context);
  if (!environment("KUBERNETES_SERVICE_HOST").empty()) return in_cluster();
  return load_kubeconfig(default_kubeconfig_paths(), context);
}

}  // namespace sluice::kube
