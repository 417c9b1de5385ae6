// What the deciding thread does, once a second and after every change: which mode is in force, what is offered, what
// stands on the node.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "base/files.h"
#include "base/log.h"
#include "node/kubernetes_agent.h"
#include "node/offer.h"

namespace sluice::node {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char kWholeMarker[] = "whole-cards";  // in the state directory: nvidia.com/gpu was ours before

}  // namespace

void KubernetesAgent::decide_mode(const NodeFacts& facts) {
  std::vector<PresentPod> present;
  for (const LocalPodPtr& pod : pods_->all()) {
    if (!pod->pod.terminal()) present.push_back({pod->pod.full_name(), pod->kind()});
  }
  const core::NodeMode before = mode_.mode;
  ModeState next = next_mode(mode_.mode, wanted_mode(facts.labels), present);
  if (next.mode != before) {
    const std::string text = fmt::format("mode {} instead of {}", mode_word(next.mode), mode_word(before));
    if (Result<void> kept = write_file_atomic(options_.state_directory + "/mode", mode_word(next.mode)); !kept) {
      log::error("the mode cannot be written down", {{"reason", kept.error().message}});
      return;
    }
    log::info(text);
    events_->node(false, "SluiceModeChanged", text);
  }
  std::string waiting;
  for (size_t i = 0; i < next.waiting_for.size() && i < 5; ++i) waiting += (i == 0 ? "" : ", ") + next.waiting_for[i];
  if (!waiting.empty() && waiting != said_waiting_) {
    events_->node(true, "SluiceModeWaiting",
                  fmt::format("mode {} stays in force and nothing new is offered until {} have gone; then {}",
                              mode_word(next.mode), waiting, next.wanted.word));
  }
  said_waiting_ = waiting;
  mode_ = std::move(next);
  grants_->set_mode(mode_.mode);
  mode_shown_ = mode_.mode;
}

// nvidia.com/gpu belongs to whoever had it first: where another plugin offers it, it is left alone.
bool KubernetesAgent::whole_cards_free(const NodeFacts& facts) {
  if (!options_.whole_cards) return false;
  if (plugins_->contested(core::kResourceWholeCards)) foreign_plugin_ = "another plugin registers it again and again";
  const std::string marker = options_.state_directory + "/" + kWholeMarker;
  const bool was_ours = ::access(marker.c_str(), F_OK) == 0;
  if (foreign_plugin_.empty() && !was_ours && facts.whole_cards_allocatable > 0)
    foreign_plugin_ = fmt::format("the node offers {} of it already", facts.whole_cards_allocatable);
  if (!foreign_plugin_.empty()) {
    events_->node(true, "SluiceWholeCardsTaken",
                  fmt::format("{} is left to another device plugin: {}", core::kResourceWholeCards, foreign_plugin_));
    return false;
  }
  if (!was_ours) {
    if (Result<void> kept = write_file_atomic(marker, ""); !kept) return false;
  }
  return true;
}

DeviceLists KubernetesAgent::offers(const std::vector<agent::CardFacts>& cards) {
  DeviceLists wanted;
  offer_problem_.clear();
  if (!is_sharing(mode_.mode)) {
    memory_ids_ = core_ids_ = 0;  // their plugins are gone, a new one may list what it likes
    return wanted;
  }
  Supply memory, compute;
  const bool needs_enforcing = mode_.mode != core::NodeMode::kShare;
  for (const agent::CardFacts& card : cards) {
    if (Result<void> fine = check_unit_count(card.units, static_cast<int64_t>(cards.size()), options_.memory_unit_mib);
        !fine) {
      offer_problem_ = fine.error().message;
      continue;
    }
    memory.capacity += card.units;
    compute.capacity += kCorePerCard;
    if (card.usable && (card.problem.empty() || !needs_enforcing)) continue;
    memory.blocked += card.free_units;
    compute.blocked += card.free_core_percent;
  }
  memory.closed = compute.closed = !mode_.settled() || !offer_problem_.empty();
  const std::vector<bool> units = plan_health(memory, memory_ids_, grants_->held(core::kResourceMemory, kMemoryLetter));
  memory_ids_ = units.size();
  wanted[core::kResourceMemory] = to_devices(kMemoryLetter, units);
  if (mode_.mode == core::NodeMode::kCoreMemory) {
    const std::vector<bool> percents = plan_health(compute, core_ids_, grants_->held(core::kResourceCore, kCoreLetter));
    core_ids_ = percents.size();
    wanted[core::kResourceCore] = to_devices(kCoreLetter, percents);
  } else {
    core_ids_ = 0;
  }
  return wanted;
}

// Keys are changed by changing files (a mounted secret): they are read again now and then. What cannot be read leaves
// the keys as they are.
void KubernetesAgent::renew_keys() {
  constexpr auto kEvery = std::chrono::seconds(20);
  if (Clock::now() - keys_read_at_ < kEvery) return;
  keys_read_at_ = Clock::now();
  Result<std::optional<kube::Verifier>> keys = load_keys(options_.allocation_keys);
  if (keys)
    grants_->set_verifier(std::move(*keys));
  else
    log::warning("the scheduler's public keys cannot be read again", {{"reason", keys.error().message}});
}

// What an administrator sets on a node by label, besides the mode: it holds at once, for pods that run too.
void KubernetesAgent::take_settings(const std::map<std::string, std::string>& labels) {
  if (auto most = labels.find(kube::kLabelMaxPods); most != labels.end()) {
    const int64_t number = std::strtol(most->second.c_str(), nullptr, 10);
    if (number >= 0 && number <= 10'000) node_->set_max_grants_per_card(static_cast<int32_t>(number));
  }
  auto label = labels.find(kube::kLabelPolicy);
  const std::string word = label == labels.end() ? "" : label->second;
  if (word == policy_word_) return;
  // Kept, so that an agent that starts anew does not go back and forth until it has seen the label.
  if (Result<void> kept = write_file_atomic(options_.state_directory + "/" + kPolicyFile, word); !kept)
    log::warning("the node's policy cannot be written down", {{"reason", kept.error().message}});
  use_policy(word);
}

void KubernetesAgent::use_policy(const std::string& word) {
  policy_word_ = word;
  std::optional<uint32_t> policy = options_.policy;
  if (!word.empty()) {
    Result<uint32_t> wanted = agent::parse_policy_name(word);
    if (wanted)
      policy = *wanted;
    else
      events_->node(true, "SluiceBadPolicy",
                    fmt::format("label {}: {}; the node's cards go on as without it", kube::kLabelPolicy,
                                wanted.error().message));
  }
  node_->set_default_policy(policy);
  log::info("the node's compute policy",
            {{"label", word}, {"policy", policy ? agent::policy_name(*policy) : "by mode"}});
}

void KubernetesAgent::decide() {
  renew_keys();
  std::optional<NodeFacts> facts;
  {
    std::lock_guard guard(mutex_);
    facts = facts_;
  }
  if (!facts || !pods_->listed()) {
    // Just started, and the API server has not answered. The kubelet refuses pods whose resources are not back, so what
    // was offered before is offered again in the mode that was in force; what it means for pods is found out later.
    if (is_sharing(mode_.mode)) plugins_->want(offers(node_->card_facts()), true);
    return;
  }
  if (!leaving_) decide_mode(*facts);
  grants_->sweep();
  take_settings(facts->labels);
  const std::vector<agent::CardFacts> cards = node_->card_facts();
  DeviceLists wanted = offers(cards);
  if (whole_cards_free(*facts) && (is_sharing(mode_.mode) || mode_.mode == core::NodeMode::kDefault)) {
    std::vector<OfferedDevice>& whole = wanted[core::kResourceWholeCards];
    if (mode_.mode == core::NodeMode::kDefault) {
      for (const agent::CardFacts& card : cards) {
        if (std::find(whole_ids_.begin(), whole_ids_.end(), card.info.uuid) == whole_ids_.end())
          whole_ids_.push_back(card.info.uuid);
      }
      const std::set<std::string> held = grants_->held_texts(core::kResourceWholeCards);
      for (const std::string& uuid : whole_ids_) {
        auto card = std::find_if(cards.begin(), cards.end(), [&](const auto& one) { return one.info.uuid == uuid; });
        const bool free = mode_.settled() && card != cards.end() && card->usable;
        whole.push_back({uuid, held.contains(uuid) || free});
      }
    } else {
      whole_ids_.clear();
    }
  }
  const bool offers_nothing = wanted.empty();
  plugins_->want(std::move(wanted));
  registrations_ = plugins_->registrations();
  ready_ = pods_->listed() && (offers_nothing || plugins_->complete());
  write_face(*facts, cards);
  tell_agent_events();
}

// Why limits may not hold on this node; the first reason counts.
void KubernetesAgent::find_enforce_problem(const NodeFacts& facts, ReportInput& input) {
  auto say = [&input](const char* reason, std::string text) {
    if (!input.enforce_problem.empty()) return;
    input.enforce_reason = reason;
    input.enforce_problem = std::move(text);
  };
  if (options_.delivery == DeliveryKind::kCdi) {
    if (Result<void> fine = check_cdi(facts.kubelet_version, facts.runtime); !fine) say("CdiOff", fine.error().message);
    for (const LocalPodPtr& pod : pods_->all()) {
      for (const auto& [name, state] : pod->states) {
        if (!state.cdi_refused) continue;
        say("CdiOff",
            fmt::format("the container runtime did not take the CDI device of container {} of {}: it does not "
                        "read specs from {} (containerd: cdi_spec_dirs); add that folder or start the agent "
                        "with --delivery env",
                        name, pod->pod.full_name(), options_.cdi_directory));
      }
    }
    std::lock_guard guard(observe_mutex_);
    const auto bare = std::find_if(mounted_.begin(), mounted_.end(), [](const auto& entry) { return !entry.second; });
    if (bare != mounted_.end()) {
      say("CdiOff", fmt::format("container {} runs without its grant: the container runtime does not apply CDI specs "
                                "from {}; switch CDI on (containerd: enable_cdi = true) or start the agent with "
                                "--delivery env",
                                bare->first.substr(0, 12), options_.cdi_directory));
    }
  }
  if (!is_sharing(mode_.mode)) return;
  const bool others = !foreign_plugin_.empty() || !options_.whole_cards;
  if (others && facts.whole_cards_allocatable > 0) {
    say("OtherDevicePlugin",
        fmt::format("another device plugin offers {} {} on this node: pods that get one use the same cards outside "
                    "Sluice's grants; keep that plugin off nodes that share cards",
                    facts.whole_cards_allocatable, core::kResourceWholeCards));
  }
  std::vector<std::string> uuids;
  for (const agent::CardFacts& card : input.cards) uuids.push_back(card.info.uuid);
  neighbours_->look(uuids);
  if (const std::optional<Condition>& claim = neighbours_->claim(); claim) say(claim->reason.c_str(), claim->message);
}

void KubernetesAgent::write_face(const NodeFacts& facts, const std::vector<agent::CardFacts>& cards) {
  if (Clock::now() < next_patch_ && !leaving_) return;
  ReportInput input;
  input.mode = mode_;
  input.cards = cards;
  input.offering = plugins_->complete() && !leaving_;
  input.offer_problem = offer_problem_;
  find_enforce_problem(facts, input);
  const NodePatches patches = plan_patches(facts.face, wanted_face(input),
                                           fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  if (!patches.object && !patches.status) {
    patch_backoff_ = std::chrono::milliseconds(0);
    return;
  }
  const bool done =
      (!patches.object || patch("", *patches.object)) && (!patches.status || patch("status", *patches.status));
  // What was written comes back by the watch; until then it is not written again.
  constexpr auto kAfterPatch = std::chrono::milliseconds(500);
  constexpr auto kLongest = std::chrono::milliseconds(30'000);
  patch_backoff_ = done ? std::chrono::milliseconds(0) : std::clamp(patch_backoff_ * 2, kAfterPatch * 2, kLongest);
  next_patch_ = Clock::now() + (done ? kAfterPatch : patch_backoff_);
}

bool KubernetesAgent::patch(const std::string& subresource, const json::Object& body) {
  const kube::ApiAnswer answer =
      api_->patch(kube::node_path(options_.node_name, subresource), kube::PatchKind::kStrategicMerge, body);
  // The answer's object is not taken over: the watch may have shown a newer one meanwhile.
  if (!answer.ok()) log::warning("the node object cannot be patched", {{"reason", answer.to_error("node").message}});
  return answer.ok();
}

// What the watchdog of cards and pages has noticed (strangers are told by their own part).
void KubernetesAgent::tell_agent_events() {
  const agent::Peer self{::getpid(), static_cast<int64_t>(::geteuid())};
  for (const agent::Event& event : node_->list(self).events) {
    if (event.unix_ms <= last_event_ms_) continue;
    last_event_ms_ = event.unix_ms;
    if (event.what == "card-lost") events_->node(true, "SluiceCardLost", event.text);
    if (event.what == "card-back") events_->node(false, "SluiceCardBack", event.text);
    if (event.what == "tampering") events_->node(true, "SluiceTampering", event.text);
    if (event.what == "grant-lost") events_->node(true, "SluiceGrantLost", event.text);
  }
}

}  // namespace sluice::node
