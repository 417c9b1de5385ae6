// A manifest, as `sluice run -f` reads it.
#include "cli/manifest.h"
#include "check.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<cli::JobSpec> job = cli::parse_manifest(text);
  promise(job.ok() || !job.error().message.empty(), "a refusal says why");
  promise(!job.ok() || !job->command.empty(), "a job has a command");
  promise(!job.ok() || job->kind == "Job" || job->kind == "Pod", "only Jobs and Pods are run");
  const std::string plain = cli::expand_references(text, {});
  promise(plain.size() <= text.size(), "unknown references stay as they are");
  return 0;
}
