#include "cli/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "cli/inspect_record.h"
#include "cli/table.h"
#include "kube/objects.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxSentence = 400;
constexpr size_t kNameLength = 253;
constexpr int64_t kMostGibPerCard = 2048;  // more units on one card are no GiB

const json::Object* child(const json::Object* object, std::string_view key) {
  const json::Value* value = object == nullptr ? nullptr : object->if_contains(key);
  return value != nullptr && value->is_object() ? &value->get_object() : nullptr;
}

std::string text_at(const json::Object* object, std::string_view key) {
  if (object == nullptr) return "";
  Result<std::string> text = json::get_string_or(*object, key, "");
  return text ? *text : "";
}

// Quantities of extended resources are whole numbers, as strings.
int64_t quantity_at(const json::Object* object, std::string_view key) {
  const json::Value* value = object == nullptr ? nullptr : object->if_contains(key);
  if (value == nullptr) return 0;
  if (value->is_int64()) return std::clamp<int64_t>(value->get_int64(), 0, core::kMaxUnits);
  return value->is_string() ? read_number(value->get_string()).value_or(0) : 0;
}

std::string address_of(const json::Object* status) {
  const json::Value* list = status == nullptr ? nullptr : status->if_contains("addresses");
  if (list == nullptr || !list->is_array()) return "unknown";
  for (const json::Value& item : list->get_array()) {
    const json::Object* address = item.is_object() ? &item.get_object() : nullptr;
    if (text_at(address, "type") == "InternalIP") return fit(text_at(address, "address"), 64);
  }
  return "unknown";
}

// The units that the agent counts, which need not be GiB.
std::map<int64_t, int64_t> annotated_units(const std::string& annotation) {
  std::map<int64_t, int64_t> units;
  Result<json::Value> list = json::parse(annotation);
  if (!list || !list->is_array()) return units;
  for (const json::Value& item : list->get_array()) {
    if (!item.is_object()) continue;
    Result<int64_t> index = json::get_int(item.get_object(), "index");
    Result<int64_t> count = json::get_int(item.get_object(), "units");
    if (index && count && *count >= 0 && *count <= core::kMaxUnits) units[*index] = *count;
  }
  return units;
}

struct ReadNode {
  InspectedNode node;
  bool shares = false;
};

// Without an agent only the sums are known: as many equal cards as the node counts, the remainder on the first ones.
void spread_equally(InspectedNode& node, int64_t units, int64_t count) {
  count = std::clamp<int64_t>(count, units > 0 ? 1 : 0, core::kMaxCardsPerNode);
  for (int32_t i = 0; i < count; ++i) {
    InspectedCard card;
    card.index = i;
    card.units = units / count + (i < units % count ? 1 : 0);
    node.cards.push_back(card);
  }
}

Result<ReadNode> read_node(const json::Value& object) {
  Result<kube::NodeDescription> decoded = kube::decode_node(object, {});
  if (!decoded) return std::move(decoded).error();
  const json::Object* root = &object.get_object();
  const json::Object* status = child(root, "status");
  const json::Object* capacity = child(status, "capacity");
  ReadNode out;
  InspectedNode& node = out.node;
  node.name = fit(decoded->node.name, kNameLength);
  node.address = address_of(status);
  node.mode = core::to_string(decoded->node.mode);
  node.isolates_compute = decoded->node.mode == core::NodeMode::kCoreMemory;
  if (!decoded->problem.empty()) node.problems.push_back(decoded->problem);
  const int64_t units = quantity_at(capacity, core::kResourceMemory);
  const std::string annotation = text_at(child(child(root, "metadata"), "annotations"), kube::kAnnotationCards);
  node.has_agent = !annotation.empty();
  if (node.has_agent) {
    const std::map<int64_t, int64_t> counted = annotated_units(annotation);
    for (const core::Card& card : decoded->node.cards) {
      const auto found = counted.find(card.index);
      node.cards.push_back({card.index, card.uuid, card.model, card.memory_mib,
                            found == counted.end() ? card.units : found->second, card.healthy, 0, 0});
    }
    std::sort(node.cards.begin(), node.cards.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  } else {
    spread_equally(node, units, quantity_at(capacity, core::kLabelCardCount));
    node.isolates_compute = node.isolates_compute || quantity_at(capacity, core::kResourceCore) > 0;
  }
  const bool sharing_mode = decoded->node.mode == core::NodeMode::kMemory || node.isolates_compute ||
                            decoded->node.mode == core::NodeMode::kShare;
  out.shares = sharing_mode || units > 0;
  if (sharing_mode && node.cards.empty() && node.problems.empty()) {
    node.problems.push_back(
        fmt::format("its mode is {}, but no card is reported: does the agent run there?", node.mode));
  }
  for (const InspectedCard& card : node.cards) {
    if (!card.healthy) node.problems.push_back(fmt::format("card {} is not healthy and takes no new pods", card.index));
  }
  return out;
}

void add_pod(InspectedNode& node, const kube::Pod& pod, const kube::Verifier* keys) {
  InspectedPod one = node.has_agent ? read_signed(pod, node.name, keys) : read_unsigned(pod);
  for (const auto& [index, share] : one.cards) {
    auto card = std::find_if(node.cards.begin(), node.cards.end(), [&](const auto& c) { return c.index == index; });
    if (card == node.cards.end()) {
      one.problem = fmt::format("it holds card {}, which the node no longer reports", index);
      continue;
    }
    card->allocated_units += share.units;
    card->allocated_core += share.core_percent;
  }
  if (one.problem.empty() && node.has_agent) one.problem = replaced_card(pod, node);
  node.pods.push_back(std::move(one));
}

// The one unit that explains every card, or none.
std::string memory_unit(const std::vector<InspectedNode>& nodes) {
  std::set<std::string> found;
  for (const InspectedNode& node : nodes) {
    for (const InspectedCard& card : node.cards) {
      if (card.units <= 0) continue;
      if (card.memory_mib <= 0) {
        found.insert(card.units > kMostGibPerCard ? "MiB" : "GiB");
      } else if (card.memory_mib / 1024 == card.units) {
        found.insert("GiB");
      } else {
        const int64_t unit_mib = card.memory_mib / card.units;
        int64_t power = 1;
        while (power * 2 <= unit_mib) power *= 2;
        const bool exact = card.memory_mib / power == card.units;
        found.insert(exact ? power == 1 ? "MiB" : fmt::format("{} MiB", power) : "units");
      }
    }
  }
  if (found.empty()) return "GiB";
  return found.size() == 1 ? *found.begin() : "units";
}

// Pods without a card come last.
int32_t first_card(const InspectedPod& pod) {
  return pod.cards.empty() ? std::numeric_limits<int32_t>::max() : pod.cards.begin()->first;
}

Error unknown_node(const std::string& name, const std::map<std::string, ReadNode>& nodes) {
  std::vector<std::string> sharing;
  for (const auto& [other, read] : nodes) {
    if (read.shares && sharing.size() < 10) sharing.push_back(other);
  }
  return not_found(sharing.empty() ? fmt::format("the cluster has no node '{}'", name)
                                   : fmt::format("the cluster has no node '{}'; nodes that share cards: {}", name,
                                                 fmt::join(sharing, ", ")));
}

void add_pods(std::map<std::string, ReadNode>& nodes, const json::Array& pods, const InspectOptions& options,
              std::vector<std::string>& notes) {
  size_t waiting = 0;
  for (const json::Value& item : pods) {
    Result<kube::Pod> pod = kube::decode_pod(item);
    if (!pod) {
      notes.push_back(fit("a pod cannot be read: " + pod.error().message, kMaxSentence));
      continue;
    }
    if (pod->terminal() || !pod->asks()) continue;
    if (pod->node_name.empty()) {
      ++waiting;
      continue;
    }
    auto found = nodes.find(pod->node_name);
    if (found != nodes.end()) add_pod(found->second.node, *pod, options.keys);
  }
  if (waiting > 0 && options.names.empty()) {
    notes.push_back(fmt::format("{} {} for a shared card without a node; `sluice explain NAMESPACE/POD` says why",
                                waiting, waiting == 1 ? "pod waits" : "pods wait"));
  }
}

}  // namespace

int32_t InspectedNode::columns() const {
  int32_t count = 0;
  for (const InspectedCard& one : cards) count = std::max(count, one.index + 1);
  for (const InspectedPod& pod : pods) {
    if (!pod.cards.empty()) count = std::max(count, pod.cards.rbegin()->first + 1);
  }
  return count;
}

const InspectedCard* InspectedNode::card(int32_t index) const {
  const auto found = std::find_if(cards.begin(), cards.end(), [&](const auto& c) { return c.index == index; });
  return found == cards.end() ? nullptr : &*found;
}

int64_t InspectedNode::total_units() const {
  int64_t sum = 0;
  for (const InspectedCard& one : cards) sum += one.units;
  return sum;
}

int64_t InspectedNode::allocated_units() const {
  int64_t sum = 0;
  for (const InspectedPod& pod : pods) {
    for (const auto& [index, share] : pod.cards) sum += share.units;
  }
  return sum;
}

int64_t InspectedNode::allocated_core() const {
  int64_t sum = 0;
  for (const InspectedPod& pod : pods) {
    for (const auto& [index, share] : pod.cards) sum += share.core_percent;
  }
  return sum;
}

int64_t InspectedNode::pending_units() const {
  int64_t sum = 0;
  for (const InspectedPod& pod : pods) sum += pod.cards.empty() ? pod.asked_units : 0;
  return sum;
}

bool InspectedNode::has_pending() const {
  return std::any_of(pods.begin(), pods.end(), [](const InspectedPod& pod) { return pod.cards.empty(); });
}

Result<Inspection> inspect(const json::Array& nodes, const json::Array& pods, const InspectOptions& options) {
  Inspection out;
  std::map<std::string, ReadNode> read;
  for (const json::Value& item : nodes) {
    Result<ReadNode> node = read_node(item);
    if (!node) {
      out.notes.push_back(fit("a node cannot be read: " + node.error().message, kMaxSentence));
      continue;
    }
    const std::string name = node->node.name;  // as shown: the API admits no name that differs
    read[name] = *std::move(node);
  }
  for (const std::string& name : options.names) {
    if (!read.contains(name)) return unknown_node(name, read);
  }
  const size_t known = read.size();
  std::erase_if(read, [&](const auto& entry) {
    const bool wanted = options.names.empty() ||
                        std::find(options.names.begin(), options.names.end(), entry.first) != options.names.end();
    if (wanted && !options.names.empty() && !entry.second.shares) {
      out.notes.push_back(
          fmt::format("node {} shares no cards: its mode is {}; label ack.node.gpu.schedule makes it "
                      "share (core_mem, cgpu or share)",
                      entry.first, entry.second.node.mode));
    }
    return !wanted || !entry.second.shares;
  });
  add_pods(read, pods, options, out.notes);
  for (auto& [name, entry] : read) {
    std::sort(entry.node.pods.begin(), entry.node.pods.end(), [](const InspectedPod& a, const InspectedPod& b) {
      return std::tuple(first_card(a), std::tie(a.name_space, a.name, a.uid)) <
             std::tuple(first_card(b), std::tie(b.name_space, b.name, b.uid));
    });
    out.nodes.push_back(std::move(entry.node));
  }
  if (out.nodes.empty() && options.names.empty()) {
    out.notes.push_back(known == 0 ? "the cluster has no nodes"
                                   : fmt::format("none of the cluster's {} {} shares cards; label one with "
                                                 "ack.node.gpu.schedule=core_mem (or cgpu, share) and see that the "
                                                 "agent runs there",
                                                 known, known == 1 ? "node" : "nodes"));
  }
  out.memory_unit = memory_unit(out.nodes);
  return out;
}

std::vector<std::string> inspect_notes(const Inspection& inspection) {
  std::vector<std::string> out = inspection.notes;
  for (const InspectedNode& node : inspection.nodes) {
    for (const std::string& problem : node.problems)
      out.push_back(fit(fmt::format("node {}: {}", node.name, problem), kMaxSentence));
    for (const InspectedPod& pod : node.pods) {
      if (pod.problem.empty()) continue;
      out.push_back(
          fit(fmt::format("pod {}/{} on {}: {}", pod.name_space, pod.name, node.name, pod.problem), kMaxSentence));
    }
  }
  return out;
}

}  // namespace sluice::cli
