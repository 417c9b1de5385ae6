// The agent of one machine without Kubernetes: `sluice run` starts it, or root does.
#pragma once

namespace sluice::agent {

// The whole program; its exit code.
int run_standalone(int argc, char** argv);

}  // namespace sluice::agent
