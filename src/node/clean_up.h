// What an agent leaves on a node stays there when it ends, because pods run on under it. This takes it away for ever,
// when Sluice is removed from the node.
#pragma once

#include "base/result.h"
#include "node/options.h"

namespace sluice::node {

// Labels, annotations, conditions and capacity of the node object; CDI specs; mounts and content of run and state
// directory. kExists: an agent serves the node, or pods hold shares (--force goes on all the same for the latter).
Result<void> clean_up(const Options& options);

// As a DaemonSet does it: tries again every second while pods hold shares (/readyz answers 503), and when all is gone
// stays (/readyz 200) until stop_fd is readable.
Result<void> clean_up_and_wait(const Options& options, int stop_fd);

}  // namespace sluice::node
