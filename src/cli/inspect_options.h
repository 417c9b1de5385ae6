// The command line of `kubectl inspect cgpu`, as plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/inspect.h"

namespace sluice::cli {

enum class InspectOutput { kText, kWide, kJson, kYaml };

struct InspectArguments {
  InspectLayout layout = InspectLayout::kSummary;
  InspectOutput output = InspectOutput::kText;
  std::string kubeconfig;
  std::string context;
  std::vector<std::string> key_files;  // --allocation-key
  std::vector<std::string> nodes;
};

struct ParsedInspectArguments {
  std::optional<InspectArguments> arguments;  // absent: `text` is all there is to do
  std::string text;                           // help or version (standard output), or what is wrong (standard error)
  int exit_status = 0;
};

// argv without the program's name.
ParsedInspectArguments parse_inspect_arguments(const std::vector<std::string>& arguments);

}  // namespace sluice::cli
