// Prints the metrics of the made-up node of node/snapshot_testing.h. With an argument: its first container uses that
// many MiB, so that a scraper sees a value change.
#include <cstdio>
#include <cstdlib>

#include "node/snapshot_testing.h"

int main(int argc, char** argv) {
  sluice::node::NodeSnapshot snapshot = sluice::node::testing::example_snapshot();
  if (argc > 1) snapshot.node.grants[0].use[0].used_mib = std::strtol(argv[1], nullptr, 10);
  std::fputs(sluice::node::node_metrics_text(snapshot).c_str(), stdout);
  return 0;
}
