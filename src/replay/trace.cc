#include "replay/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>

#include "replay/gzip.h"

namespace sluice::replay {
namespace {

constexpr size_t kMaxRows = 4'000'000;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t start = 0;;) {
    size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

// A table with its column names. Rows are read one by one, so that errors can say where.
class Table {
 public:
  Table(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}

  Result<void> each(const std::vector<std::string>& needed, const std::function<Result<void>(Table&)>& row) {
    for (std::string_view rest = text_; !rest.empty();) {
      size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++line_;
      if (line.empty()) continue;
      fields_ = split(line, ',');
      if (columns_.empty()) {
        for (size_t i = 0; i < fields_.size(); ++i) columns_[std::string(fields_[i])] = i;
        for (const std::string& name : needed)
          if (!columns_.contains(name))
            return invalid(fmt::format("{}: needs a column '{}' in its first line, have '{}'", path_, name, line));
        continue;
      }
      if (line_ > kMaxRows) return exhausted(fmt::format("{}: needs at most {} rows", path_, kMaxRows));
      if (Result<void> done = row(*this); !done) return done;
    }
    if (columns_.empty())
      return invalid(fmt::format("{}: needs a first line with column names, have an empty file", path_));
    return {};
  }

  std::string text(const std::string& column) const {
    auto found = columns_.find(column);
    return found == columns_.end() || found->second >= fields_.size() ? "" : std::string(fields_[found->second]);
  }

  // A whole number in [low, high]; times are written as 12.0 in some traces, so a fraction of zeros is allowed.
  Result<int64_t> number(const std::string& column, int64_t low, int64_t high, int64_t missing) const {
    std::string value = text(column);
    if (value.empty()) return missing;
    int64_t parsed = 0;
    auto [stop, failure] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    std::string_view rest(stop, static_cast<size_t>(value.data() + value.size() - stop));
    bool zeros = rest.empty() || (rest[0] == '.' && rest.find_first_not_of('0', 1) == std::string_view::npos);
    if (failure != std::errc() || !zeros || parsed < low || parsed > high)
      return invalid(fmt::format("{} line {}: column {} needs a whole number from {} to {}, have '{}'", path_, line_,
                                 column, low, high, value));
    return parsed;
  }

 private:
  std::string path_, text_;
  std::map<std::string, size_t> columns_;
  std::vector<std::string_view> fields_;
  size_t line_ = 0;
};

struct NumberColumn {
  const char* name;
  int64_t low, high, missing;
  int64_t* into;
};

Result<void> read_numbers(const Table& table, std::initializer_list<NumberColumn> columns) {
  for (const NumberColumn& column : columns) {
    Result<int64_t> value = table.number(column.name, column.low, column.high, column.missing);
    if (!value) return value.error();
    *column.into = *value;
  }
  return {};
}

constexpr int64_t kMaxMilli = 100'000'000;
constexpr int64_t kMaxMib = int64_t{1} << 40;
constexpr int64_t kMaxSeconds = int64_t{1} << 40;

struct ModelMemory {
  const char* model;
  int64_t mib;
};
constexpr ModelMemory kModelMemory[] = {
    {"P100", 16280}, {"T4", 15109}, {"V100M16", 16160}, {"V100M32", 32510},
    {"A10", 22731},  {"G1", 10000}, {"G2", 20000},      {"G3", 30000},
};

}  // namespace

Result<std::vector<TraceNode>> read_nodes(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  std::vector<TraceNode> nodes;
  Result<void> done =
      Table(path, std::move(*text)).each({"sn", "cpu_milli", "memory_mib", "gpu", "model"}, [&](Table& t) {
        TraceNode node;
        int64_t cards = 0;
        Result<void> read = read_numbers(t, {{"cpu_milli", 0, kMaxMilli, 0, &node.cpu_milli},
                                             {"memory_mib", 0, kMaxMib, 0, &node.memory_mib},
                                             {"gpu", 0, core::kMaxCardsPerNode, 0, &cards}});
        if (!read) return read;
        node.name = t.text("sn");
        node.cards = static_cast<int32_t>(cards);
        node.model = t.text("model");
        nodes.push_back(std::move(node));
        return read;
      });
  if (!done) return done.error();
  if (nodes.empty()) return invalid(fmt::format("{}: needs at least one node, have none", path));
  return nodes;
}

Result<std::vector<TracePod>> read_pods(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  std::vector<TracePod> pods;
  Result<void> done =
      Table(path, std::move(*text)).each({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, [&](Table& t) {
        TracePod pod;
        int64_t cards = 0, milli = 0;
        Result<void> read = read_numbers(t, {{"cpu_milli", 0, kMaxMilli, 0, &pod.cpu_milli},
                                             {"memory_mib", 0, kMaxMib, 0, &pod.memory_mib},
                                             {"num_gpu", 0, core::kMaxCardsPerNode, 0, &cards},
                                             {"gpu_milli", 0, kMaxMilli, kCardMilli, &milli},
                                             {"creation_time", 0, kMaxSeconds, 0, &pod.created_s},
                                             {"deletion_time", 0, kMaxSeconds, 0, &pod.deleted_s}});
        if (!read) return read;
        pod.name = t.text("name");
        pod.cards = static_cast<int32_t>(cards);
        pod.card_milli = pod.cards == 0 ? 0 : static_cast<int32_t>(std::min(milli, kCardMilli));
        if (pod.cards > 0 && pod.card_milli == 0) pod.card_milli = kCardMilli;
        pod.models = t.text("gpu_spec");
        pods.push_back(std::move(pod));
        return read;
      });
  if (!done) return done.error();
  if (pods.empty()) return invalid(fmt::format("{}: needs at least one pod, have none", path));
  return pods;
}

Result<SeedLists> read_seed_lists(const std::string& path, size_t bound) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  SeedLists lists;
  size_t line_number = 0;
  for (std::string_view line : split(*text, '\n')) {
    ++line_number;
    if (line.empty()) continue;
    int64_t seed = 0;
    bool first = true;
    std::vector<uint32_t> list;
    for (std::string_view field : split(line, ' ')) {
      int64_t value = 0;
      auto [stop, failure] = std::from_chars(field.data(), field.data() + field.size(), value);
      if (failure != std::errc() || stop != field.data() + field.size() ||
          (!first && (value < 0 || value >= static_cast<int64_t>(bound))))
        return invalid(fmt::format("{} line {}: needs 'seed i0 i1 ...' with row numbers below {}, have '{}'", path,
                                   line_number, bound, field.substr(0, 40)));
      if (first)
        seed = value;
      else
        list.push_back(static_cast<uint32_t>(value));
      first = false;
    }
    lists[seed] = std::move(list);
  }
  if (lists.empty()) return invalid(fmt::format("{}: needs at least one line 'seed i0 i1 ...', have none", path));
  return lists;
}

int64_t total_card_milli(const std::vector<TraceNode>& nodes) {
  int64_t total = 0;
  for (const TraceNode& node : nodes) total += node.cards * kCardMilli;
  return total;
}

std::vector<std::string> split_models(const std::string& joined) {
  std::vector<std::string> models;
  if (joined.empty()) return models;
  for (std::string_view model : split(joined, '|'))
    if (!model.empty()) models.emplace_back(model);
  return models;
}

core::Node one_dimensional_node(const TraceNode& from) {
  core::Node node;
  node.name = from.name;
  node.mode = core::NodeMode::kCoreMemory;
  node.max_pods_per_card = 0;
  node.cpu_milli = node.free_cpu_milli = from.cpu_milli;
  node.memory_mib = node.free_memory_mib = from.memory_mib;
  for (int32_t i = 0; i < from.cards; ++i) {
    core::Card card;
    card.index = i;
    card.model = from.model;
    card.memory_mib = model_memory_mib(from.model);
    card.units = card.free_units = kCardMilli;
    node.cards.push_back(std::move(card));
  }
  return node;
}

core::Request one_dimensional_request(const TracePod& pod) {
  core::Request request;
  request.cpu_milli = pod.cpu_milli;
  request.memory_mib = pod.memory_mib;
  if (pod.cards == 0) return request;
  request.kind = core::Kind::kMemoryCore;
  request.cards = pod.cards;
  request.units = pod.card_milli;
  request.core_milli = pod.card_milli;
  request.models = split_models(pod.models);
  return request;
}

int64_t model_memory_mib(const std::string& model) {
  for (const ModelMemory& known : kModelMemory)
    if (model == known.model) return known.mib;
  return 20000;
}

}  // namespace sluice::replay
