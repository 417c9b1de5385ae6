// Slots: what Allocate hands out. A slot is a random number that names a CDI device and, once it is known whose it is,
// the grant. Allocate does not know the pod, so a slot starts with nothing but the device ids it was made for.
//
// Two pods may hold slots with the same ids (an old pod's are handed on before we hear of its end, and a fault of
// kubelets up to 1.37 hands ids in flight out twice), and the containers of one pod too (ids of init containers are
// used again by later ones), so a slot is known by its number, never by its ids. Pure: a table and its JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::node {

// One container of one pod. The UID tells pods of one name apart.
struct ContainerName {
  std::string pod_uid, name_space, pod, container;
  bool operator==(const ContainerName&) const = default;
  std::string text() const { return name_space + "/" + pod + "/" + container; }
};

struct Slot {
  uint64_t id = 0;
  uint64_t sequence = 0;  // order of the Allocate calls
  std::string resource;
  std::vector<std::string> ids;  // sorted
  int64_t made_unix = 0;         // seconds
  ContainerName owner;           // pod_uid empty: not known yet
  uint64_t grant = 0;            // 0: none yet. Slots of one pod with the same ids share one
  ContainerName guess;           // env delivery: whose the answer was made for, before anybody knew
  std::string libraries;         // folder of the guest libraries that its answer names (env delivery)
  bool sure = true;              // the owner is the kubelet's word; false: found by elimination
  std::string allocation = "";   // the pod's, as it stood when its signature was found good; empty: not yet
  bool owned() const { return !owner.pod_uid.empty(); }
  json::Object to_json() const;
  static Result<Slot> from_json(const json::Object& object);
  bool operator==(const Slot&) const = default;
};

inline constexpr size_t kMaxSlots = 4096;  // a kubelet starts at most some hundred pods

class SlotTable {
 public:
  // kExhausted: full.
  Result<void> add(Slot slot);
  void remove(uint64_t id);
  Slot* find(uint64_t id);
  const std::map<uint64_t, Slot>& all() const { return slots_; }
  uint64_t next_sequence() const { return last_sequence_ + 1; }

  // Slots with exactly these ids that are nobody's or this pod's, oldest call first; who is `sure` gets those too that
  // another pod has without being sure.
  std::vector<uint64_t> with_ids(const std::string& resource, const std::vector<std::string>& ids,
                                 const std::string& pod_uid, bool sure = true) const;
  // How many slots share an id with these.
  size_t overlapping(const std::string& resource, const std::vector<std::string>& ids) const;
  // All of a resource in the order of the Allocate calls.
  std::vector<const Slot*> in_order(const std::string& resource) const;
  std::vector<uint64_t> of_pod(const std::string& pod_uid) const;

 private:
  std::map<uint64_t, Slot> slots_;
  uint64_t last_sequence_ = 0;
};

std::string slot_text(uint64_t id);  // 16 hex digits

}  // namespace sluice::node
