#include "cli/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "page/grant.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kHeartbeatOldNs = 500'000'000;  // ten are written per second
constexpr uint64_t kMib = 1 << 20;
constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

constexpr const char* kMendPage = "start the container again; its grant has to come from this node's agent";
constexpr const char* kMendLibrary =
    "take what stands before it out of LD_LIBRARY_PATH, LD_PRELOAD and the image; the driver belongs to the node";

Link broken(const std::string& name, const std::string& found, const std::string& mend) {
  return {name, LinkState::kBroken, found, mend};
}

std::vector<Link> judge_grant(const GrantEvidence& grant) {
  std::vector<Link> links;
  if (!grant.problem.empty()) return {broken("grant", grant.problem, kMendPage)};
  links.push_back(
      {"grant", LinkState::kHolds,
       fmt::format("'{}', {} card{}", grant.container, grant.cards.size(), grant.cards.size() == 1 ? "" : "s"), ""});
  if (grant.writable) {
    links.push_back(broken("grant: read-only", fmt::format("{} can be written from in here", page::kGrantPath),
                           "run the container without the right to mount (CAP_SYS_ADMIN)"));
  } else {
    links.push_back({"grant: read-only", LinkState::kHolds, "it cannot be written from in here", ""});
  }
  if (!grant.usage_problem.empty()) {
    links.push_back(broken("usage file", grant.usage_problem, kMendPage));
  } else {
    links.push_back({"usage file", LinkState::kHolds, "it belongs to the grant and can be written", ""});
  }
  return links;
}

Link judge_gate(const GrantEvidence& grant) {
  uint64_t oldest = grant.heartbeat_ns;
  for (const GrantedCard& card : grant.cards) {
    if (card.heartbeat_ns != 0) oldest = std::min(oldest, card.heartbeat_ns);
  }
  if (grant.now_ns > oldest + kHeartbeatOldNs) {
    return broken("gate", fmt::format("the agent has not been heard of for {} ms", (grant.now_ns - oldest) / 1'000'000),
                  "start the node's agent again; meanwhile caps hold as averages, and nobody takes turns");
  }
  return {"gate", LinkState::kHolds, "the agent's heartbeat is fresh", ""};
}

Link judge_library(const std::string& name, const LibraryEvidence& library) {
  if (!library.problem.empty())
    return broken(name, library.problem, "see the node's agent; programs cannot use the card at all");
  if (library.others.empty()) return {name, LinkState::kHolds, library.path, ""};
  return broken(
      name,
      fmt::format("{} is loaded by name, but {} can be loaded too", library.path, fmt::join(library.others, ", ")),
      kMendLibrary);
}

std::string mib(uint64_t bytes) {
  return fmt::format("{} MiB", bytes / kMib);
}

Link judge_view(const std::string& name, const GrantedCard& granted, const std::string& what, uint64_t total) {
  const std::string link = fmt::format("{}: {}", name, what);
  if (granted.memory_limit_bytes == 0)
    return {link, LinkState::kNote, "not limited", "a whole card has no limit to hold"};
  if (total == granted.memory_limit_bytes) return {link, LinkState::kHolds, mib(total), ""};
  return broken(link, fmt::format("it shows {}, granted are {}", mib(total), mib(granted.memory_limit_bytes)),
                kMendLibrary);
}

Link judge_refusal(const std::string& name, const GrantedCard& granted, const CardEvidence& card) {
  const std::string link = name + ": over the limit";
  if (granted.memory_limit_bytes == 0)
    return {link, LinkState::kNote, "not limited", "a whole card has no limit to hold"};
  if (card.over_limit_result == 0)
    return broken(link, fmt::format("an allocation over {} was given", mib(granted.memory_limit_bytes)), kMendLibrary);
  if (card.over_limit_result != kOutOfMemory)
    return broken(link, fmt::format("it ended with CUDA error {}, expected 2", card.over_limit_result), kMendLibrary);
  if (!card.refusal_counted)
    return broken(link, "it was refused, but not by Sluice's library: the card itself was full", kMendLibrary);
  if (card.small_result > 0)
    return broken(link, fmt::format("1 MiB below the limit ended with CUDA error {}", card.small_result),
                  "see that the card is not full: an administrator's nvidia-smi on the node shows it");
  return {link, LinkState::kHolds, "refused with out of memory, by the library", ""};
}

Link judge_compute(const std::string& name, const GrantedCard& granted, const CardEvidence& card) {
  const std::string link = name + ": compute";
  if (granted.core_permille == 0) return {link, LinkState::kNote, "not limited", "no compute cap was asked for"};
  if (granted.policy == page::kPolicyNative)
    return broken(link,
                  fmt::format("{:.3g} % were granted, but the node's policy is native", granted.core_permille / 10.0),
                  "an administrator can set the policy fixed or burst");
  if (!card.launch_tried)
    return {link, LinkState::kNote, "not tried: the memory for a launch is not free", "try again when some is"};
  if (!card.launch_counted)
    return broken(link, "work reached the card without being counted at the gate", kMendLibrary);
  return {link, LinkState::kHolds,
          fmt::format("{:.3g} % of the card, work passes the gate", granted.core_permille / 10.0), ""};
}

void judge_card(const GrantEvidence& grant, size_t index, const Evidence& evidence, std::vector<Link>& links) {
  const GrantedCard& granted = grant.cards[index];
  const std::string name = fmt::format("card {}", index);
  const auto seen = std::find_if(evidence.cards.begin(), evidence.cards.end(),
                                 [&](const CardEvidence& card) { return card.uuid == granted.uuid; });
  if (evidence.cuda_problem.empty()) {
    if (seen == evidence.cards.end()) {
      links.push_back(
          broken(name, fmt::format("{} is granted, but CUDA does not show it", granted.uuid), kMendLibrary));
    } else if (!seen->problem.empty()) {
      links.push_back(broken(name, seen->problem, "see the card's state on the node"));
    } else {
      links.push_back(judge_view(name, granted, "memory by CUDA", seen->total_bytes));
      links.push_back(seen->registered
                          ? Link{name + ": registered", LinkState::kHolds, "this process holds a slot", ""}
                          : broken(name + ": registered", "this process uses the card without a slot", kMendLibrary));
      links.push_back(judge_refusal(name, granted, *seen));
      links.push_back(judge_compute(name, granted, *seen));
    }
  }
  if (!evidence.nvml_problem.empty()) return;
  const auto shown = std::find_if(evidence.nvml_cards.begin(), evidence.nvml_cards.end(),
                                  [&](const NvmlCard& card) { return card.uuid == granted.uuid; });
  if (shown == evidence.nvml_cards.end())
    links.push_back(broken(name, fmt::format("{} is granted, but NVML does not show it", granted.uuid), kMendLibrary));
  else
    links.push_back(judge_view(name, granted, "memory by NVML", shown->total_bytes));
}

}  // namespace

std::vector<Link> judge(const Evidence& evidence) {
  std::vector<Link> links = judge_grant(evidence.grant);
  if (links.front().state == LinkState::kBroken) return links;
  links.push_back(judge_gate(evidence.grant));
  links.push_back(judge_library("libcuda.so.1", evidence.cuda));
  links.push_back(judge_library("libnvidia-ml.so.1", evidence.nvml));
  if (!evidence.cuda_problem.empty() && evidence.cuda.problem.empty())
    links.push_back(broken("CUDA", evidence.cuda_problem, "sluice doctor on the node names the broken link"));
  if (!evidence.nvml_problem.empty() && evidence.nvml.problem.empty())
    links.push_back(broken("NVML", evidence.nvml_problem, "sluice doctor on the node names the broken link"));
  for (size_t i = 0; i < evidence.grant.cards.size(); ++i) judge_card(evidence.grant, i, evidence, links);
  const auto foreign = [&](const std::string& uuid) {
    return std::none_of(evidence.grant.cards.begin(), evidence.grant.cards.end(),
                        [&](const GrantedCard& card) { return card.uuid == uuid; });
  };
  for (const CardEvidence& card : evidence.cards) {
    if (foreign(card.uuid))
      links.push_back(
          broken("other cards", fmt::format("CUDA shows {}, which was not granted", card.uuid), kMendLibrary));
  }
  for (const NvmlCard& card : evidence.nvml_cards) {
    if (foreign(card.uuid))
      links.push_back(
          broken("other cards", fmt::format("NVML shows {}, which was not granted", card.uuid), kMendLibrary));
  }
  return links;
}

int verify(const Options& options) {
  const Evidence evidence = gather_evidence();
  if (!evidence.grant.there) {
    return fail("verify", not_found(fmt::format("there is no grant here ({} is missing): this is not the inside of a "
                                                "container with a share of a card, or of a sluice run",
                                                page::kGrantPath)));
  }
  const std::vector<Link> links = judge(evidence);
  const size_t count = count_broken(links);
  if (options.json) {
    fputs(json::to_pretty_string(to_json(links)).c_str(), stdout);
    return count == 0 ? kExitOk : kExitBroken;
  }
  for (const Link& link : links) {
    fmt::print("{:<6}  {}: {}\n", to_string(link.state), link.name, link.found);
    if (link.state == LinkState::kBroken) fmt::print("        mend: {}\n", link.mend);
  }
  fmt::print("\n{}\n", count == 0 ? "the limits are in force" : "the limits are NOT in force");
  return count == 0 ? kExitOk : kExitBroken;
}

}  // namespace sluice::cli
