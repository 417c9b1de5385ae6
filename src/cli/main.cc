// The people's tool: reads the command line and hands over to one command.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/output.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/options.h"

namespace sluice::cli {
namespace {

int dispatch(const Options& options) {
  switch (options.verb) {
    case Verb::kRun:
      return run(options);
    case Verb::kPs:
      return ps(options);
    case Verb::kTop:
      return top(options);
    case Verb::kSet:
      return set(options);
    case Verb::kCards:
      return cards(options);
    case Verb::kDoctor:
      return doctor(options);
    case Verb::kDemo:
      return demo(options);
    case Verb::kExplain:
      return explain(options);
    case Verb::kVerify:
      return verify(options);
  }
  return kExitInternal;
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  using namespace sluice::cli;
  try {
    const ParsedOptions parsed = parse_options(std::vector<std::string>(argv + 1, argv + argc));
    int status = parsed.exit_status;
    if (parsed.options)
      status = dispatch(*parsed.options);
    else
      fputs(parsed.text.c_str(), status == kExitOk ? stdout : stderr);
    return sluice::finish_output("sluice", status, kExitInternal);
  } catch (const std::exception& error) {
    // Libraries may throw when memory runs out; nothing of ours does.
    fprintf(stderr, "sluice: %s\n", error.what());
    return kExitInternal;
  }
}
