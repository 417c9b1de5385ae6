// Writes the two pages of a container that has one card, the null driver's, as an agent would that then went away: with
// no heartbeat the library governs itself, which is what the launch path costs without a neighbour.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/files.h"
#include "page/grant.h"
#include "page/usage.h"

namespace {

constexpr uint64_t kCardBytes = uint64_t{32510} << 20;
constexpr uint64_t kGrantId = 0x1234;

// Pages are larger than a stack likes, and start as zeroes.
template <typename Page>
std::unique_ptr<Page> zeroed() {
  return std::make_unique<Page>();
}

std::string grant_page(uint32_t core_permille, bool free) {
  auto page = zeroed<sluice::page::Grant>();
  sluice::page::GrantHeader& header = page->header;
  header.magic = sluice::page::kGrantMagic;
  header.major = sluice::page::kMajor;
  header.minor = sluice::page::kMinor;
  header.bytes = sluice::page::grant_bytes(1);
  header.card_count = 1;
  header.grant_id = kGrantId;
  std::strncpy(header.container, "launch-path", sizeof header.container - 1);
  sluice::page::GrantCard& card = page->cards[0];
  std::memset(card.uuid, 0x5a, sizeof card.uuid);  // the null driver's
  card.card_memory_bytes = kCardBytes;
  card.gate.store(free ? sluice::page::kGateFree : sluice::page::kGateOpen);
  card.memory_limit_bytes.store(kCardBytes);
  card.core_permille.store(core_permille);
  card.policy.store(core_permille == 0 ? sluice::page::kPolicyNative : sluice::page::kPolicyFixed);
  card.weight.store(1);
  return {reinterpret_cast<const char*>(page.get()), header.bytes};
}

std::string usage_page() {
  auto page = zeroed<sluice::page::Usage>();
  sluice::page::UsageHeader& header = page->header;
  header.magic = sluice::page::kUsageMagic;
  header.major = sluice::page::kMajor;
  header.minor = sluice::page::kMinor;
  header.bytes = sluice::page::usage_bytes(1);
  header.card_count = 1;
  header.grant_id = kGrantId;
  return {reinterpret_cast<const char*>(page.get()), header.bytes};
}

}  // namespace

int main(int argc, char** argv) {
  std::string root;
  uint32_t core_permille = 0;
  bool free = false;
  CLI::App app("Writes grant/page and usage of a one-card container into a folder.", "grant_pages");
  app.add_option("ROOT", root, "folder that becomes /run/sluice/container")->required();
  app.add_option("--core-permille", core_permille, "compute share in 1/1000 of a card; 0: none")
      ->check(CLI::Range(0, 1000));
  app.add_flag("--free", free, "alone on the card and without a share, as the agent writes it: nothing is measured");
  CLI11_PARSE(app, argc, argv);
  auto made = sluice::make_directories(root + "/grant");
  if (made) made = sluice::write_file_atomic(root + "/grant/page", grant_page(core_permille, free));
  if (made) made = sluice::write_file_atomic(root + "/usage", usage_page(), 0666);
  if (!made) {
    std::fprintf(stderr, "grant_pages: %s\n", made.error().message.c_str());
    return 1;
  }
  return 0;
}
