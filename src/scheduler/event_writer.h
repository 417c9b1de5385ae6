// Events about pods (`kubectl describe pod` shows them), in the old core/v1 form that every client reads.
#pragma once

#include <string>

#include "kube/api_client.h"
#include "scheduler/state.h"

namespace sluice::scheduler {

struct PodEvent {
  State::Waiting pod;
  const char* type = "Warning";  // or "Normal"
  const char* reason = "";       // one word in CamelCase
  std::string text;
};

// A failure is logged: an event is news for people and nothing depends on it.
void write_event(kube::ApiClient& api, const std::string& source, const PodEvent& event);

}  // namespace sluice::scheduler
