// The grant page against what this agent has put into it. Containers have it read-only; the agent's own user can write
// the file, and a raised limit there would hold for running programs.
#include <fmt/format.h>

#include <algorithm>

#include "agent/node.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kMib = 1 << 20;

// Puts the word right; names it the first time.
template <typename Word, typename Value>
void mend(Word& word, Value wanted, const char* name, std::string& found) {
  const Value have = word;
  if (have == wanted) return;
  word = wanted;
  if (found.empty()) found = fmt::format("{} was {} and is {} again", name, have, wanted);
}

}  // namespace

void Node::mend_page(Grant& grant) {
  if (grant.fading) return;  // closed, and nobody is left who would read it
  page::GrantHeader& header = grant.pages->header();
  std::string found;
  mend(header.magic, grant.closing ? uint64_t{0} : page::kGrantMagic, "its mark", found);
  mend(header.major, page::kMajor, "its version", found);
  mend(header.bytes, page::grant_bytes(grant.pages->card_count()), "its size", found);
  mend(header.card_count, grant.pages->card_count(), "its number of cards", found);
  mend(header.grant_id, grant.record.id, "its number", found);
  for (uint32_t i = 0; i < grant.cards.size(); ++i) {
    const GrantCard& card = grant.cards[i];
    if (card.unit == nullptr) continue;
    page::GrantCard& page = grant.pages->card(i);
    std::string here;
    const uint64_t limit_mib = page.memory_limit_bytes.load() / kMib;
    const PageLimits wanted = limits_of(grant, card);
    mend(page.memory_limit_bytes, wanted.memory_limit_bytes, "memory", here);
    if (!here.empty()) {
      here =
          fmt::format("the memory limit was {} MiB and is {} MiB again", limit_mib, wanted.memory_limit_bytes / kMib);
    }
    if (std::equal(wanted.uuid.begin(), wanted.uuid.end(), page.uuid) == false) {
      std::copy(wanted.uuid.begin(), wanted.uuid.end(), page.uuid);
      if (here.empty()) here = "it named another card";
    }
    mend(page.index, wanted.index, "the card's index", here);
    mend(page.card_memory_bytes, wanted.card_memory_bytes, "the card's memory", here);
    mend(page.context_estimate_bytes, wanted.context_estimate_bytes, "the charge of a context", here);
    mend(page.policy, wanted.policy, "the policy", here);
    mend(page.weight, wanted.weight, "the weight", here);
    mend(page.flags, wanted.flags, "the priority", here);
    if (!here.empty()) grant_page_changed(grant, i, here);
  }
  if (!found.empty()) grant_page_changed(grant, 0, found);
}

void Node::grant_page_changed(Grant& grant, size_t index, const std::string& what) {
  GrantCard& card = grant.cards[index];
  ++card.tampering;
  grant.pages->card(static_cast<uint32_t>(index)).limits_version.fetch_add(1);
  event("tampering", fmt::format("the page of grant '{}' ({}) was changed by somebody else: {}", grant.record.name,
                                 grant_id_text(grant.record.id), what));
}

// What the turn keeper writes is compared with what it means.
void Node::mend_shares(CardUnit& unit, const std::vector<TurnReport>& reports) {
  for (const TurnReport& report : reports) {
    const auto entry = grants_.find(report.id);
    if (entry == grants_.end() || !entry->second->pages) continue;
    for (size_t i = 0; i < entry->second->cards.size(); ++i) {
      if (entry->second->cards[i].unit != &unit) continue;
      std::string found = report.gate_mended ? "its gate was changed" : "";
      mend(entry->second->pages->card(static_cast<uint32_t>(i)).core_permille, report.permille,
           "compute in 1/1000 of a card", found);
      if (!found.empty()) grant_page_changed(*entry->second, i, found);
    }
  }
}

}  // namespace sluice::agent
