// sluice-agent: one program for a machine of its own and for a Kubernetes node.
#include <cstring>

#include "agent/standalone.h"
#include "node/kubernetes_agent.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--kubernetes") == 0 || std::strcmp(argv[i], "--clean-up") == 0)
      return sluice::node::run_kubernetes(argc, argv);
  }
  return sluice::agent::run_standalone(argc, argv);
}
