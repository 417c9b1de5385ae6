// A command line: one argument per line of the input.
#include "check.h"
#include "cli/options.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> arguments(1);
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      arguments.emplace_back();
    } else if (data[i] != 0) {  // cannot be in an argument
      arguments.back().push_back(static_cast<char>(data[i]));
    }
  }
  const cli::ParsedOptions parsed = cli::parse_options(arguments);
  promise(parsed.options.has_value() || !parsed.text.empty(), "nothing to do is explained");
  promise(parsed.exit_status >= 0 && parsed.exit_status < 126, "the exit status is one of ours");
  promise(!parsed.options || parsed.exit_status == 0, "what is understood is no error");
  promise(!parsed.options || parsed.options->verb != cli::Verb::kRun || !parsed.options->run.command.empty() ||
              !parsed.options->run.manifest.empty(),
          "run has a command or a manifest");
  return 0;
}
