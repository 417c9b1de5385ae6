// Reads the batch/v1 Job and v1 Pod manifests that `sluice run -f` takes, the very files that a cluster takes.
//
// There is no container here: the command runs on this machine, as the caller, with the limits of a container. What the
// manifest says therefore falls into three kinds, listed field by field in manifest_fields.h: used (command, args, env,
// workingDir, card requests), left aside because it steers a cluster or an image (said in JobSpec::ignored), and
// refused because without it the command would not do what the manifest says (init containers, volumes, secrets). A
// field that Kubernetes does not know is refused as well: it is a typing mistake, and the API server says so too.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::cli {

inline constexpr const char* kEnvWeight = "ALIYUN_COM_GPU_SCHD_WEIGHT";
inline constexpr const char* kEnvHighPriority = "ALIYUN_COM_GPU_HIGH_PRIO";

// One container of one Job or Pod, ready to be started.
struct JobSpec {
  std::string kind;                                      // "Job" or "Pod"
  std::string name;                                      // metadata.name
  std::string container;                                 // the container's name
  std::vector<std::string> command;                      // command and args, $(NAME) expanded; never empty
  std::vector<std::pair<std::string, std::string>> env;  // in order, expanded
  std::string working_directory;                         // empty: the caller's
  // Resources as written ("10"); absent: not written.
  std::optional<std::string> memory_units;
  std::optional<std::string> core_percent;
  std::optional<std::string> whole_cards;
  std::optional<std::string> card_count;  // the label aliyun.com/gpu-count
  std::optional<std::string> weight;      // from the env, as on a cluster
  bool high_priority = false;
  std::vector<std::string> ignored;  // fields left aside, "image", in the manifest's order
};

// The one Job or Pod of a manifest text, or the one called `job` when that is given. Errors (kInvalid, kNotFound) name
// the field by its path ("spec.template.spec.containers[0].env[1]"), what was found and what to write instead.
Result<JobSpec> parse_manifest(std::string_view text, const std::string& job = "");

// $(NAME) becomes the value of the last such name in `env`, $$ a dollar sign; an unknown name stays as it is. The rules
// of Kubernetes for command, args and env values.
std::string expand_references(std::string_view text, const std::vector<std::pair<std::string, std::string>>& env);

}  // namespace sluice::cli
