#include "cli/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "page/grant.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kLimit = uint64_t{10487} << 20;

Evidence good_evidence() {
  Evidence evidence;
  evidence.grant.there = true;
  evidence.grant.container = "train";
  evidence.grant.now_ns = 10'000'000'000;
  evidence.grant.heartbeat_ns = 9'900'000'000;
  evidence.grant.cards = {{"GPU-1", kLimit, 300, page::kPolicyFixed, 9'950'000'000}};
  evidence.cuda.path = "/usr/lib/libcuda.so.1";
  evidence.nvml.path = "/usr/lib/libnvidia-ml.so.1";
  CardEvidence card;
  card.uuid = "GPU-1";
  card.total_bytes = kLimit;
  card.free_bytes = kLimit / 2;
  card.over_limit_result = 2;
  card.small_result = 0;
  card.refusal_counted = card.registered = card.launch_tried = card.launch_counted = true;
  evidence.cards = {card};
  evidence.nvml_cards = {{"GPU-1", kLimit}};
  return evidence;
}

std::vector<std::string> broken_links(const Evidence& evidence) {
  std::vector<std::string> names;
  for (const Link& link : judge(evidence)) {
    if (link.state != LinkState::kBroken) continue;
    EXPECT_FALSE(link.mend.empty()) << link.name;
    names.push_back(link.name);
  }
  return names;
}

TEST(Verify, AllLinksHoldWhereAllIsInForce) {
  EXPECT_EQ(broken_links(good_evidence()), std::vector<std::string>{});
  for (const Link& link : judge(good_evidence())) EXPECT_EQ(link.state, LinkState::kHolds) << link.name;
  EXPECT_GE(judge(good_evidence()).size(), 10u);
}

TEST(Verify, EveryFaultIsNamed) {
  struct Fault {
    const char* link;
    std::function<void(Evidence&)> plant;
  };
  const Fault faults[] = {
      {"grant", [](Evidence& e) { e.grant.problem = "the grant has ended"; }},
      {"grant: read-only", [](Evidence& e) { e.grant.writable = true; }},
      {"usage file", [](Evidence& e) { e.grant.usage_problem = "it belongs to another grant"; }},
      {"gate", [](Evidence& e) { e.grant.heartbeat_ns = 9'400'000'000; }},
      {"gate", [](Evidence& e) { e.grant.cards[0].heartbeat_ns = 1; }},
      {"libcuda.so.1",
       [](Evidence& e) {
         e.cuda.problem = "no such file";
         e.cuda_problem = "";
       }},
      {"libcuda.so.1", [](Evidence& e) { e.cuda.others = {"/opt/libcuda.so.580"}; }},
      {"libnvidia-ml.so.1", [](Evidence& e) { e.nvml.others = {"/opt/libnvidia-ml.so.1"}; }},
      {"CUDA", [](Evidence& e) { e.cuda_problem = "cuInit gave CUDA error 100"; }},
      {"NVML", [](Evidence& e) { e.nvml_problem = "nvmlInit gave NVML error 9"; }},
      {"card 0", [](Evidence& e) { e.cards[0].problem = "cuMemGetInfo gave CUDA error 1"; }},
      {"card 0: memory by CUDA", [](Evidence& e) { e.cards[0].total_bytes = uint64_t{32510} << 20; }},
      {"card 0: memory by NVML", [](Evidence& e) { e.nvml_cards[0].total_bytes = uint64_t{32510} << 20; }},
      {"card 0: registered", [](Evidence& e) { e.cards[0].registered = false; }},
      {"card 0: over the limit", [](Evidence& e) { e.cards[0].over_limit_result = 0; }},
      {"card 0: over the limit", [](Evidence& e) { e.cards[0].over_limit_result = 1; }},
      {"card 0: over the limit", [](Evidence& e) { e.cards[0].refusal_counted = false; }},
      {"card 0: over the limit", [](Evidence& e) { e.cards[0].small_result = 2; }},
      {"card 0: compute", [](Evidence& e) { e.cards[0].launch_counted = false; }},
      {"card 0: compute", [](Evidence& e) { e.grant.cards[0].policy = page::kPolicyNative; }},
      {"other cards", [](Evidence& e) { e.nvml_cards.push_back({"GPU-2", kLimit}); }},
  };
  for (const Fault& fault : faults) {
    Evidence evidence = good_evidence();
    fault.plant(evidence);
    EXPECT_EQ(broken_links(evidence), std::vector<std::string>{fault.link});
  }
  Evidence other = good_evidence();
  other.cards[0].uuid = "GPU-2";  // another card than the one granted
  EXPECT_EQ(broken_links(other), (std::vector<std::string>{"card 0", "other cards"}));
}

TEST(Verify, WhatWasNotAskedForIsNoFault) {
  Evidence memory_only = good_evidence();
  memory_only.grant.cards[0].core_permille = 0;
  memory_only.cards[0].launch_counted = false;
  memory_only.grant.cards[0].policy = page::kPolicyNative;
  EXPECT_EQ(broken_links(memory_only), std::vector<std::string>{});
  Evidence whole = memory_only;
  whole.grant.cards[0].memory_limit_bytes = 0;
  whole.cards[0].over_limit_result = -1;
  whole.cards[0].refusal_counted = false;
  EXPECT_EQ(broken_links(whole), std::vector<std::string>{});
  Evidence full = good_evidence();  // all is in use: nothing small was tried, no memset either
  full.cards[0].free_bytes = 0;
  full.cards[0].small_result = -1;
  full.cards[0].launch_tried = full.cards[0].launch_counted = false;
  EXPECT_EQ(broken_links(full), std::vector<std::string>{});
}

}  // namespace
}  // namespace sluice::cli
