// The text of /proc/PID/cgroup: whoever may make control groups chooses names in it.
#include "node/cgroup.h"

#include "check.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::optional<node::CgroupOwner> owner = node::parse_cgroup({reinterpret_cast<const char*>(data), size});
  if (!owner) return 0;
  promise(owner->pod_uid.size() == 36 || owner->pod_uid.size() == 32, "a pod's UID has the form of one");
  promise(owner->pod_uid.find_first_not_of("0123456789abcdefABCDEF-") == std::string::npos, "and its characters");
  promise(owner->container_id.empty() || owner->container_id.size() == 64, "a container's id likewise");
  promise(owner->container_id.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos, "and its characters");
  return 0;
}
