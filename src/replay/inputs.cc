#include "replay/inputs.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "replay/gzip.h"
#include "replay/setup.h"
#include "replay/two_dim.h"

namespace sluice::replay {
namespace {

// The file itself or its packed form.
std::string either(const std::string& path) {
  return !std::filesystem::exists(path) && std::filesystem::exists(path + ".gz") ? path + ".gz" : path;
}

std::string name_of(const std::string& pods_path) {
  std::string name = std::filesystem::path(pods_path).filename().string();
  for (const char* suffix : {".gz", ".csv"})
    if (name.ends_with(suffix)) name.resize(name.size() - std::string(suffix).size());
  const std::string prefix = "openb_pod_list_";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

std::vector<std::string> trace_names(const ReplayOptions& options) {
  return options.data.empty() ? std::vector<std::string>{name_of(options.pods)} : options.traces;
}

Result<TraceInput> read_input(const ReplayOptions& options, const std::string& trace) {
  TraceInput input;
  input.name = trace;
  const bool folder = !options.data.empty();
  const std::string nodes_path = folder ? either(options.data + "/openb_node_list_gpu_node.csv") : options.nodes;
  const std::string pods_path = folder ? either(options.data + "/openb_pod_list_" + trace + ".csv") : options.pods;
  std::string arrivals = options.arrivals, ranks = options.ranks;
  if (folder && !options.generate) {
    arrivals = options.data + "/arrivals/" + trace + ".pods.txt.gz";
    ranks = options.data + "/arrivals/" + trace + ".nodes.txt.gz";
    if (!std::filesystem::exists(arrivals) || !std::filesystem::exists(ranks)) arrivals.clear();
  }
  Result<std::vector<TraceNode>> nodes = read_nodes(nodes_path);
  if (!nodes) return nodes.error();
  Result<std::vector<TracePod>> pods = read_pods(pods_path);
  if (!pods) return pods.error();
  input.nodes = std::move(*nodes);
  input.pods = std::move(*pods);
  if (arrivals.empty()) return input;
  Result<SeedLists> orders = read_seed_lists(arrivals, input.pods.size());
  if (!orders) return orders.error();
  Result<SeedLists> tie_ranks = read_seed_lists(ranks, input.nodes.size());
  if (!tie_ranks) return tie_ranks.error();
  input.stored_arrivals = std::move(*orders);
  input.stored_ranks = std::move(*tie_ranks);
  return input;
}

Result<Arrivals> arrivals_of(const TraceInput& input, int64_t seed, double load) {
  if (input.stored_arrivals.empty()) return generate_arrivals(input.nodes, input.pods, seed, load);
  auto order = input.stored_arrivals.find(seed);
  auto ranks = input.stored_ranks.find(seed);
  if (order == input.stored_arrivals.end() || ranks == input.stored_ranks.end())
    return invalid(
        fmt::format("seed {}: needs a line in the stored arrivals and ranks, have seeds {} to {}; --generate "
                    "makes others",
                    seed, input.stored_arrivals.begin()->first, input.stored_arrivals.rbegin()->first));
  return Arrivals{order->second, ranks->second};
}

Result<Experiment> experiment_of(const TraceInput& input, Arrivals arrivals, const ReplayOptions& options) {
  if (options.two_dim)
    return two_dimensional(input.nodes, input.pods, std::move(arrivals.pods), std::move(arrivals.ranks),
                           *options.two_dim);
  return one_dimensional(input.nodes, input.pods, std::move(arrivals.pods), std::move(arrivals.ranks));
}

Result<std::vector<Published>> read_published(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  std::istringstream lines(*text);
  std::string line;
  std::vector<std::string> header;
  std::vector<Published> rows;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::vector<std::string> values;
    for (std::string value; std::getline(fields, value, ',');) values.push_back(value);
    if (header.empty()) {
      header = values;
      continue;
    }
    std::map<std::string, std::string> by_name;
    for (size_t i = 0; i < values.size() && i < header.size(); ++i) by_name[header[i]] = values[i];
    auto number = [&](const char* column) { return std::strtod(by_name[column].c_str(), nullptr); };
    rows.push_back({by_name["trace"], by_name["policy"], static_cast<int64_t>(number("seed")), number("alloc_pct_100"),
                    number("alloc_pct_130"), number("frag_pct_of_total_130")});
  }
  if (rows.empty()) return invalid(fmt::format("{}: needs rows of published results, have none", path));
  return rows;
}

}  // namespace sluice::replay
