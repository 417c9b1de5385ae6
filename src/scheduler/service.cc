#include "scheduler/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/metrics_text.h"

namespace sluice::scheduler {
namespace {

constexpr const char* kVerbNames[] = {"filter", "prioritize", "bind", "preempt", "webhook"};

ServerResponse text(int status, std::string body) {
  return {status, std::move(body), "text/plain; charset=utf-8", false};
}

}  // namespace

ServerResponse Service::handle(const ServerRequest& request) {
  std::string path = request.target.substr(0, request.target.find('?'));
  for (int i = 0; i < kVerbs; ++i) {
    if (path != std::string("/") + kVerbNames[i]) continue;
    if (request.method != "POST") return error_response(405, "this path takes POST");
    return verb(static_cast<Verb>(i), request);
  }
  if (request.method != "GET")
    return error_response(404, "no such path; see /healthz, /readyz, /metrics, /debug/state, /explain");
  if (path == "/healthz") return text(200, "ok");
  if (path == "/readyz") return parts_.state.ready() ? text(200, "ok") : text(503, "nodes and pods are not listed yet");
  if (path == "/metrics") return metrics();
  if (path == "/debug/state") return {200, json::to_pretty_string(parts_.state.describe()), "application/json", false};
  if (path.starts_with("/explain/")) return explain(path.substr(9));
  return error_response(404, "no such path; see /healthz, /readyz, /metrics, /debug/state, /explain/NAMESPACE/POD");
}

ServerResponse Service::explain(const std::string& target) {
  size_t slash = target.find('/');
  if (slash == std::string::npos) return error_response(400, "explain: the path is /explain/NAMESPACE/POD");
  Result<json::Object> said = parts_.state.explain(target.substr(0, slash), target.substr(slash + 1));
  if (!said) return error_response(404, said.error().message);
  return {200, json::to_pretty_string(*said), "application/json", false};
}

ServerResponse Service::verb(Verb verb, const ServerRequest& request) {
  auto started = std::chrono::steady_clock::now();
  ServerResponse response;
  if (!may_call(verb, request.peer)) {
    response = error_response(
        403, fmt::format("{} is for clients with a certificate of the client CA and a name that may call; this one {}",
                         kVerbNames[verb], request.peer.empty() ? "shows none" : "is " + request.peer));
  } else if (!parts_.state.ready()) {
    response = error_response(503, "nodes and pods are not listed yet");
    response.close = true;
  } else if (verb != kWebhook && !parts_.leading()) {
    response = forwarder_.forward(request, parts_.leader_url());
  } else {
    switch (verb) {
      case kFilter:
        response = parts_.extender.filter(request.body);
        break;
      case kPrioritize:
        response = parts_.extender.prioritize(request.body);
        break;
      case kBind:
        response = parts_.extender.bind(request.body);
        break;
      case kPreempt:
        response = parts_.extender.preempt(request.body);
        break;
      case kWebhook:
        response = parts_.webhook.review(request.body);
        break;
      case kVerbs:
        break;
    }
  }
  auto microseconds =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - started).count();
  VerbMetrics& metrics = metrics_[verb];
  metrics.calls.fetch_add(1);
  metrics.microseconds.fetch_add(static_cast<uint64_t>(microseconds));
  if (response.status != 200 || response.failed) metrics.errors.fetch_add(1);
  for (size_t i = 0; i < kLatencyBounds_s.size(); ++i) {
    if (static_cast<double>(microseconds) * 1e-6 <= kLatencyBounds_s[i]) {
      metrics.buckets[i].fetch_add(1);
      break;
    }
  }
  return response;
}

bool Service::may_call(Verb verb, const std::string& peer) const {
  if (verb == kWebhook || !parts_.known_clients_only) return true;
  if (parts_.client_names.empty()) return !peer.empty();
  return std::find(parts_.client_names.begin(), parts_.client_names.end(), peer) != parts_.client_names.end();
}

ServerResponse Service::metrics() const {
  MetricsText out;
  State::Counts counts = parts_.state.counts();
  out.family("sluice_scheduler_request_duration_seconds", "histogram", "Time to answer one call, by verb.");
  for (int i = 0; i < kVerbs; ++i) {
    const VerbMetrics& verb = metrics_[static_cast<size_t>(i)];
    uint64_t sum = 0;
    for (size_t b = 0; b < kLatencyBounds_s.size(); ++b) {
      sum += verb.buckets[b].load();
      out.sample("sluice_scheduler_request_duration_seconds_bucket",
                 {{"verb", kVerbNames[i]}, {"le", fmt::format("{}", kLatencyBounds_s[b])}}, static_cast<double>(sum));
    }
    double calls = static_cast<double>(verb.calls.load());
    out.sample("sluice_scheduler_request_duration_seconds_bucket", {{"verb", kVerbNames[i]}, {"le", "+Inf"}}, calls);
    out.sample("sluice_scheduler_request_duration_seconds_sum", {{"verb", kVerbNames[i]}},
               static_cast<double>(verb.microseconds.load()) * 1e-6);
    out.sample("sluice_scheduler_request_duration_seconds_count", {{"verb", kVerbNames[i]}}, calls);
  }
  out.family("sluice_scheduler_request_errors_total", "counter",
             "Calls that failed, and binds that were answered with a reason, by verb.");
  for (int i = 0; i < kVerbs; ++i) {
    out.sample("sluice_scheduler_request_errors_total", {{"verb", kVerbNames[i]}},
               static_cast<double>(metrics_[static_cast<size_t>(i)].errors.load()));
  }
  struct Single {
    const char* name;
    const char* type;
    const char* help;
    double value;
  };
  const Single singles[] = {
      {"sluice_scheduler_binds_total", "counter", "Bindings that the API server accepted.",
       static_cast<double>(parts_.binder.bound())},
      {"sluice_scheduler_bind_conflicts_total", "counter",
       "Binds refused for a conflict or for want of a card at the last moment.",
       static_cast<double>(parts_.binder.conflicts())},
      {"sluice_scheduler_bind_unknown_total", "counter", "Bindings that got no definite answer.",
       static_cast<double>(parts_.binder.unknown())},
      {"sluice_scheduler_adopted_pods_total", "counter", "Pods bound without Sluice that were given cards.",
       static_cast<double>(parts_.adopter.adopted())},
      {"sluice_scheduler_wakes_total", "counter", "Waiting pods woken because they would fit.",
       static_cast<double>(parts_.watchers.wakes())},
      {"sluice_scheduler_watch_errors_total", "counter", "Watches that ended with an error.",
       static_cast<double>(parts_.watchers.watch_errors())},
      {"sluice_scheduler_lists_total", "counter", "Full lists taken of nodes, pods and disruption budgets.",
       static_cast<double>(parts_.watchers.lists())},
      {"sluice_scheduler_leading", "gauge", "1 while this replica leads.", parts_.leading() ? 1.0 : 0.0},
      {"sluice_scheduler_nodes", "gauge", "Nodes known.", static_cast<double>(counts.nodes)},
      {"sluice_scheduler_pods", "gauge", "Live pods known.", static_cast<double>(counts.pods)},
      {"sluice_scheduler_assumed_pods", "gauge", "Pods whose Binding the watch has not shown yet.",
       static_cast<double>(counts.assumed)},
      {"sluice_scheduler_untrusted_records", "gauge", "Bound pods whose allocation record is missing or not authentic.",
       static_cast<double>(counts.untrusted_records)},
      {"sluice_scheduler_placement_memory_bytes", "gauge", "Memory held for nodes and remembered scores.",
       static_cast<double>(counts.memory_bytes)},
  };
  for (const Single& one : singles) {
    out.family(one.name, one.type, one.help);
    out.sample(one.name, {}, one.value);
  }
  out.family("sluice_scheduler_waiting_pods", "gauge", "Pods that wait, by the rule that keeps them.");
  for (const auto& [rule, count] : counts.waiting_by_rule) {
    out.sample("sluice_scheduler_waiting_pods", {{"rule", rule}}, static_cast<double>(count));
  }
  out.family("sluice_scheduler_watch_age_seconds", "gauge", "Time since the API server was last heard from, by watch.");
  for (const auto& [watch, age_ms] : parts_.watchers.ages_ms())
    out.sample("sluice_scheduler_watch_age_seconds", {{"watch", watch}}, static_cast<double>(age_ms) * 1e-3);
  return {200, out.text(), "text/plain; version=0.0.4; charset=utf-8", false};
}

}  // namespace sluice::scheduler
