#include "cli/doctor_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <optional>
#include <thread>

#include "base/json_find.h"
#include "cli/table.h"
#include "core/node.h"
#include "kube/allocation.h"
#include "kube/http_client.h"
#include "kube/objects.h"

namespace sluice::cli {

const char* const kClusterRights =
    "needed are 'list' on nodes, pods and mutatingwebhookconfigurations, 'get' on services/proxy and leases in "
    "sluice-system";

namespace {

constexpr size_t kMostNodes = 20;  // named one by one; of more, those with a broken link and the number of the others
constexpr const char* kNamespacePath = "/api/v1/namespaces/sluice-system";
constexpr const char* kProxy = "/services/https:sluice-scheduler:https/proxy";
constexpr const char* kLeasePath = "/apis/coordination.k8s.io/v1/namespaces/sluice-system/leases/sluice-scheduler";
constexpr const char* kWebhooksPath = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
constexpr const char* kConfigurationMend =
    "give kube-scheduler the extender of deploy/scheduler/kube-scheduler-config.yaml (--config), or run the second "
    "scheduler of deploy/scheduler";

// A link that could not be looked at. Not being allowed to is no fault of the cluster.
Link not_seen(const std::string& name, const Error& error, const std::string& mend) {
  if (error.code == ErrorCode::kPermission)
    return {name, LinkState::kNote, "cannot be looked at: " + error.message, "ask with a user who has the right"};
  return {name, LinkState::kBroken, error.message, mend};
}

std::string quantity_text(const json::Object& node, const char* list, std::string_view name) {
  const json::Object* found = json::find_object(node, {"status", list});
  return found != nullptr ? json::find_text(*found, name) : "";
}

std::map<std::string, std::string> texts_at(const json::Object& node, std::string_view key) {
  std::map<std::string, std::string> texts;
  const json::Object* found = json::find_object(node, {"metadata", key});
  if (found == nullptr) return texts;
  for (const auto& member : *found) texts.emplace(member.key(), json::find_text(*found, member.key()));
  return texts;
}

// The condition of this kind; nullptr: none.
const json::Object* condition_of(const json::Object& node, std::string_view type) {
  const json::Object* status = json::find_object(node, "status");
  const json::Array* conditions = status != nullptr ? json::find_array(*status, "conditions") : nullptr;
  if (conditions == nullptr) return nullptr;
  for (const json::Value& item : *conditions) {
    if (const json::Object* one = item.if_object(); one != nullptr && json::find_text(*one, "type") == type) return one;
  }
  return nullptr;
}

bool is_true(const json::Object& node, std::string_view type) {
  const json::Object* condition = condition_of(node, type);
  return condition != nullptr && json::find_text(*condition, "status") == "True";
}

// Units of the healthy cards that the agent has written down; nullopt: that is not what an agent writes.
std::optional<int64_t> annotated_units(const std::string& annotation) {
  Result<json::Value> cards = json::parse(annotation);
  if (!cards || !cards->is_array()) return std::nullopt;
  int64_t sum = 0;
  for (const json::Value& item : cards->get_array()) {
    const json::Object* card = item.if_object();
    if (card == nullptr) return std::nullopt;
    const json::Value* healthy = card->if_contains("healthy");
    if (healthy != nullptr && healthy->is_bool() && healthy->get_bool())
      sum += std::clamp<int64_t>(json::find_int(*card, "units").value_or(0), 0, core::kMaxUnits);
  }
  return sum;
}

// Why a pod of the agent on this node does not run, as far as the pods say.
std::string agent_state(const std::vector<json::Object>& agents, const std::string& node) {
  for (const json::Object& pod : agents) {
    const json::Object* spec = json::find_object(pod, "spec");
    if (spec == nullptr || json::find_text(*spec, "nodeName") != node) continue;
    const json::Object* metadata = json::find_object(pod, "metadata");
    const json::Object* status = json::find_object(pod, "status");
    std::string text = fmt::format("its pod {} is {}", metadata != nullptr ? json::find_text(*metadata, "name") : "?",
                                   status != nullptr ? json::find_text(*status, "phase") : "unknown");
    const json::Array* containers = status != nullptr ? json::find_array(*status, "containerStatuses") : nullptr;
    if (containers != nullptr && !containers->empty() && containers->front().is_object()) {
      const json::Object* waiting = json::find_object(containers->front().get_object(), {"state", "waiting"});
      if (waiting != nullptr) text += fmt::format(" ({})", fit(json::find_text(*waiting, "reason"), 100));
    }
    return text;
  }
  return "there is no pod of the agent";
}

// The three conditions that an agent writes (docs/node-agent.md), with what to do when one does not hold.
struct KnownCondition {
  const char* type;
  const char* mend;
};
constexpr KnownCondition kConditions[] = {
    {"SluiceModeSettled", "let the pods named there end, or set the node's label back"},
    {"SluiceCardsHealthy", "look for XID messages in the node's kernel log; reset the card or restart the node"},
    {"SluiceEnforcing", "see docs/node-agent.md, \"Conditions\", for this reason"},
};

Link check_offer(const std::string& name, const json::Object& node, const std::string& annotation) {
  const std::string offered = quantity_text(node, "allocatable", core::kResourceMemory);
  const std::optional<int64_t> units = annotated_units(annotation);
  if (!units)
    return {name, LinkState::kBroken,
            fmt::format("its annotation {} is not what an agent writes", kube::kAnnotationCards),
            "nothing but the agent may write it; restart the agent of this node"};
  int64_t have = 0;
  std::from_chars(offered.data(), offered.data() + offered.size(), have);
  if (*units > 0 && have == 0)
    return {name, LinkState::kBroken,
            fmt::format("the agent has {} units, the kubelet offers none ({} is not in allocatable)", *units,
                        core::kResourceMemory),
            fmt::format("the plugin is not registered: sluice doctor --kubelet-dir in the agent's pod there says why "
                        "(kubectl -n sluice-system exec); a restart of the agent registers again")};
  if (have != *units)
    return {name, LinkState::kNote, fmt::format("the agent has {} healthy units, the kubelet offers {}", *units, have),
            "a moment after a change that is usual; else restart the agent of this node"};
  return {name, LinkState::kHolds, fmt::format("{} units in allocatable", have), ""};
}

void check_node(const json::Object& node, const std::vector<json::Object>& agents, std::vector<Link>& links) {
  const json::Object* metadata = json::find_object(node, "metadata");
  const std::string node_name = metadata != nullptr ? json::find_text(*metadata, "name") : "";
  const std::string name = "node " + fit(node_name, 253);
  const auto labels = texts_at(node, "labels");
  const auto annotations = texts_at(node, "annotations");
  const auto mode = annotations.find(kube::kAnnotationMode);
  const core::NodeMode wanted = kube::mode_of_labels(labels);
  if (mode == annotations.end() && wanted == core::NodeMode::kDefault) {
    links.push_back(
        {name, LinkState::kBroken,
         fmt::format("has no label {}, so that no agent runs there and no pod gets a share", kube::kLabelMode),
         fmt::format("kubectl label node {} {}=core_mem", node_name, kube::kLabelMode)});
    return;
  }
  if (mode == annotations.end()) {
    links.push_back(
        {name, LinkState::kBroken,
         fmt::format("the agent has not written to the node; {}", agent_state(agents, node_name)),
         "apply deploy/manifests/agent.yaml; else see kubectl -n sluice-system describe pod, and logs, of it"});
    return;
  }
  const size_t before = count_broken(links);
  if (!is_true(node, "Ready"))
    links.push_back({name, LinkState::kBroken, "the node is not Ready", "see kubectl describe node " + node_name});
  for (const KnownCondition& known : kConditions) {
    const json::Object* condition = condition_of(node, known.type);
    if (condition == nullptr) {
      links.push_back({name, LinkState::kNote,
                       fmt::format("the agent has not written the condition {} yet", known.type),
                       "look again in a minute; it may not patch nodes/status (deploy/manifests/agent.yaml)"});
      continue;
    }
    if (json::find_text(*condition, "status") == "True") continue;
    // In mode share nothing is to be enforced.
    const bool meant = json::find_text(*condition, "reason") == "ShareMode";
    links.push_back({name, meant ? LinkState::kNote : LinkState::kBroken,
                     fmt::format("{}: {}", known.type, fit(json::find_text(*condition, "message"), 400)), known.mend});
  }
  if (count_broken(links) != before) return;
  if (mode->second == "waiting") {
    links.push_back({name, LinkState::kBroken, "the agent offers nothing at the moment: its plugins are not registered",
                     "the kubelet may be starting; sluice doctor --kubelet-dir in the agent's pod says more"});
    return;
  }
  const auto cards = annotations.find(kube::kAnnotationCards);
  Link offer = check_offer(name, node, cards != annotations.end() ? cards->second : "");
  if (offer.state == LinkState::kHolds) offer.found = fmt::format("mode {}, {}", fit(mode->second, 63), offer.found);
  links.push_back(std::move(offer));
}

struct Pods {
  std::vector<json::Object> agents;
  size_t asking = 0, with_record = 0, bound_without = 0, waiting = 0;
  std::string example_without, example_waiting;
};

Pods sort_pods(const json::Array& items) {
  Pods pods;
  for (const json::Value& item : items) {
    const json::Object* object = item.if_object();
    if (object == nullptr) continue;
    if (texts_at(*object, "labels")["app"] == "sluice-agent") pods.agents.push_back(*object);
    Result<kube::Pod> pod = kube::decode_pod(item);
    if (!pod || !pod->asks() || pod->terminal()) continue;
    ++pods.asking;
    if (pod->annotations.contains(kube::kAnnotationAllocation)) {
      ++pods.with_record;
    } else if (!pod->node_name.empty()) {
      ++pods.bound_without;
      pods.example_without = pod->full_name();
    } else {
      ++pods.waiting;
      pods.example_waiting = pod->full_name();
    }
  }
  return pods;
}

void check_nodes(const json::Array& nodes, const Pods& pods, const ClusterQuestion& question,
                 std::vector<Link>& links) {
  std::vector<Link> all;
  size_t seen = 0, holding = 0;
  for (const json::Value& item : nodes) {
    const json::Object* node = item.if_object();
    if (node == nullptr) continue;
    const json::Object* metadata = json::find_object(*node, "metadata");
    const std::string name = metadata != nullptr ? json::find_text(*metadata, "name") : "";
    const bool ours = texts_at(*node, "annotations").contains(kube::kAnnotationMode) ||
                      kube::mode_of_labels(texts_at(*node, "labels")) != core::NodeMode::kDefault;
    if (question.node.empty() ? !ours : name != question.node) continue;
    ++seen;
    std::vector<Link> found;
    check_node(*node, pods.agents, found);
    const bool holds = found.size() == 1 && found[0].state == LinkState::kHolds;
    if (holds && ++holding > kMostNodes) continue;
    for (Link& link : found) all.push_back(std::move(link));
  }
  if (seen == 0 && !question.node.empty()) {
    all.push_back(
        {"node " + question.node, LinkState::kBroken, "the cluster has no such node", "kubectl get nodes lists them"});
  } else if (seen == 0) {
    all.push_back({"nodes", LinkState::kBroken,
                   fmt::format("none of {} has the label {}: no agent runs and nothing is shared", nodes.size(),
                               kube::kLabelMode),
                   fmt::format("kubectl label node NAME {}=core_mem", kube::kLabelMode)});
  }
  for (Link& link : all) links.push_back(std::move(link));
  if (holding > kMostNodes)
    links.push_back({"nodes", LinkState::kHolds, fmt::format("and {} more that hold", holding - kMostNodes), ""});
}

// The sum of a counter's samples that hold `label`; nullopt: there is none.
std::optional<double> counter(const std::string& text, std::string_view name, std::string_view label) {
  std::optional<double> sum;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (!line.starts_with(name) || line.find(label) == std::string_view::npos) continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == std::string_view::npos) continue;
    std::from_chars(line.data() + space + 1, line.data() + line.size(), value);
    sum = sum.value_or(0) + value;
  }
  return sum;
}

Link check_extender(ClusterReader& cluster, const Pods& pods) {
  Link link{"extender in kube-scheduler", LinkState::kHolds, "", ""};
  Result<std::string> metrics = cluster.text(std::string(kNamespacePath) + kProxy + "/metrics");
  const std::optional<double> calls =
      metrics ? counter(*metrics, "sluice_scheduler_request_duration_seconds_count{", "verb=\"filter\"") : std::nullopt;
  if (calls.value_or(0) > 0) {
    link.found = fmt::format("kube-scheduler has called filter {:.0f} times on the replica that answered", *calls);
  } else if (pods.waiting > 0 && metrics) {
    link = {link.name, LinkState::kBroken,
            fmt::format("{} pods wait for shares, {} among them, and nobody has called the extender", pods.waiting,
                        fit(pods.example_waiting, 320)),
            kConfigurationMend};
  } else if (pods.with_record > 0) {
    link.found = fmt::format("{} live pods have Sluice's record", pods.with_record);
  } else if (pods.bound_without > 0) {
    link = {link.name, LinkState::kBroken,
            fmt::format("{} was bound without Sluice's record, and the extender has not been called",
                        fit(pods.example_without, 320)),
            kConfigurationMend};
  } else if (!metrics) {
    return not_seen(link.name, metrics.error(), "see the scheduler's link");
  } else {
    link = {link.name, LinkState::kNote, "no pod has asked for a share yet, so nothing shows whether it is called",
            "make a pod that asks (examples/shared.yaml) and look again"};
  }
  return link;
}

Link check_scheduler(ClusterReader& cluster) {
  Link link{"scheduler", LinkState::kHolds, "its Service answers, and it knows the cluster's nodes and pods", ""};
  Result<std::string> ready = cluster.text(std::string(kNamespacePath) + kProxy + "/readyz");
  if (ready) return link;
  return not_seen(link.name, ready.error(),
                  ready.error().code == ErrorCode::kNotFound
                      ? "apply deploy/manifests (kubectl apply -k), after what deploy/scheduler/make-secrets prints"
                      : "see kubectl -n sluice-system get pods -l app=sluice-scheduler, and their logs");
}

Link check_webhook(ClusterReader& cluster) {
  Link link{"webhook", LinkState::kHolds, "", ""};
  Result<json::Array> configurations = cluster.list(kWebhooksPath);
  if (!configurations) return not_seen(link.name, configurations.error(), "see the API server's links");
  for (const json::Value& item : *configurations) {
    const json::Object* configuration = item.if_object();
    const json::Array* webhooks = configuration != nullptr ? json::find_array(*configuration, "webhooks") : nullptr;
    if (webhooks == nullptr) continue;
    for (const json::Value& one : *webhooks) {
      const json::Object* client = one.is_object() ? json::find_object(one.get_object(), "clientConfig") : nullptr;
      if (client == nullptr) continue;
      const json::Object* service = json::find_object(*client, "service");
      const std::string url = json::find_text(*client, "url");
      const bool ours = service != nullptr ? json::find_text(*service, "name") == "sluice-scheduler"
                                           : json::find_text(one.get_object(), "name") == "webhook.sluice.dev";
      if (!ours) continue;
      if (json::find_text(*client, "caBundle").empty() && !url.starts_with("http:"))
        return {link.name, LinkState::kBroken, "it is registered without the CA of its certificate: every call fails",
                "renew it: deploy/scheduler/make-webhook | kubectl apply -f -"};
      const json::Object* metadata = json::find_object(*configuration, "metadata");
      link.found = fmt::format("registered as {}, failurePolicy {}",
                               fit(metadata != nullptr ? json::find_text(*metadata, "name") : "?", 253),
                               fit(json::find_text(one.get_object(), "failurePolicy"), 20));
      return link;
    }
  }
  return {link.name, LinkState::kNote,
          "not registered: who asks for what can never fit hears of it from a waiting pod only",
          "deploy/scheduler/make-webhook | kubectl apply -f -; or deploy/manifests/policy.yaml, which needs no server"};
}

Link check_lease(ClusterReader& cluster, const ClusterQuestion& question) {
  const std::string name = "lease";
  auto sleep_ms = [&](int ms) {
    question.sleep_ms ? question.sleep_ms(ms) : std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  };
  constexpr int kStepMs = 500;
  std::string first, holder;
  for (int waited_ms = 0;; waited_ms += kStepMs) {
    Result<json::Object> lease = cluster.object(kLeasePath);
    if (!lease && lease.error().code == ErrorCode::kNotFound)
      return {name, LinkState::kNote, "there is none: the scheduler runs without --leader-elect, as one replica",
              "nothing to do for one replica; several need --leader-elect (deploy/manifests/scheduler.yaml)"};
    if (!lease) return not_seen(name, lease.error(), "see the API server's links");
    const json::Object* spec = json::find_object(*lease, "spec");
    holder = spec != nullptr ? fit(json::find_text(*spec, "holderIdentity"), 253) : "";
    const std::string renewed = spec != nullptr ? json::find_text(*spec, "renewTime") : "";
    // Our clock need not be the cluster's: what counts is whether it is renewed while we look.
    if (!first.empty() && renewed != first && !holder.empty())
      return {name, LinkState::kHolds, fmt::format("held by {} and renewed", holder), ""};
    first = renewed.empty() ? "-" : renewed;
    if (waited_ms >= question.lease_patience_ms) break;
    sleep_ms(kStepMs);
  }
  return {name, LinkState::kBroken,
          fmt::format("{}, not renewed within {:.1f} s: no replica leads, nobody is bound",
                      holder.empty() ? "held by nobody" : "held by " + holder, question.lease_patience_ms / 1000.0),
          "see kubectl -n sluice-system get pods -l app=sluice-scheduler, and their logs"};
}

}  // namespace

std::vector<Link> check_cluster(ClusterReader& cluster, const ClusterQuestion& question) {
  std::vector<Link> links;
  Result<json::Array> nodes = cluster.list("/api/v1/nodes");
  if (!nodes) {
    links.push_back(
        not_seen("API server", nodes.error(), "see the sentence; kubectl get nodes should work the same way"));
    if (nodes.error().code != ErrorCode::kPermission) return links;
  }
  Pods pods;
  Result<json::Array> items = cluster.list("/api/v1/pods");
  if (items)
    pods = sort_pods(*items);
  else
    links.push_back(not_seen("pods", items.error(), "see the API server's links"));
  if (nodes) check_nodes(*nodes, pods, question, links);
  const size_t at = links.size();
  links.push_back(check_scheduler(cluster));
  links.push_back(check_lease(cluster, question));
  // What hangs on a scheduler that does not answer says nothing new.
  if (links[at].state == LinkState::kHolds || pods.with_record > 0) links.push_back(check_extender(cluster, pods));
  links.push_back(check_webhook(cluster));
  return links;
}

}  // namespace sluice::cli
