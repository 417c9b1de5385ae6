// Whose process is this? A process that holds a card is known to the driver by its pid alone; its control group says
// which pod and container it belongs to, because the kubelet and the container runtime put it there and nothing inside
// the container can move it out.
//
// The forms, all of which are read (sources: kubelet pkg/kubelet/cm/cgroup_manager_linux.go and helpers_linux.go for
// the pod's part, containerd internal/cri/server and runc libcontainer/cgroups for the container's part):
//   cgroupfs driver    /kubepods/burstable/pod<uid>/<container id>
//   systemd driver     /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid, '-' as '_'>.slice/
//                      cri-containerd-<container id>.scope        (crio-, docker- likewise)
//   systemd pod, cgroupfs container   .../kubepods-burstable-pod<uid>.slice:cri-containerd:<container id>
// with any cgroupRoot of the kubelet in front (/node-a/kubepods/..., /kubelet.slice/kubelet-kubepods.slice/...), in a
// line per hierarchy (v1) or in the one line "0::" (v2), and seen from a cgroup namespace ("/../../kubepods/...").
// What a container makes below its own group is ignored: the outermost pod counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::node {

struct CgroupOwner {
  std::string pod_uid;       // with '-', as the API writes it; of a static pod the 32 digits of its hash
  std::string container_id;  // 64 hex digits; empty: in the pod's group, in no container's

  bool operator==(const CgroupOwner&) const = default;
};

// The text of /proc/PID/cgroup. nullopt: no pod's.
std::optional<CgroupOwner> parse_cgroup(std::string_view text);

// A process as it stood when it was looked at. The start time tells it from a later one with the same pid.
struct ProcessSeen {
  int64_t pid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat
  std::string command;       // /proc/PID/comm, printable
  std::optional<CgroupOwner> owner;
};

// nullopt: there is no such process, or it has ended and waits to be reaped. `proc`: for tests.
std::optional<ProcessSeen> look_at_process(int64_t pid, const std::string& proc = "/proc");

// Sends SIGKILL to this process and to no other that may have its pid by now. False: it has ended already, or may not
// be killed by us.
bool stop_process(const ProcessSeen& process);

}  // namespace sluice::node
