// sluice-scheduler: the program around the parts. Options, key, leader election, server; then it waits for a signal.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/files.h"
#include "base/log.h"
#include "base/output.h"
#include "kube/lease.h"
#include "kube/names.h"
#include "scheduler/adopter.h"
#include "scheduler/service.h"

namespace sluice::scheduler {
namespace {

constexpr int kExitFailed = 1;  // also in --help
constexpr int kExitUsage = 2;

struct Options {
  std::string kubeconfig;
  std::string context;
  ServerOptions server;
  std::string signing_key;
  std::string policy = "default";
  StateSettings state;
  WebhookSettings webhook;
  std::vector<std::string> extra_public_keys;
  bool leader_elect = false;
  std::string lease_namespace = "kube-system";
  std::string advertise_url;
  kube::Endpoint forward;
  std::vector<std::string> client_names;
  std::string event_source = "sluice-scheduler";
};

void declare(CLI::App& app, Options& o) {
  app.add_option("--kubeconfig", o.kubeconfig,
                 "kubeconfig file; without it the pod's service account, else ~/.kube/config");
  app.add_option("--context", o.context, "context of the kubeconfig");
  app.add_option("--listen-address", o.server.address, "IPv4 address to listen on")->capture_default_str();
  app.add_option("--listen-port", o.server.port, "port; 0 lets the kernel choose")
      ->capture_default_str()
      ->check(CLI::Range(0, 65'535));
  app.add_option("--tls-cert", o.server.certificate_file,
                 "certificate chain (PEM), read again when it changes; without it plain HTTP");
  app.add_option("--tls-key", o.server.key_file, "its private key (PEM)");
  app.add_option("--client-ca", o.server.client_ca_file,
                 "filter, prioritize, bind and preempt are for clients with a certificate of this CA");
  app.add_option("--client-name", o.client_names, "and for these common names alone; any number of times");
  app.add_option("--signing-key", o.signing_key, "Ed25519 private key (PEM) that signs allocation records")->required();
  app.add_option("--public-key", o.extra_public_keys,
                 "further public keys (PEM files) whose records are believed, while rotating");
  app.add_option("--policy", o.policy, "default, binpack, spread or FGD")->capture_default_str();
  app.add_option("--memory-unit-mib", o.state.nodes.unit_mib, "size of one unit of aliyun.com/gpu-mem")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-pods-per-card", o.state.nodes.max_pods_per_card, "0: no limit")
      ->capture_default_str()
      ->check(CLI::Range(0, 10'000));
  app.add_flag("--mixed-nodes", o.state.nodes.mixed,
               "memory-only pods may share what compute is left on core_mem nodes");
  app.add_option("--max-names", o.state.max_names, "best nodes that a filter returns; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 100'000));
  app.add_flag("--webhook-refuse", o.webhook.refuse, "refuse wrong requests at admission instead of warning");
  app.add_option("--webhook-scheduler-name", o.webhook.scheduler_name,
                 "schedulerName given to pods that ask for shared cards");
  app.add_option("--webhook-toleration", o.webhook.toleration_key,
                 "taint key that pods asking for shared cards are made to tolerate");
  app.add_flag("--leader-elect", o.leader_elect, "several replicas: lead by a Lease, forward while following");
  app.add_option("--lease-namespace", o.lease_namespace, "namespace of the Lease sluice-scheduler")
      ->capture_default_str();
  app.add_option("--advertise-url", o.advertise_url, "where other replicas reach this one, https://host:port");
  app.add_option("--forward-ca", o.forward.ca_file, "CA of the other replicas' certificates");
  app.add_option("--forward-tls-name", o.forward.tls_server_name,
                 "name that their certificates carry, where it is not the address");
  app.add_option("--forward-cert", o.forward.certificate_file, "client certificate towards them");
  app.add_option("--forward-key", o.forward.key_file, "its key");
  app.set_version_flag("--version", std::string("sluice-scheduler ") + SLUICE_VERSION, "print the version");
  app.footer("Exit codes: 0 ended by a signal, 1 cannot serve, 2 wrong usage.");
}

// What is wrong with the options taken together, or with one that CLI11 takes for text.
Result<void> check(const Options& o) {
  if (Result<core::PolicyName> policy = core::parse_policy(o.policy); !policy)
    return std::move(policy).error().wrap("--policy");
  const struct {
    bool wrong;
    const char* sentence;
  } rules[] = {
      {o.server.certificate_file.empty() != o.server.key_file.empty(),
       "--tls-cert and --tls-key belong together: give both for TLS, neither for plain HTTP"},
      {!o.client_names.empty() && o.server.client_ca_file.empty(),
       "--client-name needs --client-ca, whose certificates carry the names"},
      {!o.server.client_ca_file.empty() && o.server.certificate_file.empty(),
       "--client-ca needs --tls-cert and --tls-key: over plain HTTP clients show no certificate"},
      {o.leader_elect && o.advertise_url.empty(),
       "--leader-elect needs --advertise-url, where the other replicas reach this one"},
      {o.forward.certificate_file.empty() != o.forward.key_file.empty(),
       "--forward-cert and --forward-key belong together"},
  };
  for (const auto& rule : rules) {
    if (rule.wrong) return invalid(rule.sentence);
  }
  if (!o.advertise_url.empty()) {
    if (Result<void> fine = kube::check_server_url("--advertise-url", o.advertise_url); !fine) return fine;
  }
  if (Result<void> fine = kube::check_label_name("--lease-namespace", o.lease_namespace); !fine) return fine;
  if (!o.webhook.toleration_key.empty()) {
    if (Result<void> fine = kube::check_qualified_name("--webhook-toleration", o.webhook.toleration_key); !fine)
      return fine;
  }
  if (o.webhook.scheduler_name.empty()) return {};
  return kube::check_subdomain_name("--webhook-scheduler-name", o.webhook.scheduler_name);
}

Result<kube::Verifier> load_verifier(const Options& options, const kube::Signer& signer) {
  std::vector<std::string> pems{signer.public_pem()};
  for (const std::string& path : options.extra_public_keys) {
    Result<std::string> pem = read_file(path, 64u << 10);
    if (!pem) return std::move(pem).error();
    pems.push_back(*std::move(pem));
  }
  return kube::Verifier::from_pem(pems);
}

int complain(const Error& error) {
  fmt::print(stderr, "sluice-scheduler: {}\n", error.message);
  return kExitFailed;
}

int run(Options options) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts

  options.state.policy.name = *core::parse_policy(options.policy);
  Result<kube::Endpoint> endpoint = kube::find_endpoint(options.kubeconfig, options.context);
  if (!endpoint) return complain(std::move(endpoint).error().wrap("no API server"));
  Result<kube::Signer> signer = kube::Signer::load(options.signing_key);
  if (!signer) return complain(signer.error());
  Result<kube::Verifier> verifier = load_verifier(options, *signer);
  if (!verifier) return complain(verifier.error());
  State state(options.state, *verifier);
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  // Started again in the same place it is the same replica, and need not wait for the lease of its former life.
  std::string identity = fmt::format("{}@{}", host, options.advertise_url);
  std::unique_ptr<kube::LeaderElection> election;
  if (options.leader_elect) {
    kube::LeaseOptions lease;
    lease.name = "sluice-scheduler";
    lease.name_space = options.lease_namespace;
    lease.identity = identity;
    election = std::make_unique<kube::LeaderElection>(*endpoint, lease);
    election->start();
  }
  auto leading = [&election] { return election == nullptr || election->leading(); };
  auto leader_url = [&election, &identity]() -> std::string {
    if (election == nullptr) return "";
    std::string holder = election->holder();
    size_t at = holder.find('@');
    return at == std::string::npos || holder == identity ? "" : holder.substr(at + 1);
  };

  Binder binder(state, *endpoint, *signer, leading);
  Adopter adopter(state, *endpoint, *signer, options.event_source, leading);
  Watchers watchers(state, *endpoint, options.event_source, leading);
  Extender extender(state, options.state.nodes, [&binder](const BindRequest& request) { return binder.bind(request); });
  Webhook webhook(state, options.webhook);
  Service service({state, extender, webhook, watchers, binder, adopter, leading, leader_url, options.forward,
                   !options.server.client_ca_file.empty(), options.client_names});
  auto server =
      HttpServer::start(options.server, [&service](const ServerRequest& request) { return service.handle(request); });
  if (!server) return complain(server.error());
  log::info("serving",
            {{"address", options.server.address}, {"port", (*server)->port()}, {"api_server", endpoint->server}});
  fmt::print("listening on {}:{}\n", options.server.address, (*server)->port());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  log::info("stopping", {{"signal", signal}});
  server->reset();
  if (election) election->stop();
  return 0;
}

}  // namespace
}  // namespace sluice::scheduler

int main(int argc, char** argv) {
  using namespace sluice::scheduler;
  Options options;
  CLI::App app{"Sluice's scheduler extender and admission webhook: places pods that ask for parts of a GPU card."};
  declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return sluice::finish_output("sluice-scheduler", app.exit(error) == 0 ? 0 : kExitUsage);
  }
  if (sluice::Result<void> fine = check(options); !fine) {
    fmt::print(stderr, "sluice-scheduler: {}\n", fine.error().message);
    return kExitUsage;
  }
  return run(std::move(options));
}
