// The admission webhook (admission.k8s.io/v1): says at `kubectl apply` what would otherwise be found out from a pod
// that stays Pending. Warnings by default; refusals by setting. Pods and the pod templates of Job, CronJob, Deployment,
// StatefulSet, ReplicaSet and DaemonSet are read; only pods are ever changed (a changed template drifts from its
// source).
#pragma once

#include <string>

#include "scheduler/http_server.h"
#include "scheduler/state.h"

namespace sluice::scheduler {

struct WebhookSettings {
  bool refuse = false;  // refuse wrong requests instead of warning
  std::string
      scheduler_name;  // not empty: pods that ask for shared cards get this schedulerName, if theirs is the default
  std::string toleration_key;  // not empty: and a toleration for this taint, effect NoSchedule
};

class Webhook {
 public:
  Webhook(State& state, WebhookSettings settings) : state_(state), settings_(std::move(settings)) {}
  ServerResponse review(const std::string& body);

 private:
  State& state_;
  WebhookSettings settings_;
};

}  // namespace sluice::scheduler
