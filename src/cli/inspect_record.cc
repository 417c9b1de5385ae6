#include "cli/inspect_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/table.h"
#include "core/request.h"
#include "kube/allocation.h"

namespace sluice::cli {
namespace {

constexpr const char* kOldIndex = "ALIYUN_COM_GPU_MEM_IDX";
constexpr const char* kOldUnits = "ALIYUN_COM_GPU_MEM_POD";
constexpr int32_t kMaxIndex = 255;
constexpr size_t kNameLength = 253;  // of any object in the API

std::string annotation(const kube::Pod& pod, const char* key) {
  const auto found = pod.annotations.find(key);
  return found == pod.annotations.end() ? "" : found->second;
}

// What the pod asks for over all its cards; where its request breaks a rule, the plain sum of its main containers.
void read_request(const kube::Pod& pod, InspectedPod& out) {
  if (Result<core::PodRequest> request = core::parse_pod(pod.text); request) {
    out.asked_units = request->total.units * request->total.cards;
    out.asked_core = request->total.core_milli / 10 * request->total.cards;
    return;
  }
  for (const core::ContainerText& container : pod.text.containers) {
    if (container.role == core::ContainerRole::kInit) continue;
    out.asked_units += read_number(container.memory_units.value_or("")).value_or(0);
    out.asked_core += read_number(container.core_percent.value_or("")).value_or(0);
  }
}

InspectedPod basics(const kube::Pod& pod) {
  InspectedPod out;
  out.name_space = fit(pod.name_space, kNameLength);
  out.name = fit(pod.name, kNameLength);
  out.uid = fit(pod.uid, kNameLength);
  out.phase = fit(pod.phase, kNameLength);
  out.deleting = pod.deleting;
  read_request(pod, out);
  return out;
}

SharesByCard shares_of(const std::vector<kube::CardShare>& cards) {
  SharesByCard out;
  for (const kube::CardShare& card : cards) out[card.index] = {card.units, card.core_milli / 10};
  return out;
}

// {"<container>":{"<card>":number}}, by container and card. nullopt: not of this form.
using AckRecord = std::map<int64_t, std::map<int32_t, int64_t>>;
std::optional<AckRecord> read_ack(const std::string& text) {
  Result<json::Value> value = json::parse(text);
  if (!value || !value->is_object()) return std::nullopt;
  AckRecord out;
  for (const auto& container : value->get_object()) {
    const std::optional<int64_t> position = read_number(container.key());
    if (!position || !container.value().is_object()) return std::nullopt;
    for (const auto& card : container.value().get_object()) {
      const std::optional<int64_t> index = read_number(card.key());
      if (!index || *index > kMaxIndex || !card.value().is_int64()) return std::nullopt;
      const int64_t amount = card.value().get_int64();
      if (amount < 0 || amount > core::kMaxUnits) return std::nullopt;
      out[*position][static_cast<int32_t>(*index)] += amount;
    }
  }
  return out;
}

// ACK counts spec.containers alone; a position outside of them has no name.
std::string container_name(const kube::Pod& pod, int64_t position) {
  int64_t at = 0;
  for (const core::ContainerText& container : pod.text.containers) {
    if (container.role != core::ContainerRole::kMain) continue;
    if (at++ == position) return fit(container.name, kNameLength);
  }
  return fmt::format("#{}", position);
}

bool read_new(const kube::Pod& pod, InspectedPod& out) {
  const std::string memory_text = annotation(pod, kube::kAnnotationAckAllocation);
  if (memory_text.empty()) return false;
  const std::optional<AckRecord> memory = read_ack(memory_text);
  const std::string core_text = annotation(pod, kube::kAnnotationAckCore);
  const std::optional<AckRecord> core = core_text.empty() ? AckRecord{} : read_ack(core_text);
  if (!memory || !core) {
    out.problem = fmt::format("annotation {} is not of the form {{\"0\":{{\"1\":10}}}}",
                              memory ? kube::kAnnotationAckCore : kube::kAnnotationAckAllocation);
    return false;
  }
  std::map<int64_t, SharesByCard> containers;
  for (const auto& [position, cards] : *memory) {
    for (const auto& [index, units] : cards) {
      out.cards[index].units += units;
      containers[position][index].units += units;
    }
  }
  for (const auto& [position, cards] : *core) {
    for (const auto& [index, percent] : cards) {
      if (!out.cards.contains(index)) continue;  // compute is never without memory
      out.cards[index].core_percent += percent;
      containers[position][index].core_percent += percent;
    }
  }
  for (auto& [position, cards] : containers) out.containers.push_back({container_name(pod, position), cards});
  out.record = RecordKind::kAck;
  return true;
}

// "0", or "0,1" where a pod was spread over several cards in equal parts. -1: the scheduler found none.
void read_old(const kube::Pod& pod, InspectedPod& out) {
  const std::string text = annotation(pod, kOldIndex);
  if (text.empty() || text == "-1") return;
  std::vector<int32_t> indexes;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::optional<int64_t> index = read_number(std::string_view(text).substr(start, end - start));
    if (!index || *index > kMaxIndex) {
      out.problem = fmt::format("annotation {} is '{}', expected a card's index", kOldIndex, text);
      return;
    }
    indexes.push_back(static_cast<int32_t>(*index));
    start = end + 1;
  }
  const int64_t units = read_number(annotation(pod, kOldUnits)).value_or(out.asked_units);
  for (int32_t index : indexes) out.cards[index].units += units / static_cast<int64_t>(indexes.size());
  out.record = RecordKind::kOldAck;
  out.problem.clear();
}

}  // namespace

std::optional<int64_t> read_number(std::string_view text) {
  int64_t value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < 0 || value > core::kMaxUnits) return std::nullopt;
  return value;
}

InspectedPod read_signed(const kube::Pod& pod, const std::string& node_name, const kube::Verifier* keys) {
  InspectedPod out = basics(pod);
  const std::string text = annotation(pod, kube::kAnnotationAllocation);
  if (text.empty()) {
    out.problem =
        "it was bound without Sluice's scheduler (spec.nodeName, or another scheduler) and holds no card until the "
        "scheduler gives it one";
    return out;
  }
  if (annotation(pod, kube::kAnnotationSignature).empty()) {
    out.problem =
        fmt::format("its record ({}) is not signed by the scheduler; it gives no card", kube::kAnnotationAllocation);
    return out;
  }
  Result<kube::Allocation> allocation = keys == nullptr
                                            ? kube::parse_allocation(text)
                                            : kube::read_allocation(pod.annotations, pod.uid, node_name, *keys);
  if (!allocation) {
    out.problem = allocation.error().code == ErrorCode::kPermission
                      ? "its record does not bear the scheduler's signature for this pod on this node; it gives no card"
                      : fmt::format("its record ({}) cannot be read: {}", kube::kAnnotationAllocation,
                                    allocation.error().message);
    return out;
  }
  out.record = RecordKind::kSluice;
  out.cards = shares_of(allocation->cards);
  for (const core::ContainerText& container : pod.text.containers) {
    const auto found = allocation->containers.find(container.name);
    if (found != allocation->containers.end())
      out.containers.push_back({fit(found->first, kNameLength), shares_of(found->second)});
  }
  return out;
}

InspectedPod read_unsigned(const kube::Pod& pod) {
  InspectedPod out = basics(pod);
  if (!read_new(pod, out)) read_old(pod, out);
  if (out.cards.empty() && out.problem.empty()) out.problem = "it is bound to the node and names no card yet";
  return out;
}

std::string replaced_card(const kube::Pod& pod, const InspectedNode& node) {
  Result<kube::Allocation> allocation = kube::parse_allocation(annotation(pod, kube::kAnnotationAllocation));
  if (!allocation) return "";
  for (const kube::CardShare& share : allocation->cards) {
    const InspectedCard* card = node.card(share.index);
    if (card == nullptr || card->uuid.empty() || share.uuid.empty() || card->uuid == share.uuid) continue;
    return fmt::format("it was given card {}, and card {} of the node is {} today", share.uuid, share.index,
                       card->uuid);
  }
  return "";
}

}  // namespace sluice::cli
