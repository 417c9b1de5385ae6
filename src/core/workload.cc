#include "core/workload.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

namespace sluice::core {
namespace {

using Key = std::tuple<int64_t, int32_t, int32_t, std::string, int, int64_t>;

Key key_of(const Request& request) {
  std::string models;
  for (const std::string& model : request.models) models += (models.empty() ? "" : "|") + model;
  return {request.cpu_milli, request.core_milli, request.cards, models, static_cast<int>(request.kind), request.units};
}

}  // namespace

Workload learn_workload(std::span<const Request> requests, double covered) {
  struct Group {
    int64_t count = 0;
    const Request* first = nullptr;
  };
  std::map<Key, Group> groups;
  for (const Request& request : requests) {
    Group& group = groups[key_of(request)];
    ++group.count;
    if (group.first == nullptr) group.first = &request;
  }
  std::vector<std::pair<Key, Group>> sorted(groups.begin(), groups.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.count != b.second.count ? a.second.count > b.second.count : a.first > b.first;
  });
  // Two divisions where one would do, as the published code computes it: the last bit of a popularity can decide a
  // score.
  Workload workload;
  double kept = 0;
  const double total = static_cast<double>(requests.size());
  for (const auto& [key, group] : sorted) {
    if (kept >= covered * total) break;
    TaskClass task{*group.first, static_cast<double>(group.count) / total};
    kept += static_cast<double>(group.count);
    task.request.memory_mib = 0;
    workload.classes.push_back(std::move(task));
  }
  for (TaskClass& task : workload.classes) task.popularity /= kept / total;
  return workload;
}

}  // namespace sluice::core
