#include "kube/allocation.h"

#include <fmt/format.h>

#include "base/json.h"

namespace sluice::kube {
namespace {

// What is signed. The first line keeps a signature from meaning anything elsewhere.
std::string signed_text(const std::string& pod_uid, const std::string& node_name, const std::string& record) {
  return fmt::format("sluice allocation 1\n{}\n{}\n{}", pod_uid, node_name, record);
}

json::Array shares_to_json(const std::vector<CardShare>& shares) {
  json::Array out;
  for (const CardShare& share : shares) {
    out.push_back(json::Object{
        {"index", share.index}, {"uuid", share.uuid}, {"units", share.units}, {"core_milli", share.core_milli}});
  }
  return out;
}

Result<std::vector<CardShare>> shares_from_json(const json::Value& value) {
  if (!value.is_array()) return invalid("shares are a list");
  if (value.get_array().size() > static_cast<size_t>(core::kMaxCardsPerNode))
    return invalid("more cards than a node has");
  std::vector<CardShare> out;
  for (const json::Value& item : value.get_array()) {
    if (!item.is_object()) return invalid("a share is an object");
    const json::Object& object = item.get_object();
    Result<int64_t> index = json::get_int(object, "index");
    if (!index) return std::move(index).error();
    Result<std::string> uuid = json::get_string(object, "uuid");
    if (!uuid) return std::move(uuid).error();
    Result<int64_t> units = json::get_int(object, "units");
    if (!units) return std::move(units).error();
    Result<int64_t> core_milli = json::get_int(object, "core_milli");
    if (!core_milli) return std::move(core_milli).error();
    if (*index < 0 || *index > 255 || *units < 0 || *units > core::kMaxUnits || *core_milli < 0 || *core_milli > 1000) {
      return invalid("a share's numbers are out of range");
    }
    out.push_back({static_cast<int32_t>(*index), *uuid, *units, static_cast<int32_t>(*core_milli)});
  }
  return out;
}

json::Object to_json(const Allocation& allocation) {
  json::Object containers;
  for (const auto& [name, shares] : allocation.containers) containers[name] = shares_to_json(shares);
  return {{"version", 1}, {"cards", shares_to_json(allocation.cards)}, {"containers", containers}};
}

Result<Allocation> from_json(const json::Value& value) {
  if (!value.is_object()) return invalid("the record is an object");
  const json::Object& root = value.get_object();
  Result<int64_t> version = json::get_int(root, "version");
  if (!version) return std::move(version).error();
  if (*version != 1) return invalid(fmt::format("version {} of the record, this program reads 1", *version));
  const json::Value* cards = root.if_contains("cards");
  const json::Value* containers = root.if_contains("containers");
  if (cards == nullptr || containers == nullptr || !containers->is_object())
    return invalid("'cards' or 'containers' is missing");
  Allocation out;
  Result<std::vector<CardShare>> shares = shares_from_json(*cards);
  if (!shares) return std::move(shares).error();
  out.cards = *std::move(shares);
  for (const auto& member : containers->get_object()) {
    Result<std::vector<CardShare>> own = shares_from_json(member.value());
    if (!own) return std::move(own).error();
    out.containers.emplace(member.key(), *std::move(own));
  }
  return out;
}

// ACK's own: {"<container index>":{"<card index>":number}}.
template <typename Value>
std::string ack_record(const Allocation& allocation, const std::vector<std::string>& names, Value value) {
  json::Object out;
  for (size_t i = 0; i < names.size(); ++i) {
    auto found = allocation.containers.find(names[i]);
    if (found == allocation.containers.end()) continue;
    json::Object cards;
    for (const CardShare& share : found->second) cards[std::to_string(share.index)] = value(share);
    out[std::to_string(i)] = std::move(cards);
  }
  return json::to_string(out);
}

}  // namespace

Allocation make_allocation(const core::PodRequest& request, const core::Node& node, const core::Placement& placement) {
  auto uuid_of = [&node](int32_t index) {
    for (const core::Card& card : node.cards) {
      if (card.index == index) return card.uuid;
    }
    return std::string();
  };
  Allocation out;
  for (const core::Share& share : placement.shares) {
    out.cards.push_back({share.card_index, uuid_of(share.card_index), share.units, share.core_milli});
  }
  for (const core::ContainerShare& container : request.shares) {
    std::vector<CardShare>& own = out.containers[container.name];
    for (const CardShare& card : out.cards)
      own.push_back({card.index, card.uuid, container.units, container.core_milli});
  }
  return out;
}

std::map<std::string, std::string> to_annotations(const Allocation& allocation, const core::Node& node,
                                                  const std::vector<std::string>& container_names,
                                                  const std::string& pod_uid, const Signer& signer, int64_t now_ns) {
  std::string record = json::to_string(to_json(allocation));
  int64_t units = 0;
  int64_t card_units = 0;
  std::string indexes;
  bool core = false;
  for (const CardShare& share : allocation.cards) {
    units += share.units;
    core = core || share.core_milli > 0;
    indexes += (indexes.empty() ? "" : ",") + std::to_string(share.index);
    for (const core::Card& card : node.cards) {
      if (card.index == share.index) card_units = card.units;
    }
  }
  std::map<std::string, std::string> out{
      {kAnnotationAllocation, record},
      {kAnnotationSignature, signer.sign(signed_text(pod_uid, node.name, record))},
      {kAnnotationAckAllocation, ack_record(allocation, container_names, [](const CardShare& s) { return s.units; })},
      {kAnnotationAckAssumeTime, std::to_string(now_ns)},
      {kAnnotationAckAssigned, "false"},
      {"ALIYUN_COM_GPU_MEM_IDX", indexes},
      {"ALIYUN_COM_GPU_MEM_POD", std::to_string(units)},
      {"ALIYUN_COM_GPU_MEM_DEV", std::to_string(card_units)},
      {"ALIYUN_COM_GPU_MEM_ASSUME_TIME", std::to_string(now_ns)},
      {"ALIYUN_COM_GPU_MEM_ASSIGNED", "false"},
  };
  // A binding merges key by key: a key that is to vanish must be overwritten, and an empty text reads as absent.
  out[kAnnotationAckCore] =
      core ? ack_record(allocation, container_names, [](const CardShare& s) { return s.core_milli / 10; }) : "";
  return out;
}

Result<Allocation> read_allocation(const std::map<std::string, std::string>& annotations, const std::string& pod_uid,
                                   const std::string& node_name, const Verifier& verifier) {
  auto record = annotations.find(kAnnotationAllocation);
  if (record == annotations.end()) return not_found(fmt::format("the pod has no annotation {}", kAnnotationAllocation));
  auto signature = annotations.find(kAnnotationSignature);
  if (signature == annotations.end() ||
      !verifier.verify(signed_text(pod_uid, node_name, record->second), signature->second)) {
    return permission(
        fmt::format("annotation {} is not signed by the scheduler for this pod on this node", kAnnotationAllocation));
  }
  return parse_allocation(record->second);
}

Result<Allocation> parse_allocation(const std::string& record) {
  Result<json::Value> value = json::parse(record);
  if (!value) return std::move(value).error();
  return from_json(*value);
}

}  // namespace sluice::kube
