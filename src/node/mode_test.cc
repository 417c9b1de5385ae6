#include "node/mode.h"

#include <gtest/gtest.h>

namespace sluice::node {
namespace {

using core::NodeMode;

WantedMode want(const std::string& word) {
  return wanted_mode({{"ack.node.gpu.schedule", word}});
}

TEST(Mode, LabelsAreRead) {
  EXPECT_EQ(want("core_mem").mode, NodeMode::kCoreMemory);
  EXPECT_EQ(want("cgpu").mode, NodeMode::kMemory);
  EXPECT_EQ(want("share").mode, NodeMode::kShare);
  EXPECT_EQ(want("default").mode, NodeMode::kDefault);
  for (const char* word : {"mps", "topology", "mig", "disabled", "core-mem", ""}) {
    EXPECT_EQ(want(word).mode, NodeMode::kNothing) << word;
    EXPECT_EQ(want(word).word, word);
  }
  EXPECT_EQ(wanted_mode({}), (WantedMode{NodeMode::kDefault, "default"}));
  EXPECT_EQ(wanted_mode({{"cgpu", "true"}}).mode, NodeMode::kMemory);
  EXPECT_EQ(wanted_mode({{"gpushare", "true"}}).mode, NodeMode::kShare);
  EXPECT_EQ(wanted_mode({{"cgpu", "false"}}).mode, NodeMode::kDefault);
}

struct Row {
  NodeMode in_force;
  const char* wanted;
  PodKind pod;
  bool waits;
};

TEST(Mode, OldKindIsWaitedFor) {
  const Row rows[] = {
      {NodeMode::kDefault, "core_mem", PodKind::kWhole, true},
      {NodeMode::kDefault, "core_mem", PodKind::kMemoryCore, false},  // waits itself, for a card
      {NodeMode::kDefault, "core_mem", PodKind::kNone, false},
      {NodeMode::kDefault, "cgpu", PodKind::kMemoryCore, true},
      {NodeMode::kDefault, "disabled", PodKind::kWhole, true},
      {NodeMode::kCoreMemory, "default", PodKind::kMemoryCore, true},
      {NodeMode::kCoreMemory, "cgpu", PodKind::kMemoryCore, true},
      {NodeMode::kCoreMemory, "cgpu", PodKind::kMemory, true},  // of a mixed node
      {NodeMode::kMemory, "core_mem", PodKind::kMemory, true},
      {NodeMode::kMemory, "share", PodKind::kMemory, true},
      {NodeMode::kShare, "cgpu", PodKind::kMemory, true},
      {NodeMode::kMemory, "mig", PodKind::kMemory, true},
      {NodeMode::kNothing, "core_mem", PodKind::kMemoryCore, false},
      {NodeMode::kNothing, "core_mem", PodKind::kWhole, true},
  };
  for (const Row& row : rows) {
    ModeState state = next_mode(row.in_force, want(row.wanted), {{"team/a", row.pod}});
    EXPECT_EQ(!state.settled(), row.waits) << mode_word(row.in_force) << " to " << row.wanted;
    EXPECT_EQ(state.mode, row.waits ? row.in_force : want(row.wanted).mode);
    if (row.waits) {
      EXPECT_EQ(state.waiting_for, std::vector<std::string>{"team/a"});
    }
    // The label goes back: nothing is waited for.
    EXPECT_TRUE(next_mode(row.in_force, WantedMode{row.in_force, ""}, {{"team/a", row.pod}}).settled());
  }
}

TEST(Mode, IsRemembered) {
  for (NodeMode mode :
       {NodeMode::kDefault, NodeMode::kMemory, NodeMode::kCoreMemory, NodeMode::kShare, NodeMode::kNothing})
    EXPECT_EQ(parse_mode_word(mode_word(mode)), mode);
  EXPECT_EQ(parse_mode_word("\n"), NodeMode::kDefault);
}

}  // namespace
}  // namespace sluice::node
