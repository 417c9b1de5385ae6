#include "scheduler/event_writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/log.h"

namespace sluice::scheduler {

void write_event(kube::ApiClient& api, const std::string& source, const PodEvent& event) {
  const State::Waiting& pod = event.pod;
  auto now = std::chrono::system_clock::now();
  std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
  json::Object body{
      {"apiVersion", "v1"},
      {"kind", "Event"},
      {"metadata", json::Object{{"generateName", pod.name.substr(0, 200) + "."}, {"namespace", pod.name_space}}},
      {"involvedObject",
       json::Object{
           {"apiVersion", "v1"}, {"kind", "Pod"}, {"namespace", pod.name_space}, {"name", pod.name}, {"uid", pod.uid}}},
      {"reason", event.reason},
      {"message", event.text.substr(0, 1000)},
      {"type", event.type},
      {"source", json::Object{{"component", source}}},
      {"reportingComponent", source},
      {"firstTimestamp", time},
      {"lastTimestamp", time},
      {"count", 1}};
  kube::ApiAnswer answer =
      api.create(fmt::format("/api/v1/namespaces/{}/events", kube::url_encode(pod.name_space)), body);
  if (!answer.ok()) log::warning("event not written", {{"pod", pod.name}, {"reason", answer.message}});
}

}  // namespace sluice::scheduler
