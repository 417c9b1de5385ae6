#include "node/slots.h"

#include <fmt/format.h>

#include <algorithm>

#include "agent/fields.h"
#include "agent/grant_pages.h"

namespace sluice::node {
namespace {

constexpr int64_t kSlotVersion = 1;
constexpr size_t kMaxIds = 8192;
constexpr size_t kMaxAllocationBytes = 256u << 10;  // of all annotations of an object, by the API server

}  // namespace

std::string slot_text(uint64_t id) {
  return agent::grant_id_text(id);
}

json::Object Slot::to_json() const {
  json::Array id_array(ids.begin(), ids.end());
  return {{"version", kSlotVersion},
          {"id", slot_text(id)},
          {"sequence", static_cast<int64_t>(sequence)},
          {"resource", resource},
          {"ids", std::move(id_array)},
          {"made_unix", made_unix},
          {"pod_uid", owner.pod_uid},
          {"namespace", owner.name_space},
          {"pod", owner.pod},
          {"container", owner.container},
          {"grant", grant == 0 ? "" : slot_text(grant)},
          {"guess_pod_uid", guess.pod_uid},
          {"guess_container", guess.container},
          {"allocation", allocation},
          {"libraries", libraries},
          {"sure", sure}};
}

Result<Slot> Slot::from_json(const json::Object& object) {
  Slot slot;
  agent::Fields f(object);
  int64_t version = 0;
  f.number("version", version);
  if (version != kSlotVersion) f.fail("version", fmt::format("{}", kSlotVersion));
  std::string id, grant;
  f.text("id", id, 16);
  int64_t sequence = 0;
  f.number("sequence", sequence, 1);
  slot.sequence = static_cast<uint64_t>(sequence);
  f.text("resource", slot.resource, 256);
  f.texts("ids", slot.ids, kMaxIds);
  f.number("made_unix", slot.made_unix, 0);
  f.text("pod_uid", slot.owner.pod_uid, 256);
  f.text("namespace", slot.owner.name_space, 256);
  f.text("pod", slot.owner.pod, 256);
  f.text("container", slot.owner.container, 256);
  f.text("grant", grant, 16);
  f.text("guess_pod_uid", slot.guess.pod_uid, 256);
  f.text("guess_container", slot.guess.container, 256);
  f.text("allocation", slot.allocation, kMaxAllocationBytes);
  f.text("libraries", slot.libraries);
  f.flag("sure", slot.sure);
  if (f.error()) return *f.error();
  Result<uint64_t> number = agent::parse_grant_id(id);
  if (!number) return std::move(number.error());
  slot.id = *number;
  if (!grant.empty()) {
    number = agent::parse_grant_id(grant);
    if (!number) return std::move(number.error());
    slot.grant = *number;
  }
  std::sort(slot.ids.begin(), slot.ids.end());
  return slot;
}

Result<void> SlotTable::add(Slot slot) {
  if (slots_.size() >= kMaxSlots) {
    return exhausted(
        fmt::format("{} containers with shares of cards are known on this node, the most there may be", kMaxSlots));
  }
  last_sequence_ = std::max(last_sequence_, slot.sequence);
  const uint64_t id = slot.id;
  slots_.insert_or_assign(id, std::move(slot));
  return {};
}

void SlotTable::remove(uint64_t id) {
  slots_.erase(id);
}

Slot* SlotTable::find(uint64_t id) {
  auto found = slots_.find(id);
  return found == slots_.end() ? nullptr : &found->second;
}

std::vector<uint64_t> SlotTable::with_ids(const std::string& resource, const std::vector<std::string>& ids,
                                          const std::string& pod_uid, bool sure) const {
  std::vector<const Slot*> found;
  for (const auto& [id, slot] : slots_) {
    if (slot.owned() && slot.owner.pod_uid != pod_uid && (slot.sure || !sure)) continue;
    if (slot.resource == resource && slot.ids == ids) found.push_back(&slot);
  }
  std::sort(found.begin(), found.end(), [](const Slot* a, const Slot* b) { return a->sequence < b->sequence; });
  std::vector<uint64_t> out;
  for (const Slot* slot : found) out.push_back(slot->id);
  return out;
}

size_t SlotTable::overlapping(const std::string& resource, const std::vector<std::string>& ids) const {
  size_t count = 0;
  for (const auto& [id, slot] : slots_) {
    if (slot.resource != resource) continue;
    const bool shared = std::any_of(slot.ids.begin(), slot.ids.end(), [&](const std::string& one) {
      return std::binary_search(ids.begin(), ids.end(), one);
    });
    count += shared ? 1 : 0;
  }
  return count;
}

std::vector<const Slot*> SlotTable::in_order(const std::string& resource) const {
  std::vector<const Slot*> out;
  for (const auto& [id, slot] : slots_) {
    if (slot.resource == resource) out.push_back(&slot);
  }
  std::sort(out.begin(), out.end(), [](const Slot* a, const Slot* b) { return a->sequence < b->sequence; });
  return out;
}

std::vector<uint64_t> SlotTable::of_pod(const std::string& pod_uid) const {
  std::vector<uint64_t> out;
  for (const auto& [id, slot] : slots_) {
    if (slot.owner.pod_uid == pod_uid) out.push_back(id);
  }
  return out;
}

}  // namespace sluice::node
