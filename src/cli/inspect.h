// What `kubectl inspect cgpu` knows about a cluster: its sharing nodes, their cards and who holds what of them, read
// from the objects of the API. Pure: JSON in, values out, values to text. The layouts are those that users of ACK have
// scripts for (tab_columns.h), columns for compute are added where a node isolates compute.
//
// What counts as a pod's cards. On a node of Sluice's agent: the scheduler's record (sluice.dev/allocation), nothing
// else, since users may write the other annotations themselves. On other nodes (ACK's own, open gpushare): the record
// under scheduler.framework.gpushare.allocation, else the older ALIYUN_COM_GPU_MEM_* annotations. A pod without cards
// is PENDING on its node and counts as allocated nowhere.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "kube/signature.h"

namespace sluice::cli {

// A part of one card, in the cluster's memory units and percent.
struct InspectedShare {
  int64_t units = 0;
  int64_t core_percent = 0;  // 0: not limited
};
using SharesByCard = std::map<int32_t, InspectedShare>;  // by card index

struct InspectedContainer {
  std::string name;
  SharesByCard cards;
};

enum class RecordKind {
  kNone,
  kSluice,  // sluice.dev/allocation
  kAck,     // scheduler.framework.gpushare.allocation
  kOldAck,  // ALIYUN_COM_GPU_MEM_IDX and its like
};

struct InspectedPod {
  std::string name_space;
  std::string name;
  std::string uid;
  std::string phase;
  bool deleting = false;
  int64_t asked_units = 0;  // of all cards together
  int64_t asked_core = 0;
  RecordKind record = RecordKind::kNone;
  SharesByCard cards;                          // empty: PENDING
  std::vector<InspectedContainer> containers;  // those that ask, where the record tells them apart
  std::string problem;                         // one sentence; empty: none
};

struct InspectedCard {
  int32_t index = 0;
  std::string uuid;   // empty: the node does not say
  std::string model;  // likewise
  int64_t memory_mib = 0;
  int64_t units = 0;
  bool healthy = true;
  int64_t allocated_units = 0;
  int64_t allocated_core = 0;
};

struct InspectedNode {
  std::string name;
  std::string address = "unknown";
  std::string mode;                  // the label's word that is in force
  bool has_agent = false;            // carries the annotation of Sluice's agent
  bool isolates_compute = false;     // 100 percent of compute per card are given out
  std::vector<InspectedCard> cards;  // by index
  std::vector<InspectedPod> pods;    // by card, those without one last
  std::vector<std::string> problems;

  int32_t columns() const;  // one per index up to the highest that a card or a pod names
  const InspectedCard* card(int32_t index) const;
  int64_t total_units() const;
  int64_t allocated_units() const;
  int64_t pending_units() const;
  int64_t total_core() const { return isolates_compute ? 100 * static_cast<int64_t>(cards.size()) : 0; }
  int64_t allocated_core() const;
  bool has_pending() const;
};

struct Inspection {
  std::string memory_unit = "GiB";
  std::vector<InspectedNode> nodes;  // sharing nodes, by name
  std::vector<std::string> notes;    // one sentence each, about the whole
};

struct InspectOptions {
  std::vector<std::string> names;        // only these nodes; empty: all that share
  const kube::Verifier* keys = nullptr;  // the scheduler's public keys; without them signatures are not checked
};

// `nodes` and `pods` are items of API lists. Objects that cannot be read become notes. kNotFound: a named node is not
// among them; the sentence says which nodes share.
Result<Inspection> inspect(const json::Array& nodes, const json::Array& pods, const InspectOptions& options);

enum class InspectLayout { kSummary, kDetails };

// The tables. `wide`: more columns at the right. An inspection without nodes gives an empty text.
std::string inspect_text(const Inspection& inspection, InspectLayout layout, bool wide);

// The same as one object, kind "Inspection" of sluice.dev/v1.
json::Object inspect_json(const Inspection& inspection);

// Everything that is odd, one sentence each, for standard error.
std::vector<std::string> inspect_notes(const Inspection& inspection);

}  // namespace sluice::cli
