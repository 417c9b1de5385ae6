#include "cli/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/text.h"
#include "core/request.h"
#include "core/units.h"

namespace sluice::cli {

Result<int64_t> parse_number(const std::string& text, std::string_view what, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return invalid(fmt::format("{} is '{}', but has to be a whole number from {} to {}", what, text, least, most));
  }
  return value;
}

std::string default_name(const std::string& command, int64_t pid) {
  const std::string tail = fmt::format("-{}", pid);
  const size_t slash = command.find_last_of('/');
  // A file's name may hold anything; of a grant's, only what can be shown.
  std::string file = text::fit(slash == std::string::npos ? command : command.substr(slash + 1), SIZE_MAX);
  file.resize(std::min(file.size(), agent::kMaxNameBytes - tail.size()));
  file.resize(text::utf8_prefix(file));
  return file + tail;
}

JobSpec job_from_options(const RunOptions& run) {
  JobSpec job;
  job.command = run.command;
  job.memory_units = run.memory_units;
  job.core_percent = run.core_percent;
  job.whole_cards = run.whole_cards;
  job.card_count = run.card_count;
  return job;
}

namespace {

// The rules speak of resources; whoever typed options reads about options.
Error in_words_of_options(Error error) {
  constexpr std::string_view kPrefix = "container 'command': ";
  if (error.message.starts_with(kPrefix)) error.message.erase(0, kPrefix.size());
  const std::pair<std::string_view, std::string_view> words[] = {{core::kResourceMemory, "--gpu-mem"},
                                                                 {core::kResourceCore, "--gpu-core"},
                                                                 {core::kResourceWholeCards, "--gpus"},
                                                                 {core::kLabelCardCount, "--gpu-count"}};
  for (const auto& [resource, option] : words) {
    for (size_t at = 0; (at = error.message.find(resource, at)) != std::string::npos; at += option.size()) {
      error.message.replace(at, resource.size(), option);
    }
  }
  // Where these stood in for a label or a resource, they are neither.
  if (constexpr std::string_view kLabel = "label --"; error.message.starts_with(kLabel)) error.message.erase(0, 6);
  return error;
}

Result<void> check_name(std::string_view what, const std::string& name) {
  if (name.size() > agent::kMaxNameBytes) {
    return invalid(
        fmt::format("{} is {} bytes long, at most {} are possible", what, name.size(), agent::kMaxNameBytes));
  }
  if (text::is_utf8(name) && text::fit(name, SIZE_MAX) == name) return {};
  return invalid(
      fmt::format("{} is '{}', where '?' stands for a control character or a byte that is no UTF-8; write one that "
                  "can be shown",
                  what, text::fit(name, SIZE_MAX)));
}

}  // namespace

Result<agent::GrantRequest> grant_request(const JobSpec& job, const RunOptions& run) {
  core::ContainerText container{.name = job.container.empty() ? "command" : job.container,
                                .memory_units = job.memory_units,
                                .core_percent = job.core_percent,
                                .whole_cards = job.whole_cards};
  auto parsed = core::parse_pod({.containers = {container}, .card_count = job.card_count});
  if (!parsed) return job.kind.empty() ? in_words_of_options(std::move(parsed).error()) : std::move(parsed).error();
  const core::Request& total = parsed->total;
  agent::GrantRequest request;
  switch (total.kind) {
    case core::Kind::kNone:
      return invalid(
          job.kind.empty()
              ? "no share of a card is asked for; give --gpu-mem N, with --gpu-core P where compute is to be "
                "limited too, or --gpus N for whole cards"
              : fmt::format("no share of a card is asked for; write {} (and {}) or {} into the container's "
                            "resources.limits",
                            core::kResourceMemory, core::kResourceCore, core::kResourceWholeCards));
    case core::Kind::kWhole:
      request.whole_cards = total.cards;
      break;
    case core::Kind::kMemory:
    case core::Kind::kMemoryCore:
      request.cards = total.cards;
      request.gpu_mem_units = total.units * total.cards;
      request.core_percent = int64_t{total.core_milli} * total.cards / (core::kWholeCoreMilli / 100);
      break;
  }
  request.name = run.name.empty() ? job.name : run.name;
  if (auto fine = check_name(run.name.empty() ? "metadata.name" : "--name", request.name); !fine)
    return std::move(fine).error();
  if (!run.policy.empty()) {
    auto policy = agent::parse_policy_name(run.policy);
    if (!policy) return std::move(policy).error().wrap("--policy");
    request.policy = *policy;
  }
  const std::optional<std::string>& weight = run.weight ? run.weight : job.weight;
  if (weight) {
    auto number = parse_number(*weight, run.weight ? "--weight" : kEnvWeight, 1, agent::kMaxWeight);
    if (!number) return std::move(number).error();
    request.weight = *number;
  }
  request.high_priority = run.high_priority || job.high_priority;
  return request;
}

Result<agent::SetRequest> set_request(const SetOptions& set) {
  agent::SetRequest request;
  if (set.grant.empty()) return invalid("which grant? Give its name or id, as sluice ps shows it");
  if (!text::is_utf8(set.grant) || set.grant.size() > agent::kMaxNameBytes)
    return not_found(fmt::format("there is no grant '{}' here (sluice ps lists them)", text::fit(set.grant, 80)));
  request.grant = set.grant;
  request.high_priority = set.high_priority;
  const std::tuple<const std::optional<std::string>*, std::optional<int64_t>*, const char*, int64_t, int64_t>
      numbers[] = {{&set.memory_units, &request.gpu_mem_units, "--gpu-mem", 1, core::kMaxUnits},
                   {&set.core_percent, &request.core_percent, "--gpu-core", core::kCorePercentStep, 100},
                   {&set.weight, &request.weight, "--weight", 1, agent::kMaxWeight}};
  for (const auto& [text, into, what, least, most] : numbers) {
    if (!*text) continue;
    auto number = parse_number(**text, what, least, most);
    if (!number) return std::move(number).error();
    *into = *number;
  }
  if (request.core_percent && *request.core_percent % core::kCorePercentStep != 0) {
    return invalid(
        fmt::format("--gpu-core is {}, but has to be a multiple of {}", *request.core_percent, core::kCorePercentStep));
  }
  return request;
}

}  // namespace sluice::cli
