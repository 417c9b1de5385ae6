// sluice-sim: makes simulated cards, shows and changes them, breaks them on purpose, reads their log.
#include "sim/sluice_sim.h"

#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "sim/engine.h"
#include "sim/image.h"
#include "sim/profile.h"

namespace sluice::sim {

namespace {

struct KnobInfo {
  const char* name;
  int64_t value;
  const char* unit;
  const char* meaning;
};
constexpr KnobInfo kKnobInfo[] = {
#define KNOB(name, value, unit, meaning) {#name, value, unit, meaning},
#include "sim/knobs.def"
#undef KNOB
};

constexpr const char* kUsage =
    "usage: sluice-sim create DIR --card PROFILE [--count N] [--seed N] [NAME=VALUE...]   make cards in a folder\n"
    "       sluice-sim show CARD                        what the card is, its settings, who uses it\n"
    "       sluice-sim set CARD NAME=VALUE... | --costs FILE   change settings or the card's own cost table\n"
    "       sluice-sim fault CARD KIND ...              missing NAME | slow NAME MICROSECONDS | error NAME CODE\n"
    "                                                   (each with [--pid P] [--times N]), xid NUMBER | context PID "
    "CODE |\n"
    "                                                   lost | back | clear\n"
    "       sluice-sim signal CARD PID SIGNAL           send a signal while the process does not hold the card's lock\n"
    "       sluice-sim log CARD [--window MS] [--pid P] [--from MS] [--to MS] [--json]   the ground truth\n"
    "       sluice-sim profiles                         names of the card profiles\n"
    "CARD is a card's file, e.g. /var/lib/sluice-sim/card0.\n";

int fail(const Error& error) {
  std::fprintf(stderr, "sluice-sim: %s\n", error.message.c_str());
  return 1;
}

int usage_error(const std::string& what) {
  std::fprintf(stderr, "sluice-sim: %s\n%s", what.c_str(), kUsage);
  return 2;
}

Result<void> apply_setting(Card& card, const std::string& setting) {
  const size_t equals = setting.find('=');
  const std::string name = setting.substr(0, equals);
  const auto value = equals == std::string::npos ? std::nullopt : parse_number(setting.substr(equals + 1));
  if (!value) return invalid("'" + setting + "' is not NAME=NUMBER");
  for (size_t i = 0; i < kKnobs; ++i) {
    if (name != kKnobInfo[i].name) continue;
    card.file().knobs[i] = *value;
    if (static_cast<Knob>(i) == Knob::clock_offset_ns && *value >= 0) card.edit_header().clock_offset_ns = *value;
    return {};
  }
  return invalid("there is no setting '" + name + "'; `sluice-sim show CARD` lists them");
}

int create(const Arguments& a) {
  const std::string profile = a.option("card", "");
  if (a.words.size() < 2 || profile.empty()) return usage_error("create needs a folder and --card PROFILE");
  const auto count = parse_number(a.option("count", "1")), seed = parse_number(a.option("seed", "1"));
  if (!count || *count < 1 || *count > 64) return usage_error("--count is 1 to 64");
  if (!seed) return usage_error("--seed is a number");
  const std::string& folder = a.words[1];
  if (auto made = make_directories(folder); !made) return fail(made.error());
  uint32_t index = static_cast<uint32_t>(Card::list(folder).size());
  for (int64_t i = 0; i < *count; ++i, ++index) {
    CardOptions options;
    options.profile = profile;
    options.card_index = index;
    options.seed = static_cast<uint64_t>(*seed) + index;
    const std::string path = folder + "/card" + std::to_string(index);
    if (auto made = Card::create(path, options); !made) return fail(made.error());
    auto card = Card::open(path);
    if (!card) return fail(card.error());
    Card::Guard guard(**card);
    for (size_t w = 2; w < a.words.size(); ++w) {
      if (auto set = apply_setting(**card, a.words[w]); !set) {
        unlink(path.c_str());
        return fail(set.error());
      }
    }
    std::printf("%s %s %s\n", path.c_str(), (*card)->profile().name, (*card)->file().uuid);
  }
  return 0;
}

void print_processes(Card& card) {
  std::printf("%-8s %-10s %-8s %12s  %s\n", "PID", "STATE", "CONTEXTS", "MEMORY MIB", "PROGRAM");
  for (Index i = 1; i <= card.header().tables.processes.high; ++i) {
    const ProcessRecord& p = card.process(i);
    if (p.state == LiveState::kFree) continue;
    int contexts = 0;
    for (Index c = p.first_context; c != kNone; c = card.context(c).next_in_process) ++contexts;
    std::printf("%-8d %-10s %-8d %12llu  %s\n", p.pid, p.state == LiveState::kLive ? "live" : "ending", contexts,
                static_cast<unsigned long long>(p.resident_bytes >> 20), p.name);
  }
}

int show(const Arguments& a, Card& card) {
  Card::Guard guard(card);
  advance(card, card.card_time(monotonic_ns()));
  card.reap();
  const CardFile& f = card.file();
  if (a.has("json")) {
    json::Object out;
    out["name"] = f.profile.name;
    out["profile"] = f.profile.profile;
    out["uuid"] = f.uuid;
    out["now_ns"] = f.header.now_ns;
    out["used_bytes"] = f.header.used_bytes;
    out["contents_bytes"] = f.header.contents_bytes;
    out["lost"] = f.header.lost != 0;
    out["repairs"] = f.header.repairs;
    out["commands"] = f.header.commands_done;
    json::Object knobs;
    for (size_t i = 0; i < kKnobs; ++i) knobs[kKnobInfo[i].name] = f.knobs[i];
    out["settings"] = knobs;
    json::Array processes;
    for (Index i = 1; i <= f.header.tables.processes.high; ++i) {
      const ProcessRecord& p = card.process(i);
      if (p.state == LiveState::kFree) continue;
      processes.push_back(json::Object{{"pid", p.pid},
                                       {"live", p.state == LiveState::kLive},
                                       {"resident_bytes", p.resident_bytes},
                                       {"program", p.name}});
    }
    out["processes"] = processes;
    std::fputs(json::to_pretty_string(out).c_str(), stdout);
    return 0;
  }
  std::printf("%s  %s  %s%s\n", card.path().c_str(), f.profile.name, f.uuid, f.header.lost != 0 ? "  LOST" : "");
  std::printf(
      "memory %llu of %llu MiB used, %llu MiB of contents kept; %u multiprocessors; %llu commands; %u repairs\n\n",
      static_cast<unsigned long long>(f.header.used_bytes >> 20),
      static_cast<unsigned long long>(f.profile.cuda_total_bytes >> 20),
      static_cast<unsigned long long>(f.header.contents_bytes >> 20), f.profile.sms,
      static_cast<unsigned long long>(f.header.commands_done), f.header.repairs);
  print_processes(card);
  std::printf("\n");
  for (size_t i = 0; i < kKnobs; ++i) {
    std::printf("%-24s %12lld %-9s %s\n", kKnobInfo[i].name, static_cast<long long>(f.knobs[i]), kKnobInfo[i].unit,
                kKnobInfo[i].meaning);
  }
  return 0;
}

// Lines "NAME words": the words of a cost line in an image, for the kernels of that name ("*": all).
Result<void> load_costs(Card& card, const std::string& path) {
  auto text = read_file(path, 1 << 20);
  if (!text) return std::move(text.error());
  std::vector<CostEntry> entries;
  int number = 0;
  for (size_t from = 0; from < text->size();) {
    const size_t to = std::min(text->find('\n', from), text->size());
    std::string line = text->substr(from, to - from);
    from = to + 1;
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    KernelInfo kernel;
    CostEntry entry{};
    const std::string name = line.substr(0, space);
    if (space == std::string::npos || name.size() >= sizeof entry.name || !parse_cost(line.substr(space), &kernel)) {
      return invalid(path + ":" + std::to_string(number) + ": '" + line +
                     "' is not NAME us=N | lognormal=MEDIAN,SIGMA[,MAX] | uniform=A,B | choice=A,B,P [per_block]");
    }
    std::memcpy(entry.name, name.data(), name.size());
    entry.cost = kernel.cost;
    entries.push_back(entry);
  }
  if (entries.size() > kMaxCosts)
    return invalid(path + " has " + std::to_string(entries.size()) + " lines, at most " + std::to_string(kMaxCosts) +
                   " fit");
  std::copy(entries.begin(), entries.end(), card.file().costs);
  card.file().cost_count = static_cast<uint32_t>(entries.size());
  return {};
}

int set(const Arguments& a, Card& card) {
  Card::Guard guard(card);
  advance(card, card.card_time(monotonic_ns()));
  if (const std::string costs = a.option("costs", ""); !costs.empty()) {
    if (auto loaded = load_costs(card, costs); !loaded) return fail(loaded.error());
  } else if (a.words.size() < 3) {
    return usage_error("set needs NAME=VALUE or --costs FILE");
  }
  for (size_t w = 2; w < a.words.size(); ++w) {
    if (auto done = apply_setting(card, a.words[w]); !done) return fail(done.error());
  }
  return 0;
}

int add_fault(const Arguments& a, Card& card, FaultKind kind, size_t words) {
  if (a.words.size() < words) return usage_error("fault " + a.words[2] + " needs more words");
  CardFile& f = card.file();
  if (f.fault_count >= kMaxFaults)
    return fail(exhausted("the card has " + std::to_string(kMaxFaults) + " faults already; clear them first"));
  Fault fault{};
  fault.kind = kind;
  const std::string& symbol = a.words[3];
  if (symbol.size() >= sizeof fault.symbol) return usage_error("the name is too long");
  std::memcpy(fault.symbol, symbol.data(), symbol.size());
  const auto number = words > 4 ? parse_number(a.words[4]) : std::optional<int64_t>(0);
  const auto pid = parse_number(a.option("pid", "0")), times = parse_number(a.option("times", "-1"));
  if (!number || !pid || !times) return usage_error("a number was expected");
  if (kind == FaultKind::kSlowCall) fault.delay_ns = static_cast<uint64_t>(*number) * 1000;
  if (kind == FaultKind::kErrorReturn) fault.result = static_cast<int32_t>(*number);
  fault.pid = static_cast<int32_t>(*pid);
  fault.remaining = *times;
  f.faults[f.fault_count++] = fault;
  return 0;
}

// A context fault of one process: what an illegal address does, with the XID that the driver would log.
int break_contexts(const Arguments& a, Card& card) {
  const auto pid = a.words.size() > 3 ? parse_number(a.words[3]) : std::nullopt;
  const auto code = a.words.size() > 4 ? parse_number(a.words[4]) : std::nullopt;
  if (!pid || !code) return usage_error("fault context needs a pid and a CUresult");
  int hit = 0;
  for (Index i = 1; i <= card.header().tables.processes.high; ++i) {
    const ProcessRecord& p = card.process(i);
    if (p.state != LiveState::kLive || p.pid != *pid) continue;
    for (Index c = p.first_context; c != kNone; c = card.context(c).next_in_process, ++hit) {
      fail_context(card, c, static_cast<int32_t>(*code));
    }
  }
  if (hit == 0) return fail(not_found("no context of process " + std::to_string(*pid) + " on " + card.path()));
  return 0;
}

int fault(const Arguments& a, Card& card) {
  if (a.words.size() < 3) return usage_error("fault needs a kind");
  const std::string& kind = a.words[2];
  Card::Guard guard(card);
  advance(card, card.card_time(monotonic_ns()));
  if (kind == "missing") return add_fault(a, card, FaultKind::kMissingSymbol, 4);
  if (kind == "slow") return add_fault(a, card, FaultKind::kSlowCall, 5);
  if (kind == "error") return add_fault(a, card, FaultKind::kErrorReturn, 5);
  if (kind == "context") return break_contexts(a, card);
  CardHeader& h = card.edit_header();
  if (kind == "clear") {
    card.file().fault_count = 0;
  } else if (kind == "xid") {
    const auto number = a.words.size() > 3 ? parse_number(a.words[3]) : std::nullopt;
    if (!number) return usage_error("fault xid needs a number");
    h.xid = static_cast<uint32_t>(*number);
    h.xid_at_ns = h.now_ns;
    ++h.xid_count;
  } else if (kind == "lost") {
    h.lost = 1;
    h.xid = 79;
    h.xid_at_ns = h.now_ns;
    ++h.xid_count;
  } else if (kind == "back") {
    // What comes back is another card as far as programs can tell: new UUID, empty memory, old contexts gone.
    for (Index i = 1; i <= h.tables.processes.high; ++i) {
      if (card.process(i).state != LiveState::kFree) card.detach_process(i, true);
    }
    advance(card, h.now_ns);
    ++card.file().generation;
    draw_identity(card.file(), static_cast<uint64_t>(card.knob(Knob::seed)), card.file().card_index);
    card.edit_header().lost = 0;
  } else {
    return usage_error("there is no fault '" + kind + "'");
  }
  return 0;
}

// While this tool holds the card's lock the process cannot hold it: stopping it there would stop the card for all.
int send_signal(const Arguments& a, Card& card) {
  const auto pid = a.words.size() > 2 ? parse_number(a.words[2]) : std::nullopt;
  if (!pid || a.words.size() < 4) return usage_error("signal needs a pid and a signal");
  static const std::map<std::string, int> kNames = {
      {"STOP", SIGSTOP}, {"CONT", SIGCONT}, {"KILL", SIGKILL}, {"TERM", SIGTERM}};
  const auto name = kNames.find(a.words[3]);
  const auto number = parse_number(a.words[3]);
  const int signal_number = name != kNames.end() ? name->second : number ? static_cast<int>(*number) : -1;
  if (signal_number < 0) return usage_error("signal is STOP, CONT, KILL, TERM or a number");
  Card::Guard guard(card);
  if (kill(static_cast<pid_t>(*pid), signal_number) != 0) return fail(errno_error("cannot signal", a.words[2], errno));
  // Delivered to a running process at its next return from the kernel: wait until it has stopped.
  const timespec pause{0, 2000000};
  if (signal_number == SIGSTOP) nanosleep(&pause, nullptr);
  return 0;
}

}  // namespace

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

std::optional<int64_t> parse_number(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0' || errno != 0) return std::nullopt;
  return value;
}

Arguments parse_arguments(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      a.words.push_back(word);
    } else if (const size_t equals = word.find('='); equals != std::string::npos) {
      a.options[word.substr(2, equals - 2)] = word.substr(equals + 1);
    } else if (word == "--json" || word == "--help" || i + 1 >= argc) {
      a.options[word.substr(2)] = "";
    } else {
      a.options[word.substr(2)] = argv[++i];
    }
  }
  return a;
}

int run_tool(const Arguments& a) {
  if (a.has("help") || (!a.words.empty() && a.words[0] == "help")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (a.words.empty()) return usage_error("what is it to do?");
  const std::string& verb = a.words[0];
  if (verb == "create") return create(a);
  if (verb == "profiles") {
    for (const std::string& name : profile_names()) std::printf("%s\n", name.c_str());
    return 0;
  }
  int (*action)(const Arguments&, Card&) = verb == "show"     ? show
                                           : verb == "set"    ? set
                                           : verb == "fault"  ? fault
                                           : verb == "signal" ? send_signal
                                           : verb == "log"    ? print_log
                                                              : nullptr;
  if (action == nullptr) return usage_error("there is no command '" + verb + "'");
  if (a.words.size() < 2) return usage_error(verb + " needs a card's file");
  auto card = Card::open(a.words[1]);
  if (!card) return fail(card.error());
  return action(a, **card);
}

}  // namespace sluice::sim

int main(int argc, char** argv) {
  return sluice::finish_output("sluice-sim", sluice::sim::run_tool(sluice::sim::parse_arguments(argc, argv)));
}
