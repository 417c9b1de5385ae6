#include "replay/arrivals.h"

#include <algorithm>
#include <numeric>

#include "replay/go_random.h"

namespace sluice::replay {
namespace {

constexpr size_t kMaxArrivals = 10'000'000;

template <typename Row>
std::vector<uint32_t> rows_by_name(const std::vector<Row>& rows) {
  std::vector<uint32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return rows[a].name < rows[b].name; });
  return order;
}

}  // namespace

Result<Arrivals> generate_arrivals(const std::vector<TraceNode>& nodes, const std::vector<TracePod>& pods, int64_t seed,
                                   double load) {
  GoRandom random(seed);
  random.bits64();  // the simulator prints one draw
  const std::vector<uint32_t> sorted = rows_by_name(pods);
  Arrivals arrivals;
  arrivals.pods = sorted;
  for (size_t i = arrivals.pods.size(); i > 1; --i)
    std::swap(arrivals.pods[i - 1], arrivals.pods[static_cast<size_t>(random.shuffle_below(static_cast<int32_t>(i)))]);

  auto asked = [&](uint32_t row) { return int64_t{pods[row].cards} * pods[row].card_milli; };
  int64_t requested = 0;
  for (uint32_t row : arrivals.pods) requested += asked(row);
  if (requested == 0) return invalid("pods: needs at least one that asks for a card, have none");
  const double target = load * static_cast<double>(total_card_milli(nodes));
  if (static_cast<double>(requested) > target) {
    while (static_cast<double>(requested) > target) {
      const int32_t index = random.below(static_cast<int32_t>(arrivals.pods.size()));
      requested -= asked(arrivals.pods[static_cast<size_t>(index)]);
      arrivals.pods.erase(arrivals.pods.begin() + index);
    }
  } else if (static_cast<double>(requested) < target) {
    for (;;) {
      // From the trace in its own order, not from the shuffled one. The bound counts one card of a multi-card pod.
      const uint32_t row = sorted[static_cast<size_t>(random.below(static_cast<int32_t>(sorted.size())))];
      if (static_cast<double>(requested + pods[row].card_milli) > target) break;
      if (arrivals.pods.size() >= kMaxArrivals) return exhausted("arrivals: needs a load that fewer pods reach");
      requested += asked(row);
      arrivals.pods.push_back(row);
    }
  }
  for (int i = 0; i < 10; ++i) random.bits64();  // informers of the simulator draw their time-outs

  // rand.Perm: node number i of the names in order has rank order[i].
  std::vector<uint32_t> order(nodes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t j = static_cast<size_t>(random.below(static_cast<int32_t>(i + 1)));
    order[i] = order[j];
    order[j] = static_cast<uint32_t>(i);
  }
  const std::vector<uint32_t> names = rows_by_name(nodes);
  arrivals.ranks.resize(nodes.size());
  for (size_t i = 0; i < names.size(); ++i) arrivals.ranks[names[i]] = order[i];
  return arrivals;
}

}  // namespace sluice::replay
