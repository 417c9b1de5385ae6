// Command line of gpu_node (node.h says what it is for).
//
//   gpu_node hold --state DIR --nvml FILE [--card N] [--estimate-mib N] [--report-ms N] NAME:LIMIT_MIB:PERMILLE...
//   gpu_node enter --state DIR/NAME --cuda FILE --nvml FILE --guest DIR [--way WAY] -- PROGRAM ARGUMENTS...
//   gpu_node way                     prints how programs can be put into a container on this machine
#include <charconv>
#include <cstdio>
#include <cstring>

#include "node.h"

namespace {

using namespace sluice::gpu_node;

uint64_t number(const std::string& text, const std::string& what, uint64_t most) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || value > most) {
    fail(what + ": '" + text + "' is no number up to " + std::to_string(most), false);
  }
  return value;
}

Container container(const std::string& text) {
  const size_t first = text.find(':');
  const size_t second = text.find(':', first + 1);
  if (first == std::string::npos || first == 0 || second == std::string::npos) {
    fail("'" + text + "': expected NAME:LIMIT_MIB:PERMILLE", false);
  }
  return {text.substr(0, first), number(text.substr(first + 1, second - first - 1), "limit in MiB", 1u << 24),
          static_cast<uint32_t>(number(text.substr(second + 1), "1/1000 of the card", 1000))};
}

struct Arguments {
  HoldOptions hold;
  EnterOptions enter;
};

Arguments parse(int argc, char** argv) {
  Arguments got;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      got.enter.program = argv + i + 1;
      break;
    }
    if (word.rfind("--", 0) != 0) {
      got.hold.containers.push_back(container(word));
      continue;
    }
    if (i + 1 >= argc) fail(word + " needs a value", false);
    const std::string value = argv[++i];
    if (word == "--state") {
      got.hold.state = got.enter.state = value;
    } else if (word == "--nvml") {
      got.hold.nvml = got.enter.nvml = value;
    } else if (word == "--cuda") {
      got.enter.cuda = value;
    } else if (word == "--guest") {
      got.enter.guest = value;
    } else if (word == "--way") {
      if (value != "mounts" && value != "user-mounts" && value != "plain")
        fail("--way: mounts, user-mounts or plain", false);
      got.enter.way = value;
    } else if (word == "--card") {
      got.hold.card = static_cast<uint32_t>(number(value, word, 1023));
    } else if (word == "--estimate-mib") {
      got.hold.estimate_mib = number(value, word, 1u << 20);
    } else if (word == "--report-ms") {
      got.hold.report_ms = static_cast<uint32_t>(number(value, word, 60000));
    } else {
      fail("unknown option " + word, false);
    }
  }
  return got;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "way") return std::puts(way_in()) < 0 ? 1 : 0;
  const Arguments got = parse(argc, argv);
  if (verb == "hold") {
    if (got.hold.state.empty() || got.hold.nvml.empty() || got.hold.containers.empty() || got.hold.report_ms == 0) {
      fail("hold needs --state, --nvml and at least one NAME:LIMIT_MIB:PERMILLE", false);
    }
    return hold(got.hold);
  }
  if (verb != "enter") fail("expected hold, enter or way", false);
  const EnterOptions& in = got.enter;
  if (in.state.empty() || in.cuda.empty() || in.nvml.empty() || in.guest.empty() || in.program == nullptr ||
      in.program[0] == nullptr) {
    fail("enter needs --state, --cuda, --nvml, --guest and -- PROGRAM", false);
  }
  enter(in);
}
