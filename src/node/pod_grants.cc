#include "node/pod_grants.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "agent/grant_pages.h"
#include "base/files.h"
#include "base/log.h"
#include "node/offer.h"

namespace sluice::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kGuessPatience{1'000};
constexpr std::chrono::milliseconds kGuessPoll{10};
constexpr size_t kMaxSlotBytes = 1u << 20;
constexpr int64_t kOrphanSeconds = 120;
constexpr auto kAllocationPoll = std::chrono::milliseconds(100);

std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> names;
  DIR* stream = ::opendir(directory.c_str());
  if (stream == nullptr) return names;
  while (const dirent* entry = ::readdir(stream)) {
    if (entry->d_name[0] != '.' && names.size() < 2 * kMaxSlots) names.emplace_back(entry->d_name);
  }
  ::closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

char letter_of(const std::string& resource) {
  return resource == core::kResourceMemory ? kMemoryLetter : resource == core::kResourceCore ? kCoreLetter : '\0';
}

uint64_t elapsed_ns(Clock::time_point since) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since).count());
}

}  // namespace

PodGrants::PodGrants(PodGrantsOptions options, agent::Node& node, LocalPods& pods, PodRecords& records,
                     std::optional<kube::Verifier> verifier, Events* events)
    : options_(std::move(options)),
      node_(node),
      pods_(pods),
      records_(records),
      verifier_(std::move(verifier)),
      events_(events) {}

uint64_t PodGrants::random_slot() {
  uint64_t id = 0;
  while (id == 0) {
    if (::getrandom(&id, sizeof(id), 0) != sizeof(id)) id = agent::monotonic_ns();
  }
  return id;
}

std::string PodGrants::slot_path(uint64_t slot) const {
  return fmt::format("{}/slots/{}.json", options_.state_directory, slot_text(slot));
}

Result<void> PodGrants::save(const Slot& slot) {
  return write_file_atomic(slot_path(slot.id), json::to_string(slot.to_json()), 0600);
}

void PodGrants::forget(uint64_t slot) {
  ::unlink(fmt::format("{}/{}", options_.cdi_directory, cdi_file_name(slot_text(slot))).c_str());
  ::unlink(slot_path(slot).c_str());
  slots_.remove(slot);
}

Result<void> PodGrants::restore() {
  if (Result<void> made = make_directories(options_.state_directory + "/slots"); !made) return made;
  if (Result<void> made = make_directories(options_.cdi_directory); !made) return made;
  std::lock_guard guard(mutex_);
  for (const std::string& name : files_in(options_.state_directory + "/slots")) {
    const std::string path = fmt::format("{}/slots/{}", options_.state_directory, name);
    if (!name.ends_with(".json")) {
      ::unlink(path.c_str());  // half-written by an agent that was killed
      continue;
    }
    Result<std::string> text = read_file(path, kMaxSlotBytes);
    Result<json::Value> value = text ? json::parse(*text) : Result<json::Value>(std::move(text.error()));
    Result<Slot> slot = value && value->is_object()
                            ? Slot::from_json(value->get_object())
                            : Result<Slot>(value ? invalid("expected an object") : std::move(value.error()));
    if (!slot) {
      log::error("a slot's record cannot be understood and is set aside",
                 {{"path", path}, {"reason", slot.error().message}});
      ::rename(path.c_str(), (path + ".bad").c_str());
      continue;
    }
    if (Result<void> added = slots_.add(std::move(*slot)); !added) return added;
  }
  // CDI specs lie on a file system that a reboot clears; specs without a slot are of pods that went meanwhile.
  for (const std::string& name : files_in(options_.cdi_directory)) {
    const std::string slot = slot_of_cdi_file(name);
    Result<uint64_t> id = agent::parse_grant_id(slot);
    if (!slot.empty() && id && slots_.find(*id) == nullptr)
      ::unlink(fmt::format("{}/{}", options_.cdi_directory, name).c_str());
  }
  for (const auto& [id, slot] : slots_.all()) {
    const std::string path = fmt::format("{}/{}", options_.cdi_directory, cdi_file_name(slot_text(id)));
    if (letter_of(slot.resource) == kCoreLetter || ::access(path.c_str(), F_OK) == 0) continue;
    if (Result<void> written = write_out(slot, nullptr, 0); !written)
      log::error("a CDI spec cannot be written", {{"reason", written.error().message}});
  }
  log::info("slots of containers found", {{"slots", slots_.all().size()}});
  return {};
}

void PodGrants::set_verifier(std::optional<kube::Verifier> verifier) {
  std::lock_guard guard(mutex_);
  verifier_ = std::move(verifier);
}

Result<ContainerEdits> PodGrants::edits_for(const Slot& slot, const agent::GrantAnswer* answer, int64_t pod_units,
                                            std::vector<std::string> more_nodes) {
  Result<Driver> driver = find_driver(options_.driver_root);
  if (!driver) return std::move(driver.error());
  Delivery delivery;
  delivery.slot = slot_text(slot.id);
  const std::string grant = slot_text(slot.grant == 0 ? slot.id : slot.grant);
  delivery.grant_directory = fmt::format("{}/grants/{}/grant", options_.run_directory, grant);
  delivery.usage_file = fmt::format("{}/grants/{}/usage.d/usage", options_.run_directory, grant);
  delivery.libraries = slot.libraries.empty() ? options_.libraries : slot.libraries;
  delivery.pod_units = pod_units;
  delivery.more_nodes = std::move(more_nodes);
  if (answer != nullptr) {
    delivery.guest = answer->isolate;
    for (const agent::GrantCardAnswer& card : answer->cards)
      delivery.cards.push_back(
          {static_cast<int32_t>(card.index), card.uuid, card.card_units, card.units, card.device_node});
  }
  return plan_edits(delivery, *driver);
}

Result<void> PodGrants::write_out(const Slot& slot, const agent::GrantAnswer* answer, int64_t pod_units) {
  if (options_.delivery == DeliveryKind::kEnv) return {};  // the kubelet has the answer
  Result<ContainerEdits> edits = edits_for(slot, answer, pod_units);
  if (!edits) return std::move(edits.error());
  const std::string text = slot_text(slot.id);
  const std::string path = fmt::format("{}/{}", options_.cdi_directory, cdi_file_name(text));
  const std::string spec = cdi_spec(text, *edits);
  if (Result<std::string> there = read_file(path, 1 << 20); there && *there == spec) return {};
  return write_file_atomic(path, spec, 0644);
}

Result<ContainerAnswer> PodGrants::allocate(const std::string& resource, const std::vector<std::string>& ids) {
  const auto started = Clock::now();
  ++open_allocates_;
  ++counters_.allocate_calls;
  struct Closing {
    PodGrants& grants;
    Clock::time_point started;
    ~Closing() {
      grants.last_allocate_ms_ =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
      --grants.open_allocates_;
      grants.counters_.allocate_ns += elapsed_ns(started);
    }
  } closing{*this, started};

  if (ids.empty()) return invalid(fmt::format("{}: an allocation without device ids", resource));
  Slot slot;
  slot.resource = resource;
  slot.ids = ids;
  std::sort(slot.ids.begin(), slot.ids.end());
  if (const char letter = letter_of(resource); letter != '\0') {
    for (const std::string& id : ids) {
      if (Result<int64_t> number = id_number(letter, id); !number) return std::move(number.error());
    }
  }
  slot.id = random_slot();
  slot.made_unix = static_cast<int64_t>(std::time(nullptr));
  ContainerAnswer answer;
  std::unique_lock guard(mutex_);
  if (letter_of(resource) != kCoreLetter) {
    if (options_.delivery == DeliveryKind::kCdi) {
      answer.cdi_devices.push_back(cdi_device(slot_text(slot.id)));
    } else {
      slot.libraries = options_.libraries;
      Result<ContainerAnswer> guessed = answer_by_guess(slot);
      // The kubelet may be ahead of our watch: a moment for the pod to come, since nothing can be added afterwards.
      const auto end = Clock::now() + kGuessPatience;
      while (guessed && slot.guess.pod_uid.empty() && resource != core::kResourceWholeCards && Clock::now() < end) {
        guard.unlock();
        std::this_thread::sleep_for(kGuessPoll);
        guard.lock();
        guessed = answer_by_guess(slot);
      }
      if (!guessed) return guessed;
      answer = std::move(*guessed);
    }
  }
  slot.sequence = slots_.next_sequence();
  // From here on nothing fails the pod: what cannot be written now is an error of the container's start, which the
  // kubelet tries again.
  Result<void> kept = slots_.add(slot);
  if (kept) kept = save(slot);
  if (kept && letter_of(resource) != kCoreLetter) kept = write_out(slot, nullptr, 0);
  if (!kept) {
    log::error("a slot cannot be written down", {{"reason", kept.error().message}});
    if (events_ != nullptr) events_->node(true, "SluiceSlotNotKept", kept.error().message);
  }
  return answer;
}

Result<void> PodGrants::pre_start(const std::string& resource, const std::vector<std::string>& ids) {
  const auto started = Clock::now();
  ++counters_.pre_start_calls;
  OwnerQuestion question{resource, ids};
  std::sort(question.ids.begin(), question.ids.end());
  Result<Owner> owner = owner_of(question);
  Result<void> done;
  if (owner)
    done = fill(question, *owner);
  else
    done = std::move(owner.error());
  const uint64_t took_ns = elapsed_ns(started);
  counters_.pre_start_ns += took_ns;
  for (uint64_t longest = counters_.pre_start_longest_ns;
       took_ns > longest && !counters_.pre_start_longest_ns.compare_exchange_weak(longest, took_ns);) {
  }
  if (!done) {
    ++counters_.pre_start_errors;
    log::warning("a container does not start yet", {{"resource", resource}, {"reason", done.error().message}});
  }
  return done;
}

void PodGrants::complain(const LocalPod& pod, const std::string& reason, const std::string& text) {
  if (events_ != nullptr) events_->pod(pod.pod.name_space, pod.pod.name, pod.pod.uid, true, reason, text);
}

void PodGrants::sweep() {
  if (!pods_.listed()) return;
  std::set<uint64_t> ended;
  {
    std::lock_guard guard(mutex_);
    std::vector<uint64_t> gone;
    std::set<uint64_t> alive;
    for (const auto& [id, slot] : slots_.all()) {
      if (!slot.owned()) continue;
      const LocalPodPtr pod = pods_.find(slot.owner.pod_uid);
      if (pod != nullptr && !pod->pod.terminal()) {
        if (slot.grant != 0) alive.insert(slot.grant);
        continue;
      }
      gone.push_back(id);
      if (slot.grant != 0) ended.insert(slot.grant);
    }
    for (uint64_t id : gone) forget(id);
    std::erase_if(known_, [&](const auto& entry) {
      const LocalPodPtr pod = pods_.find(entry.first);
      return pod == nullptr || pod->pod.terminal();
    });
    // Grants that no slot names: an agent ended between the two.
    for (const agent::GrantRecord& record : node_.pod_records()) {
      const LocalPodPtr pod = pods_.find(record.pod_uid);
      if (pod == nullptr || pod->pod.terminal()) ended.insert(record.id);
    }
    for (uint64_t id : alive) ended.erase(id);
    drop_orphans();
  }
  for (uint64_t grant : ended) node_.end_pod_grant(grant);
}

// Slots of pods that the kubelet turned away after Allocate: nobody tells us. One that is old enough, whose ids no live
// pod's record shows and that no unstarted container can be waiting for, is nobody's.
void PodGrants::drop_orphans() {
  const int64_t now = static_cast<int64_t>(std::time(nullptr));
  std::vector<uint64_t> old;
  for (const auto& [id, slot] : slots_.all()) {
    if (!slot.owned() && now - slot.made_unix >= kOrphanSeconds) old.push_back(id);
  }
  if (old.empty()) return;
  for (const LocalPodPtr& pod : pods_.all()) {
    if (pod->pod.terminal() || pod->kind() == PodKind::kNone) continue;
    const std::vector<uint64_t> own = slots_.of_pod(pod->pod.uid);
    // Each container that asks has its slot: nothing of this pod is among the old ones.
    size_t memory_slots = 0;
    for (uint64_t id : own) memory_slots += letter_of(slots_.find(id)->resource) != kCoreLetter ? 1 : 0;
    if (memory_slots >= pod->request.shares.size()) continue;
    auto known = known_.find(pod->pod.uid);
    const bool init_open = std::any_of(pod->request.shares.begin(), pod->request.shares.end(),
                                       [](const auto& share) { return share.role != core::ContainerRole::kMain; });
    if (known == known_.end() || !known->second.complete || init_open) return;
    for (const RecordedContainer& container : known->second.record.containers) {
      for (const auto& [resource, ids] : container.ids)
        std::erase_if(old, [&, &names = resource, &held = ids](uint64_t id) {
          const Slot& slot = *slots_.find(id);
          return slot.resource == names && std::includes(held.begin(), held.end(), slot.ids.begin(), slot.ids.end());
        });
    }
  }
  for (uint64_t id : old) {
    log::info("a slot that nobody came for is dropped", {{"slot", slot_text(id)}});
    forget(id);
  }
}

std::set<int64_t> PodGrants::held(const std::string& resource, char letter) {
  std::lock_guard guard(mutex_);
  std::set<int64_t> numbers;
  for (const auto& [id, slot] : slots_.all()) {
    if (slot.resource != resource) continue;
    for (const std::string& text : slot.ids) {
      if (Result<int64_t> number = id_number(letter, text); number) numbers.insert(*number);
    }
  }
  return numbers;
}

std::set<std::string> PodGrants::held_texts(const std::string& resource) {
  std::lock_guard guard(mutex_);
  std::set<std::string> texts;
  for (const auto& [id, slot] : slots_.all()) {
    if (slot.resource == resource) texts.insert(slot.ids.begin(), slot.ids.end());
  }
  return texts;
}

std::set<std::string> PodGrants::libraries_in_use() {
  std::lock_guard guard(mutex_);
  std::set<std::string> folders{options_.libraries};
  for (const auto& [id, slot] : slots_.all()) {
    if (!slot.libraries.empty()) folders.insert(slot.libraries);
  }
  return folders;
}

std::vector<ContainerGrant> PodGrants::list() {
  std::map<uint64_t, ContainerName> owners;
  {
    std::lock_guard guard(mutex_);
    for (const auto& [id, slot] : slots_.all()) {
      if (slot.owned() && slot.grant != 0) owners[slot.grant] = slot.owner;
    }
  }
  std::map<std::string, int32_t> indexes;
  for (const agent::CardFacts& card : node_.card_facts()) indexes[card.info.uuid] = card.info.index;
  std::vector<ContainerGrant> out;
  for (const agent::GrantRecord& record : node_.pod_records()) {
    auto owner = owners.find(record.id);
    if (owner == owners.end()) continue;
    const ContainerName& name = owner->second;
    ContainerGrant grant{name.name_space,
                         name.pod,
                         name.pod_uid,
                         name.container,
                         "",
                         agent::grant_id_text(record.id),
                         record.kind == core::Kind::kWhole,
                         {},
                         ""};
    if (const LocalPodPtr pod = pods_.find(name.pod_uid); pod != nullptr) {
      if (auto state = pod->states.find(name.container); state != pod->states.end())
        grant.container_id = state->second.container_id;
    }
    for (const agent::RecordShare& share : record.shares)
      grant.cards.push_back({indexes.contains(share.card_uuid) ? indexes[share.card_uuid] : -1, share.card_uuid,
                             share.units, share.memory_mib,
                             record.kind == core::Kind::kMemoryCore ? share.core_milli / 10 : 0});
    if (record.switched_off)
      grant.problem = "its pod has switched isolation off (CGPU_DISABLE), which the agent allows";
    else if (!record.enforced)
      grant.problem = "the node's mode is share: the program limits itself";
    out.push_back(std::move(grant));
  }
  return out;
}

}  // namespace sluice::node
