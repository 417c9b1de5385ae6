// Every field of a Job, a Pod and a container that Kubernetes knows, and what `sluice run -f` does with it.
#pragma once

#include <span>
#include <string_view>

namespace sluice::cli {

enum class FieldUse {
  kUsed,     // read
  kQuiet,    // has no meaning on one machine, and nobody would expect one
  kIgnored,  // left aside, and said
  kRefused,  // the command would not do what the manifest says
};

struct Field {
  std::string_view name;
  FieldUse use;
  std::string_view reason = {};  // kRefused: ends the sentence "... is not supported: "
};

inline constexpr Field kObjectFields[] = {
    {"apiVersion", FieldUse::kUsed}, {"kind", FieldUse::kUsed},    {"metadata", FieldUse::kUsed},
    {"spec", FieldUse::kUsed},       {"status", FieldUse::kQuiet},
};

inline constexpr Field kJobFields[] = {
    {"template", FieldUse::kUsed},
    {"completions", FieldUse::kUsed},
    {"parallelism", FieldUse::kUsed},
    {"completionMode", FieldUse::kUsed},
    {"suspend", FieldUse::kUsed},
    {"activeDeadlineSeconds", FieldUse::kIgnored},
    {"backoffLimit", FieldUse::kIgnored},
    {"backoffLimitPerIndex", FieldUse::kIgnored},
    {"maxFailedIndexes", FieldUse::kIgnored},
    {"podFailurePolicy", FieldUse::kIgnored},
    {"podReplacementPolicy", FieldUse::kQuiet},
    {"successPolicy", FieldUse::kQuiet},
    {"selector", FieldUse::kQuiet},
    {"manualSelector", FieldUse::kQuiet},
    {"managedBy", FieldUse::kQuiet},
    {"ttlSecondsAfterFinished", FieldUse::kQuiet},
};

inline constexpr Field kTemplateFields[] = {
    {"metadata", FieldUse::kUsed},
    {"spec", FieldUse::kUsed},
};

inline constexpr Field kPodFields[] = {
    {"containers", FieldUse::kUsed},
    {"volumes", FieldUse::kUsed},
    {"initContainers", FieldUse::kRefused, "only the one main container is run; do its work before, or in the command"},
    {"ephemeralContainers", FieldUse::kRefused, "only the one main container is run"},
    {"resourceClaims", FieldUse::kRefused, "cards are asked for by aliyun.com/gpu-mem or nvidia.com/gpu here"},
    {"resources", FieldUse::kRefused, "write the card's share into the container's resources"},
    {"activeDeadlineSeconds", FieldUse::kIgnored},
    {"affinity", FieldUse::kIgnored},
    {"automountServiceAccountToken", FieldUse::kQuiet},
    {"dnsConfig", FieldUse::kIgnored},
    {"dnsPolicy", FieldUse::kQuiet},
    {"enableServiceLinks", FieldUse::kQuiet},
    {"hostAliases", FieldUse::kIgnored},
    {"hostIPC", FieldUse::kQuiet},
    {"hostNetwork", FieldUse::kQuiet},
    {"hostPID", FieldUse::kQuiet},
    {"hostUsers", FieldUse::kQuiet},
    {"hostname", FieldUse::kIgnored},
    {"hostnameOverride", FieldUse::kIgnored},
    {"imagePullSecrets", FieldUse::kQuiet},
    {"nodeName", FieldUse::kIgnored},
    {"nodeSelector", FieldUse::kIgnored},
    {"os", FieldUse::kQuiet},
    {"overhead", FieldUse::kQuiet},
    {"preemptionPolicy", FieldUse::kQuiet},
    {"priority", FieldUse::kIgnored},
    {"priorityClassName", FieldUse::kIgnored},
    {"readinessGates", FieldUse::kQuiet},
    {"restartPolicy", FieldUse::kIgnored},
    {"runtimeClassName", FieldUse::kIgnored},
    {"schedulerName", FieldUse::kQuiet},
    {"schedulingGates", FieldUse::kQuiet},
    {"securityContext", FieldUse::kIgnored},
    {"serviceAccount", FieldUse::kQuiet},
    {"serviceAccountName", FieldUse::kQuiet},
    {"setHostnameAsFQDN", FieldUse::kQuiet},
    {"shareProcessNamespace", FieldUse::kQuiet},
    {"subdomain", FieldUse::kIgnored},
    {"terminationGracePeriodSeconds", FieldUse::kQuiet},
    {"tolerations", FieldUse::kQuiet},
    {"topologySpreadConstraints", FieldUse::kQuiet},
};

inline constexpr Field kContainerFields[] = {
    {"name", FieldUse::kUsed},
    {"command", FieldUse::kUsed},
    {"args", FieldUse::kUsed},
    {"env", FieldUse::kUsed},
    {"workingDir", FieldUse::kUsed},
    {"resources", FieldUse::kUsed},
    {"volumeMounts", FieldUse::kUsed},
    {"securityContext", FieldUse::kUsed},
    {"envFrom", FieldUse::kRefused, "config maps and secrets live in a cluster; write the variables into env"},
    {"lifecycle", FieldUse::kRefused, "hooks are not run; put their work into the command"},
    {"volumeDevices", FieldUse::kRefused, "block devices of a cluster are not here"},
    {"image", FieldUse::kIgnored},
    {"imagePullPolicy", FieldUse::kQuiet},
    {"livenessProbe", FieldUse::kIgnored},
    {"readinessProbe", FieldUse::kIgnored},
    {"startupProbe", FieldUse::kIgnored},
    {"ports", FieldUse::kQuiet},
    {"resizePolicy", FieldUse::kQuiet},
    {"restartPolicy", FieldUse::kIgnored},
    {"restartPolicyRules", FieldUse::kIgnored},
    {"stdin", FieldUse::kQuiet},
    {"stdinOnce", FieldUse::kQuiet},
    {"terminationMessagePath", FieldUse::kQuiet},
    {"terminationMessagePolicy", FieldUse::kQuiet},
    {"tty", FieldUse::kQuiet},
};

inline constexpr Field kResourceFields[] = {
    {"limits", FieldUse::kUsed},
    {"requests", FieldUse::kUsed},
    {"claims", FieldUse::kRefused, "cards are asked for by aliyun.com/gpu-mem or nvidia.com/gpu here"},
};

}  // namespace sluice::cli
