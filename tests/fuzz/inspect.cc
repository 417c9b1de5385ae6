// Nodes and pods as any cluster's API may give them, through `kubectl inspect cgpu`: annotations are users' own words.
#include "cli/inspect.h"
#include "check.h"

using namespace sluice;

namespace {

void look(const json::Array& nodes, const json::Array& pods) {
  Result<cli::Inspection> inspection = cli::inspect(nodes, pods, {});
  promise(inspection.ok(), "without a named node there is always something to show");
  std::string text;
  for (cli::InspectLayout layout : {cli::InspectLayout::kSummary, cli::InspectLayout::kDetails}) {
    for (bool wide : {false, true}) text += cli::inspect_text(*inspection, layout, wide);
  }
  for (const std::string& note : cli::inspect_notes(*inspection)) text += note;
  for (char c : text) promise(static_cast<unsigned char>(c) >= 0x20 || c == '\n', "nothing steers the terminal");
  for (const cli::InspectedNode& node : inspection->nodes) {
    promise(node.columns() <= 256, "columns are bounded");
    promise(node.total_units() >= 0 && node.allocated_units() >= 0 && node.pending_units() >= 0, "no sum is negative");
  }
  (void)json::to_string(cli::inspect_json(*inspection));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Result<json::Value> root = json::parse({reinterpret_cast<const char*>(data), size});
  if (!root || !root->is_object()) return 0;
  const json::Value* nodes = root->get_object().if_contains("nodes");
  const json::Value* pods = root->get_object().if_contains("pods");
  if (nodes != nullptr && pods != nullptr && nodes->is_array() && pods->is_array())
    look(nodes->get_array(), pods->get_array());
  return 0;
}
