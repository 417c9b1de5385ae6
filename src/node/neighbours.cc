#include "node/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/request.h"

namespace sluice::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kEvery = std::chrono::seconds(30);
constexpr auto kEveryWithoutDra = std::chrono::minutes(5);
constexpr auto kTimeout = std::chrono::milliseconds(3000);
constexpr std::array<const char*, 3> kVersions{"v1", "v1beta2", "v1beta1"};  // 1.34, 1.33, 1.32
constexpr std::array<const char*, 2> kOurNames{core::kResourceMemory, core::kResourceCore};
constexpr char kNvidiaDriver[] = "gpu.nvidia.com";

const json::Value* member(const json::Value* value, std::string_view key) {
  return value != nullptr && value->is_object() ? value->get_object().if_contains(key) : nullptr;
}

std::string text(const json::Value* value) {
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

const json::Array& items(const json::Value* value) {
  static const json::Array kNone;
  return value != nullptr && value->is_array() ? value->get_array() : kNone;
}

// {"uuid": {"string": "GPU-..."}}; the name may carry the driver's domain, and v1beta1 has one level more.
bool has_card(const json::Value& device, const std::vector<std::string>& uuids) {
  const json::Value* attributes = member(&device, "attributes");
  if (attributes == nullptr) attributes = member(member(&device, "basic"), "attributes");
  if (attributes == nullptr || !attributes->is_object()) return false;
  for (const auto& attribute : attributes->get_object()) {
    const std::string value = text(member(&attribute.value(), "string"));
    if (!value.empty() && std::find(uuids.begin(), uuids.end(), value) != uuids.end()) return true;
  }
  return false;
}

}  // namespace

std::optional<Condition> claim_by_slices(const json::Value& list, const std::vector<std::string>& uuids) {
  for (const json::Value& slice : items(member(&list, "items"))) {
    const json::Value* spec = member(&slice, "spec");
    const std::string driver = text(member(spec, "driver"));
    const json::Array& devices = items(member(spec, "devices"));
    const bool ours =
        std::any_of(devices.begin(), devices.end(), [&](const json::Value& device) { return has_card(device, uuids); });
    if (!ours && (driver != kNvidiaDriver || devices.empty())) continue;
    return Condition{false, "CardsClaimedByDra",
                     fmt::format("DRA driver {} publishes {} devices of this node (ResourceSlice {}): pods with a "
                                 "ResourceClaim for them use the same cards outside Sluice's grants; keep the driver "
                                 "off nodes that share cards",
                                 driver, devices.size(), text(member(member(&slice, "metadata"), "name")))};
  }
  return std::nullopt;
}

std::optional<Condition> claim_by_classes(const json::Value& list) {
  for (const json::Value& item : items(member(&list, "items"))) {
    const std::string name = text(member(member(&item, "spec"), "extendedResourceName"));
    if (std::find(kOurNames.begin(), kOurNames.end(), name) == kOurNames.end()) continue;
    return Condition{
        false, "NameClaimedByDra",
        fmt::format("DeviceClass {} stands for {}: pods that ask for it are given to DRA, without a card of "
                    "Sluice's, wherever a node offers none of it; remove spec.extendedResourceName there",
                    text(member(member(&item, "metadata"), "name")), name)};
  }
  return std::nullopt;
}

Neighbours::Neighbours(kube::Endpoint endpoint, std::string node_name)
    : api_(std::move(endpoint)), node_name_(std::move(node_name)) {
  api_.set_timeout(kTimeout);
}

std::optional<json::Value> Neighbours::list(const std::string& what, const std::string& query) {
  for (const char* version : kVersions) {
    if (!version_.empty() && version_ != version) continue;
    const kube::ApiAnswer answer = api_.get(fmt::format("/apis/resource.k8s.io/{}/{}{}", version, what, query));
    if (answer.status == 0) return std::nullopt;  // nothing heard: other versions would be waited for as long
    if (!answer.ok()) continue;
    version_ = version;
    return answer.body;
  }
  version_.clear();
  return std::nullopt;
}

void Neighbours::look(const std::vector<std::string>& uuids) {
  const auto now = Clock::now();
  if (now < next_) return;
  claim_.reset();
  const std::optional<json::Value> slices = list("resourceslices", "?fieldSelector=spec.nodeName%3D" + node_name_);
  next_ = now + (slices ? std::chrono::steady_clock::duration(kEvery) : kEveryWithoutDra);
  if (!slices) return;
  claim_ = claim_by_slices(*slices, uuids);
  if (claim_) return;
  if (const std::optional<json::Value> classes = list("deviceclasses", ""); classes)
    claim_ = claim_by_classes(*classes);
}

}  // namespace sluice::node
