#include "accuracy/scenario.h"

#include <algorithm>
#include <cmath>

#include "guest/compute.h"

namespace sluice::accuracy {

namespace {

constexpr double kMostUs = 10e6;
constexpr double kUsualGrid = 1000;
constexpr double kMostBlocks = 1e6;
constexpr size_t kMostContainers = 20;
constexpr size_t kMostStreams = 64;
constexpr int64_t kMostCards = 8;

Result<double> number(const json::Value& value, const std::string& where, double least, double most) {
  if (!value.is_number()) return invalid(where + " must be a number");
  const double found = value.to_number<double>();
  if (!(found >= least && found <= most)) {
    return invalid(where + " is " + std::to_string(found) + "; expected " + std::to_string(least) + " to " +
                   std::to_string(most));
  }
  return found;
}

Result<Distribution> parse_distribution(const json::Value& value, const std::string& where) {
  Distribution result;
  if (value.is_number()) {
    Result<double> fixed = number(value, where, 0, kMostUs);
    if (!fixed) return fixed.error();
    result.a = *fixed;
    return result;
  }
  if (!value.is_object() || value.as_object().size() != 1) {
    return invalid(where + " must be {\"fixed\"|\"uniform\"|\"lognormal\"|\"choice\": ..}");
  }
  const auto& member = *value.as_object().begin();
  const std::string kind(member.key());
  const json::Value& body = member.value();
  if (kind == "fixed") {
    Result<double> fixed = number(body, where + ".fixed", 0, kMostUs);
    if (!fixed) return fixed.error();
    result.a = *fixed;
  } else if (kind == "uniform") {
    if (!body.is_array() || body.as_array().size() != 2) return invalid(where + ".uniform must be [least, most]");
    Result<double> least = number(body.as_array()[0], where + ".uniform[0]", 0, kMostUs);
    if (!least) return least.error();
    Result<double> most = number(body.as_array()[1], where + ".uniform[1]", *least, kMostUs);
    if (!most) return most.error();
    result.kind = Distribution::Kind::kUniform;
    result.a = *least;
    result.b = *most;
  } else if (kind == "lognormal") {
    if (!body.is_object()) return invalid(where + ".lognormal must be an object");
    const json::Object& object = body.as_object();
    Result<double> median = json::get_double(object, "median");
    Result<double> sigma = json::get_double(object, "sigma");
    Result<double> most = json::get_double_or(object, "max", kMostUs);
    if (!median) return std::move(median.error()).wrap(where);
    if (!sigma) return std::move(sigma.error()).wrap(where);
    if (!most) return std::move(most.error()).wrap(where);
    if (*median <= 0 || *sigma < 0 || *most < *median) {
      return invalid(where + ".lognormal needs median > 0, sigma >= 0 and max >= median");
    }
    result.kind = Distribution::Kind::kLognormal;
    result.a = *median;
    result.sigma = *sigma;
    result.b = *most;
  } else if (kind == "choice") {
    if (!body.is_array() || body.as_array().empty() || body.as_array().size() > 16) {
      return invalid(where + ".choice must be a list of 1 to 16 numbers");
    }
    result.kind = Distribution::Kind::kChoice;
    for (const json::Value& one : body.as_array()) {
      Result<double> choice = number(one, where + ".choice", 0, kMostUs);
      if (!choice) return choice.error();
      result.choices.push_back(*choice);
    }
  } else {
    return invalid(where + ": '" + kind + "' is not a distribution; known are fixed, uniform, lognormal, choice");
  }
  return result;
}

// What streams do besides what every scenario may say: for rows about order in a stream, peers and hangs.
Result<void> parse_extras(const json::Object& object, const std::string& where, StreamSpec& stream) {
  Result<bool> host = json::get_bool_or(object, "host_functions", false);
  Result<bool> orders = json::get_bool_or(object, "orders", false);
  Result<int64_t> hangs = json::get_int_or(object, "hangs_after", 0);
  if (!host) return std::move(host.error()).wrap(where);
  if (!orders) return std::move(orders.error()).wrap(where);
  if (!hangs) return std::move(hangs.error()).wrap(where);
  stream.host_functions = *host;
  stream.orders = *orders;
  stream.hangs_after = static_cast<uint32_t>(std::clamp<int64_t>(*hangs, 0, 1'000'000'000));
  const json::Value* collective = object.if_contains("collective");
  if (collective == nullptr) return {};
  if (!collective->is_object()) return invalid(where + ".collective must be {\"every\": n, \"us\": x}");
  Result<int64_t> every = json::get_int(collective->as_object(), "every");
  Result<double> us = json::get_double_or(collective->as_object(), "us", stream.collective_us);
  if (!every) return std::move(every.error()).wrap(where + ".collective");
  if (!us) return std::move(us.error()).wrap(where + ".collective");
  if (*every < 1 || *every > 1'000'000 || !(*us >= 1 && *us <= kMostUs)) {
    return invalid(where + ".collective needs every >= 1 and us >= 1");
  }
  stream.collective_every = static_cast<uint32_t>(*every);
  stream.collective_us = *us;
  return {};
}

Result<StreamSpec> parse_stream(const json::Value& value, const std::string& where) {
  if (!value.is_object()) return invalid(where + " must be an object");
  const json::Object& object = value.as_object();
  StreamSpec stream;
  const json::Value* kernel = object.if_contains("kernel_us");
  if (kernel == nullptr) return invalid(where + ".kernel_us is missing");
  Result<Distribution> kernel_us = parse_distribution(*kernel, where + ".kernel_us");
  if (!kernel_us) return kernel_us.error();
  if (kernel_us->mean() <= 0) return invalid(where + ".kernel_us must be more than 0");
  stream.kernel_us = *kernel_us;
  Result<int64_t> nodes = json::get_int_or(object, "graph_nodes", 0);
  Result<bool> per_block = json::get_bool_or(object, "per_block", false);
  Result<bool> cooperative = json::get_bool_or(object, "cooperative", false);
  Result<double> copy = json::get_double_or(object, "copy_us", 0);
  if (!nodes) return std::move(nodes.error()).wrap(where);
  if (!per_block) return std::move(per_block.error()).wrap(where);
  if (!cooperative) return std::move(cooperative.error()).wrap(where);
  if (!copy) return std::move(copy.error()).wrap(where);
  if (*nodes < 0 || *nodes > 100000) return invalid(where + ".graph_nodes must be 0 to 100000");
  if (*copy < 0 || *copy > kMostUs) return invalid(where + ".copy_us must be 0 to 10000000");
  stream.grid.a = kUsualGrid;
  if (const json::Value* grid = object.if_contains("grid")) {
    Result<Distribution> blocks = parse_distribution(*grid, where + ".grid");
    if (!blocks) return blocks.error();
    if (blocks->least() < 1 || blocks->largest() > kMostBlocks) return invalid(where + ".grid must be 1 to 1000000");
    stream.grid = *blocks;
  }
  stream.per_block = *per_block;
  stream.graph_nodes = static_cast<uint32_t>(*nodes);
  stream.cooperative = *cooperative;
  stream.copy_us = *copy;
  if (Result<void> extras = parse_extras(object, where, stream); !extras) return extras.error();
  if (const json::Value* gap = object.if_contains("gap_us")) {
    Result<Distribution> gap_us = parse_distribution(*gap, where + ".gap_us");
    if (!gap_us) return gap_us.error();
    stream.gap_us = *gap_us;
  }
  if (const json::Value* sync = object.if_contains("sync")) {
    if (sync->is_string() && sync->as_string() == "never") {
      stream.sync_every = 0;
    } else if (sync->is_string() && sync->as_string() == "launch") {
      stream.sync_every = 1;
    } else if (sync->is_object() && sync->as_object().contains("every")) {
      Result<int64_t> every = json::get_int(sync->as_object(), "every");
      if (!every) return std::move(every.error()).wrap(where + ".sync");
      if (*every < 1 || *every > 1000000) return invalid(where + ".sync.every must be 1 to 1000000");
      stream.sync_every = static_cast<uint32_t>(*every);
    } else {
      return invalid(where + ".sync must be \"never\", \"launch\" or {\"every\": n}");
    }
  }
  return stream;
}

Result<std::optional<double>> optional_seconds(const json::Object& object, const char* key, const std::string& where) {
  const json::Value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) return std::optional<double>{};
  Result<double> found = number(*value, where + "." + key, 0, 1e6);
  if (!found) return found.error();
  return std::optional<double>{*found};
}

// [[seconds, percent], ..]
Result<std::vector<ContainerSpec::Change>> parse_changes(const json::Object& object, const std::string& where) {
  std::vector<ContainerSpec::Change> changes;
  const json::Value* list = object.if_contains("changes");
  if (list == nullptr) return changes;
  const std::string expected = where + ".changes must be a list of [seconds, percent], in the order of time";
  if (!list->is_array() || list->as_array().size() > 100) return invalid(expected);
  for (const json::Value& one : list->as_array()) {
    if (!one.is_array() || one.as_array().size() != 2) return invalid(expected);
    Result<double> at = number(one.as_array()[0], where + ".changes: seconds", 0, 1e6);
    Result<double> percent = number(one.as_array()[1], where + ".changes: percent", 0, 100);
    if (!at) return at.error();
    if (!percent) return percent.error();
    if (!changes.empty() && changes.back().at_s >= *at) return invalid(expected);
    changes.push_back({*at, *percent});
  }
  return changes;
}

Result<void> parse_events(const json::Object& object, const std::string& where, ContainerSpec& container) {
  Result<std::optional<double>> kill = optional_seconds(object, "kill_s", where);
  Result<std::optional<double>> freeze = optional_seconds(object, "freeze_s", where);
  Result<std::optional<double>> thaw = optional_seconds(object, "thaw_s", where);
  Result<double> lives = json::get_double_or(object, "lives_s", 0);
  Result<double> every = json::get_double_or(object, "every_s", 0);
  Result<int64_t> cards = json::get_int_or(object, "cards", 1);
  Result<std::vector<ContainerSpec::Change>> changes = parse_changes(object, where);
  if (!kill) return kill.error();
  if (!freeze) return freeze.error();
  if (!thaw) return thaw.error();
  if (!lives) return std::move(lives.error()).wrap(where);
  if (!every) return std::move(every.error()).wrap(where);
  if (!cards) return std::move(cards.error()).wrap(where);
  if (!changes) return changes.error();
  if (*cards < 1 || *cards > kMostCards) return invalid(where + ".cards must be 1 to 8");
  if (*lives != 0 && !(*lives >= 0.01 && *every > *lives)) {
    return invalid(where + ".lives_s must be 0.01 or more and less than every_s");
  }
  container.kill_s = *kill;
  container.freeze_s = *freeze;
  container.thaw_s = *thaw;
  container.lives_s = *lives;
  container.every_s = *every;
  container.cards = static_cast<uint32_t>(*cards);
  container.changes = *changes;
  const json::Value* lies = object.if_contains("lies");
  if (lies == nullptr || (lies->is_bool() && !lies->as_bool())) return {};
  if (lies->is_string() && lies->as_string() == "waits") {
    container.lies = Lie::kWaits;
  } else if (lies->is_string() && lies->as_string() == "never drains") {
    container.lies = Lie::kNeverDrains;
  } else {
    return invalid(where + ".lies must be \"waits\" or \"never drains\"");
  }
  return {};
}

Result<ContainerSpec> parse_container(const json::Value& value, const std::string& where) {
  if (!value.is_object()) return invalid(where + " must be an object");
  const json::Object& object = value.as_object();
  ContainerSpec container;
  Result<std::string> name = json::get_string_or(object, "name", where);
  Result<double> percent = json::get_double_or(object, "percent", 0);
  Result<int64_t> weight = json::get_int_or(object, "weight", 1);
  Result<bool> high = json::get_bool_or(object, "high_priority", false);
  Result<int64_t> processes = json::get_int_or(object, "processes", 1);
  Result<double> start = json::get_double_or(object, "start_s", 0);
  if (!name) return std::move(name.error()).wrap(where);
  if (!percent) return std::move(percent.error()).wrap(where);
  if (!weight) return std::move(weight.error()).wrap(where);
  if (!high) return std::move(high.error()).wrap(where);
  if (!processes) return std::move(processes.error()).wrap(where);
  if (!start) return std::move(start.error()).wrap(where);
  if (*percent < 0 || *percent > 100) return invalid(where + ".percent must be 0 to 100");
  if (*processes < 1 || *processes > 32) return invalid(where + ".processes must be 1 to 32");
  if (*weight < 1 || *weight > 1000) return invalid(where + ".weight must be 1 to 1000");
  Result<std::optional<double>> stop = optional_seconds(object, "stop_s", where);
  if (!stop) return stop.error();
  container.name = *name;
  container.percent = *percent;
  container.weight = static_cast<uint32_t>(*weight);
  container.high_priority = *high;
  container.processes = static_cast<uint32_t>(*processes);
  container.start_s = *start;
  container.stop_s = *stop;
  if (Result<void> extras = parse_events(object, where, container); !extras) return extras.error();
  if (container.lies != Lie::kNone) return container;
  const json::Value* streams = object.if_contains("streams");
  if (streams == nullptr || !streams->is_array() || streams->as_array().empty() ||
      streams->as_array().size() > kMostStreams) {
    return invalid(where + ".streams must be a list of 1 to 64 streams");
  }
  for (size_t i = 0; i < streams->as_array().size(); ++i) {
    Result<StreamSpec> stream = parse_stream(streams->as_array()[i], where + ".streams[" + std::to_string(i) + "]");
    if (!stream) return stream.error();
    container.streams.push_back(*stream);
  }
  return container;
}

struct NamedMutation {
  const char* name;
  uint32_t guest;
  uint32_t agent;
};
constexpr NamedMutation kMutations[] = {
    {"marker cost", guest::kMutateMarkerCost, 0},
    {"bound", guest::kMutateBound, 0},
    {"drain", guest::kMutateDrain, 0},
    {"settler", guest::kMutateSettler, 0},
    {"intervals", guest::kMutateIntervals, 0},
    {"held up", guest::kMutateHeldUp, 0},
    {"bases", guest::kMutateBases, 0},
    {"limits", guest::kMutateLimits, 0},
    {"boundary", guest::kMutateBoundary, 0},
    {"union", guest::kMutateUnion, 0},
    {"presence", guest::kMutatePresence, 0},
    {"wary", guest::kMutateWary, 0},
    {"no liveness", governor::kMutateNoLiveness, 0},
    {"all liveness", governor::kMutateAllLiveness, 0},
    {"clamp", governor::kMutateClamp, 0},
    {"budget", governor::kMutateBudget, 0},
    {"hysteresis", governor::kMutateHysteresis, 0},
    {"stuck", governor::kMutateStuck, 0},
    {"overrun", 0, kMutateOverrun},
    {"take back", 0, kMutateTakeBack},
    {"priority", 0, kMutatePriority},
    {"arming", guest::kMutateArming, 0},
    {"dead", 0, kMutateDead},
};

Result<void> parse_mutations(const json::Object& object, Scenario& scenario) {
  const json::Value* list = object.if_contains("mutations");
  if (list == nullptr) return {};
  if (!list->is_array()) return invalid("mutations must be a list of names");
  for (const json::Value& one : list->as_array()) {
    const NamedMutation* found = nullptr;
    for (const NamedMutation& known : kMutations) {
      if (one.is_string() && one.as_string() == known.name) found = &known;
    }
    if (found == nullptr) return invalid("mutations: " + json::to_string(one) + " is not known");
    scenario.mutations |= found->guest;
    scenario.agent_mutations |= found->agent;
  }
  return {};
}

Result<core::ComputePolicy> parse_policy(const json::Value& value) {
  static constexpr const char* kNames[] = {"fair", "preemptive", "weighted", "fixed", "burst", "native"};
  for (uint32_t i = 0; i < 6; ++i) {
    if ((value.is_string() && (value.as_string() == kNames[i] || value.as_string() == std::to_string(i))) ||
        (value.is_number() && value.to_number<double>() == i)) {
      return static_cast<core::ComputePolicy>(i);
    }
  }
  return invalid("policy must be fair, preemptive, weighted, fixed, burst or native, or its number 0 to 5");
}

}  // namespace

uint32_t card_count(const Scenario& scenario) {
  uint32_t cards = 1;
  for (const ContainerSpec& container : scenario.containers) cards = std::max(cards, container.cards);
  return cards;
}

double Distribution::draw(std::mt19937_64& random) const {
  switch (kind) {
    case Kind::kFixed:
      return a;
    case Kind::kUniform:
      return std::uniform_real_distribution<>(a, b)(random);
    case Kind::kLognormal:
      return std::min(b, a * std::exp(sigma * std::normal_distribution<>()(random)));
    case Kind::kChoice:
      return choices[random() % choices.size()];
  }
  return a;
}

double Distribution::mean() const {
  if (kind == Kind::kUniform) return (a + b) / 2;
  if (kind == Kind::kChoice) {
    double sum = 0;
    for (const double one : choices) sum += one;
    return sum / static_cast<double>(choices.size());
  }
  if (kind == Kind::kLognormal) return std::min(b, a * std::exp(sigma * sigma / 2));
  return a;
}

double Distribution::least() const {
  if (kind == Kind::kChoice) return *std::min_element(choices.begin(), choices.end());
  return kind == Kind::kLognormal ? 0 : a;
}

double Distribution::largest() const {
  if (kind == Kind::kChoice) return *std::max_element(choices.begin(), choices.end());
  return kind == Kind::kFixed ? a : b;
}

Result<Scenario> parse_scenario(const json::Value& value) {
  if (!value.is_object()) return invalid("a scenario must be a JSON object");
  const json::Object& object = value.as_object();
  Scenario scenario;
  Result<std::string> name = json::get_string_or(object, "name", "");
  Result<std::string> card = json::get_string_or(object, "card", scenario.card);
  Result<double> seconds = json::get_double_or(object, "seconds", scenario.seconds);
  Result<int64_t> seed = json::get_int_or(object, "seed", 1);
  Result<std::string> host = json::get_string_or(object, "host", "normal");
  Result<bool> gated = json::get_bool_or(object, "gated", true);
  Result<int64_t> most = json::get_int_or(object, "max_containers", scenario.max_containers);
  Result<int64_t> measure = json::get_int_or(object, "measure_permille", 0);
  if (!name) return name.error();
  if (!card) return card.error();
  if (!seconds) return seconds.error();
  if (!seed) return seed.error();
  if (!host) return host.error();
  if (!gated) return gated.error();
  if (!most) return most.error();
  if (!measure) return measure.error();
  if (*seconds < 3 || *seconds > 3600) return invalid("seconds must be 3 to 3600");
  scenario.name = *name;
  scenario.card = *card;
  scenario.seconds = *seconds;
  scenario.seed = static_cast<uint64_t>(*seed);
  scenario.host = *host;
  scenario.gated = *gated;
  scenario.max_containers = static_cast<uint32_t>(std::max<int64_t>(1, *most));
  if (Result<void> mutations = parse_mutations(object, scenario); !mutations) return mutations.error();
  scenario.measure_permille = static_cast<uint32_t>(*measure);
  if (const json::Value* policy = object.if_contains("policy")) {
    Result<core::ComputePolicy> parsed = parse_policy(*policy);
    if (!parsed) return parsed.error();
    scenario.policy = *parsed;
  }
  const json::Value* containers = object.if_contains("containers");
  if (containers == nullptr || !containers->is_array() || containers->as_array().empty() ||
      containers->as_array().size() > kMostContainers) {
    return invalid("containers must be a list of 1 to 20 containers");
  }
  for (size_t i = 0; i < containers->as_array().size(); ++i) {
    Result<ContainerSpec> container =
        parse_container(containers->as_array()[i], "containers[" + std::to_string(i) + "]");
    if (!container) return container.error();
    scenario.containers.push_back(*container);
  }
  return scenario;
}

}  // namespace sluice::accuracy
