#include "kube/lease.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/steady.h"

namespace sluice::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// metav1.MicroTime.
std::string micro_time() {
  auto now = std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  auto seconds = std::chrono::time_point_cast<std::chrono::seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     (now - seconds).count());
}

const json::Object* spec_of(const json::Value& lease) {
  if (!lease.is_object()) return nullptr;
  const json::Value* spec = lease.get_object().if_contains("spec");
  return spec != nullptr && spec->is_object() ? &spec->get_object() : nullptr;
}

std::string holder_of(const json::Value& lease) {
  const json::Object* spec = spec_of(lease);
  if (spec == nullptr) return "";
  Result<std::string> holder = json::get_string_or(*spec, "holderIdentity", "");
  return holder ? *holder : "";
}

}  // namespace

LeaseStep decide_lease(const LeaseView& view, const std::string& identity) {
  if (!view.exists) return LeaseStep::kCreate;
  if (view.holder == identity) return LeaseStep::kRenew;
  if (view.holder.empty() || view.unchanged_for >= view.duration) return LeaseStep::kTake;
  return LeaseStep::kWait;
}

LeaderElection::LeaderElection(Endpoint endpoint, LeaseOptions options)
    : options_(std::move(options)),
      api_(std::move(endpoint)),
      path_(fmt::format("/apis/coordination.k8s.io/v1/namespaces/{}/leases", options_.name_space)) {
  api_.set_timeout(milliseconds(5'000));
}

LeaderElection::~LeaderElection() {
  stop();
}

void LeaderElection::start() {
  thread_ = std::thread([this] { run(); });
}

void LeaderElection::stop() {
  stopping_.store(true);
  if (thread_.joinable()) thread_.join();
}

bool LeaderElection::leading() const {
  int64_t renewed = renewed_at_ms_.load();
  return renewed != 0 && steady_ms() - renewed < options_.renew_deadline.count();
}

std::string LeaderElection::holder() const {
  std::lock_guard lock(mutex_);
  return holder_;
}

void LeaderElection::run() {
  while (!stopping_.load()) {
    step();
    auto until = steady_clock::now() + options_.retry;
    while (!stopping_.load() && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(20));
  }
  if (renewed_at_ms_.exchange(0) != 0) {
    ApiAnswer answer = api_.replace(path_ + "/" + options_.name, record("", false));
    if (!answer.ok()) log::warning("lease not given back", {{"reason", answer.message}});
  }
}

// The record that we want stored, carrying the resourceVersion that we saw: a competitor's change makes it a 409.
json::Value LeaderElection::record(const std::string& holder, bool taking) const {
  json::Object metadata{{"name", options_.name}, {"namespace", options_.name_space}};
  int64_t transitions = 0;
  std::string acquired = micro_time();
  if (const json::Object* spec = spec_of(seen_); spec != nullptr) {
    if (Result<int64_t> count = json::get_int_or(*spec, "leaseTransitions", 0); count) transitions = *count;
    Result<std::string> since = json::get_string_or(*spec, "acquireTime", "");
    if (!taking && since && !since->empty()) acquired = *since;
    if (const json::Value* old = seen_.get_object().if_contains("metadata"); old != nullptr && old->is_object()) {
      if (Result<std::string> version = json::get_string(old->get_object(), "resourceVersion"); version) {
        metadata["resourceVersion"] = *version;
      }
    }
  }
  return json::Object{{"apiVersion", "coordination.k8s.io/v1"},
                      {"kind", "Lease"},
                      {"metadata", metadata},
                      {"spec", json::Object{{"holderIdentity", holder},
                                            {"leaseDurationSeconds", options_.duration.count() / 1000},
                                            {"acquireTime", acquired},
                                            {"renewTime", micro_time()},
                                            {"leaseTransitions", transitions + (taking ? 1 : 0)}}}};
}

void LeaderElection::remember(const json::Value& lease) {
  if (lease == seen_) return;
  seen_ = lease;
  seen_at_ = steady_clock::now();
  std::lock_guard lock(mutex_);
  holder_ = holder_of(lease);
}

void LeaderElection::step() {
  ApiAnswer current = api_.get(path_ + "/" + options_.name);
  LeaseView view;
  if (current.ok()) {
    remember(current.body);
    view.exists = true;
    view.holder = holder_of(seen_);
    view.unchanged_for = std::chrono::duration_cast<milliseconds>(steady_clock::now() - seen_at_);
    view.duration = options_.duration;
    if (const json::Object* spec = spec_of(seen_); spec != nullptr) {
      Result<int64_t> seconds = json::get_int_or(*spec, "leaseDurationSeconds", options_.duration.count() / 1000);
      if (seconds) view.duration = std::chrono::seconds(*seconds);
    }
  } else if (current.status != 404) {
    log::warning("lease not read", {{"reason", current.message}});
    return;  // leading() runs out by itself
  }
  LeaseStep step = decide_lease(view, options_.identity);
  if (step == LeaseStep::kWait) {
    renewed_at_ms_.store(0);
    return;
  }
  int64_t asked_at = steady_ms();
  ApiAnswer answer = step == LeaseStep::kCreate ? api_.create(path_, record(options_.identity, true))
                                                : api_.replace(path_ + "/" + options_.name,
                                                               record(options_.identity, step == LeaseStep::kTake));
  if (answer.ok()) {
    remember(answer.body);
    renewed_at_ms_.store(asked_at);
  } else if (answer.definitely_refused()) {
    renewed_at_ms_.store(0);  // somebody else was quicker
  }
}

}  // namespace sluice::kube
