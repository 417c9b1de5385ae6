// Which thread calls, in a real process: the address of a word that each thread has of its own.
#include "guest/compute.h"

namespace sluice::guest {

namespace {
thread_local char anchor;
}

uint64_t current_thread_key() {
  return reinterpret_cast<uint64_t>(&anchor);
}

}  // namespace sluice::guest
