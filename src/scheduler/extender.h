// The scheduler extender's wire format (k8s.io/kube-scheduler/extender/v1): JSON in, JSON out, over the state. Keys are
// Go field names and are read in any case, as Go does. An error of ours is HTTP 200 with `Error` set only where the
// protocol wants it; a body that cannot be read is a 4xx with a sentence.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "scheduler/http_server.h"
#include "scheduler/state.h"

namespace sluice::scheduler {

struct BindRequest {
  std::string uid;
  std::string name_space;
  std::string name;
  std::string node;
};

class Extender {
 public:
  // `bind` does the I/O of a binding: empty text on success, else the reason.
  Extender(State& state, kube::NodeSettings settings, std::function<std::string(const BindRequest&)> bind)
      : state_(state), settings_(settings), bind_(std::move(bind)) {}

  ServerResponse filter(const std::string& body);
  ServerResponse prioritize(const std::string& body);
  ServerResponse bind(const std::string& body);
  ServerResponse preempt(const std::string& body);

 private:
  State& state_;
  kube::NodeSettings settings_;
  std::function<std::string(const BindRequest&)> bind_;
};

// A member by name in any case; nullptr when absent or null.
const json::Value* find_any_case(const json::Object& object, std::string_view key);

}  // namespace sluice::scheduler
