// The tables of `kubectl inspect cgpu`: lines with tabs, aligned at the end. Columns, rules and the spaces between are
// ACK's; what is ours stands to the right of it: compute (only where a node isolates it) and what -o wide adds.
#include <fmt/format.h>

#include <algorithm>

#include "cli/inspect.h"
#include "cli/tab_columns.h"
#include "cli/table.h"

namespace sluice::cli {
namespace {

constexpr size_t kTextWidth = 64;
constexpr const char* kNone = "-";

std::string share_of(int64_t part, int64_t whole) {
  return fmt::format("{}/{}", part, whole);
}

int64_t percent(int64_t part, int64_t whole) {
  return whole > 0 ? part * 100 / whole : 0;
}

// By the pods' word: a card that has left the node may still be held.
InspectedShare allocated_on(const InspectedNode& node, int32_t index) {
  InspectedShare sum;
  for (const InspectedPod& pod : node.pods) {
    const auto found = pod.cards.find(index);
    if (found == pod.cards.end()) continue;
    sum.units += found->second.units;
    sum.core_percent += found->second.core_percent;
  }
  return sum;
}

struct Totals {
  int64_t units = 0, allocated_units = 0, core = 0, allocated_core = 0;
};

Totals totals_of(const Inspection& inspection) {
  Totals sum;
  for (const InspectedNode& node : inspection.nodes) {
    sum.units += node.total_units();
    sum.allocated_units += node.allocated_units();
    sum.core += node.total_core();
    sum.allocated_core += node.isolates_compute ? node.allocated_core() : 0;
  }
  return sum;
}

bool any_compute(const Inspection& inspection) {
  return std::any_of(inspection.nodes.begin(), inspection.nodes.end(),
                     [](const InspectedNode& node) { return node.isolates_compute; });
}

std::string model_of(const InspectedNode& node) {
  std::string text;
  for (const InspectedCard& card : node.cards) {
    if (card.model.empty() || text.find(card.model) != std::string::npos) continue;
    text += (text.empty() ? "" : ", ") + card.model;
  }
  return text.empty() ? kNone : fit(text, kTextWidth);
}

std::string unhealthy_of(const InspectedNode& node) {
  return std::to_string(
      std::count_if(node.cards.begin(), node.cards.end(), [](const InspectedCard& card) { return !card.healthy; }));
}

std::string summary_header(const Inspection& inspection, int32_t columns, bool pending, bool compute, bool wide) {
  std::string line = "NAME\tIPADDRESS\t";
  for (int32_t i = 0; i < columns; ++i) line += fmt::format("GPU{}(Allocated/Total)\t", i);
  if (pending) line += "PENDING(Allocated)\t";
  line += fmt::format("GPU Memory({})", inspection.memory_unit);
  if (compute) {
    for (int32_t i = 0; i < columns; ++i) line += fmt::format("\tCORE{}(%)", i);
    line += "\tGPU Core(%)";
  }
  if (wide) line += "\tMODE\tPODS\tUNHEALTHY\tMODEL";
  return line + "\n";
}

std::string summary_row(const InspectedNode& node, int32_t columns, bool pending, bool compute, bool wide) {
  std::string line = fmt::format("{}\t{}\t", node.name, node.address);
  for (int32_t i = 0; i < columns; ++i) {
    const InspectedCard* card = node.card(i);
    line += share_of(allocated_on(node, i).units, card == nullptr ? 0 : card->units) + "\t";
  }
  if (pending) line += (node.has_pending() ? std::to_string(node.pending_units()) : "") + "\t";
  line += share_of(node.allocated_units(), node.total_units());
  if (compute) {
    for (int32_t i = 0; i < columns; ++i) {
      const bool there = node.isolates_compute && node.card(i) != nullptr;
      line += "\t" + (there ? share_of(allocated_on(node, i).core_percent, 100) : std::string(kNone));
    }
    line += "\t" + (node.isolates_compute ? share_of(node.allocated_core(), node.total_core()) : std::string(kNone));
  }
  if (wide) line += fmt::format("\t{}\t{}\t{}\t{}", node.mode, node.pods.size(), unhealthy_of(node), model_of(node));
  return line + "\n";
}

std::string summary(const Inspection& inspection, bool wide) {
  int32_t columns = 0;
  bool pending = false;
  for (const InspectedNode& node : inspection.nodes) {
    columns = std::max(columns, node.columns());
    pending = pending || node.has_pending();
  }
  const bool compute = any_compute(inspection);
  const Totals sum = totals_of(inspection);
  std::string text = summary_header(inspection, columns, pending, compute, wide);
  size_t rule = 0;
  for (const InspectedNode& node : inspection.nodes) {
    const std::string row = summary_row(node, columns, pending, compute, wide);
    if (rule == 0) rule = row.size() + 20;
    text += row;
  }
  text += std::string(rule, '-') + "\n";
  text += fmt::format("Allocated/Total GPU Memory In Cluster:\n{} ({}%)\t\n", share_of(sum.allocated_units, sum.units),
                      percent(sum.allocated_units, sum.units));
  if (compute) {
    text += fmt::format("Allocated/Total GPU Core In Cluster:\n{} ({}%)\t\n", share_of(sum.allocated_core, sum.core),
                        percent(sum.allocated_core, sum.core));
  }
  return align_tabs(text);
}

const char* record_word(RecordKind kind) {
  switch (kind) {
    case RecordKind::kSluice:
      return "sluice";
    case RecordKind::kAck:
      return "ack";
    case RecordKind::kOldAck:
      return "ack-v1";
    case RecordKind::kNone:
      break;
  }
  return kNone;
}

// "train=10/30%, side=2/5%": units and compute over all cards of each container.
std::string containers_text(const InspectedPod& pod) {
  std::string text;
  for (const InspectedContainer& container : pod.containers) {
    InspectedShare sum;
    for (const auto& [index, share] : container.cards) {
      sum.units += share.units;
      sum.core_percent += share.core_percent;
    }
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", container.name, sum.units);
    if (sum.core_percent > 0) text += fmt::format("/{}%", sum.core_percent);
  }
  return text.empty() ? kNone : fit(text, kTextWidth);
}

std::string pod_row(const InspectedNode& node, const InspectedPod& pod, int32_t columns, bool wide) {
  const bool waits = pod.cards.empty();
  const auto on = [&](int32_t index) {
    const auto found = pod.cards.find(index);
    return found == pod.cards.end() ? InspectedShare{} : found->second;
  };
  std::string line = fmt::format("{}\t{}\t", pod.name, pod.name_space);
  for (int32_t i = 0; i < columns; ++i) line += fmt::format("{}\t", on(i).units);
  if (node.has_pending()) line += fmt::format("{}\t", waits ? pod.asked_units : 0);
  if (node.isolates_compute) {
    for (int32_t i = 0; i < columns; ++i) line += fmt::format("{}\t", on(i).core_percent);
    if (node.has_pending()) line += fmt::format("{}\t", waits ? pod.asked_core : 0);
  }
  if (wide) {
    line += fmt::format("{}\t{}\t{}\t",
                        pod.deleting        ? "Terminating"
                        : pod.phase.empty() ? kNone
                                            : pod.phase,
                        containers_text(pod), record_word(pod.record));
  }
  return line + "\n";
}

std::string details_header(const InspectedNode& node, int32_t columns, bool wide) {
  std::string line = "NAME\tNAMESPACE\t";
  for (int32_t i = 0; i < columns; ++i) line += fmt::format("GPU{}(Allocated)\t", i);
  if (node.has_pending()) line += "Pending(Allocated)\t";
  if (node.isolates_compute) {
    for (int32_t i = 0; i < columns; ++i) line += fmt::format("CORE{}(%)\t", i);
    if (node.has_pending()) line += "Pending CORE(%)\t";
  }
  if (wide) line += "STATUS\tCONTAINERS\tRECORD\t";
  return line + "\n";
}

std::string wide_head(const InspectedNode& node) {
  std::string text = fmt::format("MODE:\t{}\n", node.mode);
  for (const InspectedCard& card : node.cards) {
    text += fmt::format(
        "GPU{}:\t{}, {}, {}{}\n", card.index, card.model.empty() ? "model not reported" : fit(card.model, kTextWidth),
        card.memory_mib > 0 ? fmt::format("{} MiB", card.memory_mib) : "size not reported",
        card.uuid.empty() ? "UUID not reported" : fit(card.uuid, kTextWidth), card.healthy ? "" : ", not healthy");
  }
  return text;
}

std::string details(const Inspection& inspection, bool wide) {
  std::string text;
  size_t rule = 0;
  for (const InspectedNode& node : inspection.nodes) {
    if (node.total_units() <= 0 && node.pods.empty()) continue;  // ACK leaves nodes without units out; notes name them
    const int32_t columns = node.columns();
    text += fmt::format("\nNAME:\t{}\nIPADDRESS:\t{}\n", node.name, node.address);
    if (wide) text += wide_head(node);
    text += "\n" + details_header(node, columns, wide);
    std::string rows;
    for (const InspectedPod& pod : node.pods) rows += pod_row(node, pod, columns, wide);
    if (rule == 0) rule = rows.size() + 10;
    text += rows;
    const int64_t allocated = node.allocated_units();
    text += fmt::format("Allocated :\t{} ({}%)\t\nTotal :\t{} \t\n", allocated, percent(allocated, node.total_units()),
                        node.total_units());
    if (node.isolates_compute) {
      text += fmt::format("Allocated Core :\t{} ({}%)\t\nTotal Core :\t{} \t\n", node.allocated_core(),
                          percent(node.allocated_core(), node.total_core()), node.total_core());
    }
    text += std::string(rule, '-') + "\n";
  }
  const Totals sum = totals_of(inspection);
  text += fmt::format("\n\nAllocated/Total GPU Memory In Cluster:\t{} ({}%)\t\n",
                      share_of(sum.allocated_units, sum.units), percent(sum.allocated_units, sum.units));
  if (any_compute(inspection)) {
    text += fmt::format("Allocated/Total GPU Core In Cluster:\t{} ({}%)\t\n", share_of(sum.allocated_core, sum.core),
                        percent(sum.allocated_core, sum.core));
  }
  return align_tabs(text);
}

}  // namespace

std::string inspect_text(const Inspection& inspection, InspectLayout layout, bool wide) {
  if (inspection.nodes.empty()) return "";
  return layout == InspectLayout::kSummary ? summary(inspection, wide) : details(inspection, wide);
}

}  // namespace sluice::cli
