#include "core/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/units.h"

namespace sluice::core {
namespace {

// Text of a manifest, shortened for an error message.
std::string quoted(const std::string& text) {
  constexpr size_t kShown = 40;
  std::string shown;
  for (char c : text.substr(0, kShown)) shown += (c >= 0x20 && c < 0x7f) ? c : '?';
  return fmt::format("'{}{}'", shown, text.size() > kShown ? "..." : "");
}

// Digits only: Kubernetes hands over canonical integers, and suffixes like 10G mean 10,000,000,000 units to it.
std::optional<int64_t> whole_number(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  if (text.empty() || text[0] == '-' || text[0] == '+') return std::nullopt;
  auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || stop != end) return std::nullopt;
  return value;
}

struct Amounts {
  int64_t units = 0;
  int64_t core_percent = 0;
  int64_t whole_cards = 0;
  Kind kind() const {
    if (whole_cards > 0) return Kind::kWhole;
    if (core_percent > 0) return Kind::kMemoryCore;
    return units > 0 ? Kind::kMemory : Kind::kNone;
  }
};

Result<int64_t> amount(const char* rule, const std::optional<std::string>& text, int64_t largest, const char* needs) {
  if (!text) return int64_t{0};
  std::optional<int64_t> value = whole_number(*text);
  if (!value) return invalid(fmt::format("{}: needs {}, have {}", rule, needs, quoted(*text)));
  if (*value > largest) return invalid(fmt::format("{}: needs at most {}, have {}", rule, largest, *value));
  return *value;
}

// The amounts of one container, each checked by itself. "0" counts as not written, as Kubernetes counts it.
Result<Amounts> container_amounts(const ContainerText& container) {
  Amounts amounts;
  Result<int64_t> units =
      amount(kResourceMemory, container.memory_units, kMaxUnits, "a whole number of memory units without a suffix");
  if (!units) return units.error();
  Result<int64_t> percent = amount(kResourceCore, container.core_percent, 100 * kMaxCardsPerNode,
                                   "a whole number of percent, a multiple of 5 and at least 5");
  if (!percent) return percent.error();
  Result<int64_t> whole =
      amount(kResourceWholeCards, container.whole_cards, kMaxCardsPerNode, "a whole number of cards");
  if (!whole) return whole.error();
  amounts = {*units, *percent, *whole};
  if (amounts.core_percent % kCorePercentStep != 0)
    return invalid(fmt::format("{}: needs a multiple of {}, at least {}, have {}; the next one up is {}", kResourceCore,
                               kCorePercentStep, kCorePercentStep, amounts.core_percent,
                               (amounts.core_percent / kCorePercentStep + 1) * kCorePercentStep));
  if (amounts.core_percent > 0 && amounts.units == 0)
    return invalid(fmt::format("{}: needs {} beside it, have none; add the memory that the container may use",
                               kResourceCore, kResourceMemory));
  if (amounts.whole_cards > 0 && amounts.units > 0)
    return invalid(fmt::format("{}: needs to stand alone, have {} beside it; ask for whole cards or for a share",
                               kResourceWholeCards, kResourceMemory));
  return amounts;
}

Result<int32_t> card_count(const std::optional<std::string>& text) {
  if (!text) return int32_t{1};
  std::optional<int64_t> value = whole_number(*text);
  if (!value || *value < 1 || *value > kMaxCardsPerNode)
    return invalid(fmt::format("label {}: needs a whole number from 1 to {}, have {}", kLabelCardCount,
                               kMaxCardsPerNode, quoted(*text)));
  return static_cast<int32_t>(*value);
}

Result<ContainerShare> split(const ContainerText& container, const Amounts& amounts, int64_t cards) {
  if (amounts.units % cards != 0)
    return invalid(fmt::format("{}: needs to divide evenly over {} cards ({}), have {}", kResourceMemory, cards,
                               kLabelCardCount, amounts.units));
  if (amounts.core_percent % (kCorePercentStep * cards) != 0)
    return invalid(fmt::format("{}: needs a multiple of {} for each of {} cards, that is a multiple of {}, have {}",
                               kResourceCore, kCorePercentStep, cards, kCorePercentStep * cards, amounts.core_percent));
  ContainerShare share;
  share.name = container.name;
  share.role = container.role;
  share.units = amounts.units / cards;
  share.core_milli = core_milli_from_percent(static_cast<int32_t>(amounts.core_percent / cards));
  share.whole_cards = static_cast<int32_t>(amounts.whole_cards);
  return share;
}

struct Sum {
  int64_t units = 0;
  int64_t core_milli = 0;
  int64_t whole_cards = 0;
  void add(const ContainerShare& share) {
    units += share.units;
    core_milli += share.core_milli;
    whole_cards += share.whole_cards;
  }
  void raise_to(const Sum& other) {
    units = std::max(units, other.units);
    core_milli = std::max(core_milli, other.core_milli);
    whole_cards = std::max(whole_cards, other.whole_cards);
  }
};

// Kubernetes' rule: sidecars run from their turn on; an init container runs beside the sidecars before it; the main
// containers run beside all sidecars. What has to fit is the largest of these moments, for each resource by itself.
Sum largest_moment(const std::vector<ContainerShare>& shares) {
  Sum sidecars, peak;
  for (const ContainerShare& share : shares) {
    if (share.role == ContainerRole::kSidecar) {
      sidecars.add(share);
      peak.raise_to(sidecars);
    } else if (share.role == ContainerRole::kInit) {
      Sum moment = sidecars;
      moment.add(share);
      peak.raise_to(moment);
    }
  }
  Sum together = sidecars;
  for (const ContainerShare& share : shares)
    if (share.role == ContainerRole::kMain) together.add(share);
  peak.raise_to(together);
  return peak;
}

}  // namespace

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kNone:
      return "no card";
    case Kind::kMemory:
      return "memory only";
    case Kind::kMemoryCore:
      return "memory and compute";
    case Kind::kWhole:
      return "whole cards";
  }
  return "?";
}

Result<PodRequest> parse_pod(const PodText& pod) {
  PodRequest parsed;
  if (static_cast<int64_t>(pod.containers.size()) > kMaxContainersPerPod)
    return invalid(fmt::format("containers: needs at most {}, have {}", kMaxContainersPerPod, pod.containers.size()));
  Kind kind = Kind::kNone;
  std::vector<std::pair<const ContainerText*, Amounts>> asking;
  for (const ContainerText& container : pod.containers) {
    Result<Amounts> amounts = container_amounts(container);
    if (!amounts) return std::move(amounts).error().wrap(fmt::format("container {}", quoted(container.name)));
    if (amounts->kind() == Kind::kNone) continue;
    if (kind != Kind::kNone && amounts->kind() != kind)
      return invalid(fmt::format(
          "containers: needs the same kinds of card resource in all containers that ask, have {} "
          "in container {} and {} in container {}",
          to_string(kind), quoted(asking[0].first->name), to_string(amounts->kind()), quoted(container.name)));
    kind = amounts->kind();
    asking.emplace_back(&container, *amounts);
  }
  if (kind == Kind::kNone) return parsed;
  Result<int32_t> cards = card_count(kind == Kind::kWhole ? std::nullopt : pod.card_count);
  if (!cards) return cards.error();
  for (const auto& [container, amounts] : asking) {
    Result<ContainerShare> share = split(*container, amounts, *cards);
    if (!share) return std::move(share).error().wrap(fmt::format("container {}", quoted(container->name)));
    parsed.shares.push_back(std::move(*share));
  }
  Sum peak = largest_moment(parsed.shares);
  if (peak.units > kMaxUnits)
    return invalid(
        fmt::format("{}: needs at most {} over all containers, have {}", kResourceMemory, kMaxUnits, peak.units));
  if (peak.core_milli > kWholeCoreMilli)
    return invalid(fmt::format("{}: needs at most 100 on each of {} card(s) over all containers, have {}",
                               kResourceCore, *cards, peak.core_milli / 10));
  if (peak.whole_cards > kMaxCardsPerNode)
    return invalid(fmt::format("{}: needs at most {} over all containers, have {}", kResourceWholeCards,
                               kMaxCardsPerNode, peak.whole_cards));
  parsed.total.kind = kind;
  parsed.total.cards = kind == Kind::kWhole ? static_cast<int32_t>(peak.whole_cards) : *cards;
  parsed.total.units = peak.units;
  parsed.total.core_milli = static_cast<int32_t>(peak.core_milli);
  return parsed;
}

Result<Request> parse_request(const std::optional<std::string>& memory_units,
                              const std::optional<std::string>& core_percent, const std::optional<std::string>& cards,
                              std::vector<std::string> models) {
  ContainerText container;
  container.memory_units = memory_units;
  container.core_percent = core_percent;
  // Checked by itself first: with one container its name would only be noise in the message.
  Result<Amounts> amounts = container_amounts(container);
  if (!amounts) return amounts.error();
  if (amounts->kind() == Kind::kNone) {
    return invalid(fmt::format("{}: needs at least 1 unit, have {}", kResourceMemory,
                               memory_units ? quoted(*memory_units) : "nothing"));
  }
  Result<int32_t> count = card_count(cards);
  if (!count) return count.error();
  Result<ContainerShare> share = split(container, *amounts, *count);
  if (!share) return share.error();
  if (share->core_milli > kWholeCoreMilli)
    return invalid(fmt::format("{}: needs at most 100 on each of {} card(s), have {}", kResourceCore, *count,
                               share->core_milli / 10));
  Request request;
  request.kind = amounts->kind();
  request.cards = *count;
  request.units = share->units;
  request.core_milli = share->core_milli;
  request.models = std::move(models);
  return request;
}

}  // namespace sluice::core
