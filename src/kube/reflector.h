// Keeps a copy of one collection (pods, nodes) equal to the API server's: list, then watch from the list's version, for
// as long as it runs. One thread per reflector; what it sees is handed to a sink in order.
//
// Rules that are easy to get wrong, and are tested: the newest resourceVersion comes from every object and bookmark;
// versions are opaque, compared for nothing but equality; a watch that ends cleanly is resumed, not listed again; 410
// comes as an HTTP status or as an event inside a 200 and both mean a new list; a new list replaces everything (what is
// absent from it is gone); relists back off with jitter so that replicas do not list together. Resuming a watch costs
// the server little and its absence makes our copy old, so that is tried again within seconds, and at once anew after a
// watch that had worked, however often it is cut.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "base/json.h"
#include "kube/http_client.h"
#include "kube/watch_decoder.h"

namespace sluice::kube {

// Called from the reflector's thread.
class ReflectorSink {
 public:
  virtual ~ReflectorSink() = default;
  // The whole collection; what the sink holds and is not in `items` no longer exists.
  virtual void replaced(json::Array items) = 0;
  virtual void changed(json::Value object) = 0;  // added or modified
  virtual void deleted(json::Value object) = 0;  // its last state
};

struct ReflectorOptions {
  std::string path;            // e.g. /api/v1/pods
  std::string field_selector;  // not encoded
  std::string label_selector;  // not encoded
  std::chrono::milliseconds backoff_min{800};
  std::chrono::milliseconds backoff_max{30'000};  // before a list
  std::chrono::milliseconds resume_max{2'000};    // before a watch is resumed
  std::chrono::milliseconds backoff_reset{120'000};
  int watch_timeout_min_s = 300;  // the server ends a watch after a random time in [min, 2 min]
  uint64_t seed = 1;              // of the jitter
};

class Reflector {
 public:
  Reflector(Endpoint endpoint, ReflectorOptions options, ReflectorSink& sink);
  ~Reflector();  // stops and joins

  void start();
  void stop();

  // Milliseconds since the server was last heard from (list, event, bookmark, clean end of a watch).
  int64_t age_ms() const;
  uint64_t lists() const { return lists_.load(); }
  uint64_t watch_errors() const { return watch_errors_.load(); }

 private:
  enum class Outcome { kResume, kRelist, kFailed, kStopped };
  void run();
  Outcome list();
  Outcome watch();
  bool handle(WatchEvent& event, Outcome& outcome);
  std::string query(bool watching);
  void back_off(std::chrono::milliseconds most);
  uint64_t random();
  void heard();

  ReflectorOptions options_;
  ReflectorSink& sink_;
  HttpClient http_;
  std::string version_;
  std::chrono::milliseconds backoff_;
  std::chrono::steady_clock::time_point healthy_since_{};
  uint64_t random_state_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> heard_at_ms_{0};
  std::atomic<uint64_t> lists_{0};
  std::atomic<uint64_t> watch_errors_{0};
  std::thread thread_;
};

}  // namespace sluice::kube
