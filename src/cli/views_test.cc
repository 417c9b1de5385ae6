#include "cli/views.h"

#include <gtest/gtest.h>

#include "cli/table.h"

namespace sluice::cli {
namespace {

constexpr int64_t kNow = 1'700'000'000;

agent::ListAnswer two_grants() {
  agent::ListAnswer list;
  list.agent_version = "0.1.0";
  list.driver_version = "580.95.05";
  list.run_directory = "/run/sluice";
  list.agent_pid = 7;
  list.memory_unit = "GiB";
  agent::CardStatus card;
  card.uuid = "GPU-1";
  card.model = "Tesla V100-SXM2-32GB";
  card.state = "ok";
  card.kind = "memory+core";
  card.policy = 3;
  card.memory_mib = 32510;
  card.units = 31;
  card.free_units = 16;
  card.free_core_percent = 15;
  card.grants = 2;
  card.max_grants = 20;
  card.used_mib = 8000;
  card.utilisation_percent = 85;
  card.turns = true;
  list.cards.push_back(card);
  agent::GrantStatus grant;
  grant.id = "6f1c0d52a2b94e17";
  grant.name = "train";
  grant.runner_pid = 100;
  grant.started_unix = kNow - 65;
  grant.policy = 3;
  agent::GrantCardAnswer on;
  on.units = 10;
  on.memory_limit_mib = 10487;
  on.core_percent = 30;
  grant.cards.push_back(on);
  agent::GrantUse use;
  use.used_mib = 3000;
  use.utilisation_percent = 30.04;
  grant.use.push_back(use);
  grant.processes.resize(1);
  list.grants.push_back(grant);
  grant.id = "0000000000000001";
  grant.name = "a name that is longer than\x1b[31m the column";
  grant.runner_pid = 0;
  grant.processes.clear();
  grant.cards[0].core_percent = 0;
  list.grants.push_back(grant);
  return list;
}

TEST(Views, Ps) {
  EXPECT_EQ(ps_text(two_grants(), kNow),
            "NAME                              GRANT             CARD  USED MiB  LIMIT MiB    BUSY   CAP  POLICY  AGE  "
            "      STATE\n"
            "train                             6f1c0d52a2b94e17     0      3000      10487  30.0 %  30 %  fixed   1 "
            "min 5 s  1 process\n"
            "a name that is longer than?[31m~  0000000000000001     0      3000      10487  30.0 %     -  fixed   1 "
            "min 5 s  ending\n");
}

TEST(Views, AnEmptyListSaysHowToFillIt) {
  EXPECT_EQ(ps_text({}, kNow), "no grants; `sluice run --gpu-mem N -- COMMAND` makes one\n");
  EXPECT_EQ(cards_text({}), "no cards; `sluice doctor` says why\n");
}

TEST(Views, Cards) {
  EXPECT_EQ(cards_text(two_grants()),
            "CARD  MODEL                 UUID   GRANTED GiB  GRANTED COMPUTE    USED MiB  BUSY  GRANTS  SERVES       "
            "POLICY  STATE\n"
            "   0  Tesla V100-SXM2-32GB  GPU-1        15/31         85/100 %  8000/32510  85 %    2/20  memory+core  "
            "fixed   ok\n");
}

TEST(Views, ProcessesWithoutAGrantAreShown) {
  agent::ListAnswer list = two_grants();
  agent::ProcessStatus stranger;
  stranger.pid = 4242;
  stranger.command = "python";
  stranger.used_mib = 500;
  list.cards[0].strangers.push_back(stranger);
  EXPECT_NE(ps_text(list, kNow).find("card 0: process 4242 (python) uses 500 MiB without a grant"), std::string::npos);
  EXPECT_NE(top_text(list, kNow, 50, 200).find("1 without a grant"), std::string::npos);
}

TEST(Views, TopFitsItsTerminal) {
  agent::ListAnswer list = two_grants();
  for (int i = 0; i < 40; ++i) list.grants.push_back(list.grants[0]);
  for (const int rows : {4, 10, 24, 60}) {
    for (const int columns : {20, 80, 200}) {
      const std::string text = top_text(list, kNow, rows, columns);
      int lines = 0;
      size_t start = 0;
      while (start < text.size()) {
        const size_t end = text.find('\n', start);
        EXPECT_LE(end - start, static_cast<size_t>(columns));
        start = end + 1;
        ++lines;
      }
      EXPECT_LE(lines, rows);
      EXPECT_EQ(text.find('\x1b'), std::string::npos);
    }
  }
  EXPECT_NE(top_text(list, kNow, 10, 80).find("more lines"), std::string::npos);
}

TEST(Views, TopShowsShareAndCap) {
  const std::string text = top_text(two_grants(), kNow, 30, 160);
  EXPECT_NE(text.find("busy [############..]  85.0 %   memory [###...........] 8000/32510 MiB   turns"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("[######..............]  30.0 %  30 %      3000      10487"), std::string::npos) << text;
}

TEST(Table, ColumnsStandUnderEachOtherWhateverTheLetters) {
  EXPECT_EQ(table({{"NAME"}, {"N", true}}, {{"\u6f22\u5b57", "1"}, {"caf\u00e9", "22"}, {"abcd", "3"}}),
            "NAME   N\n\u6f22\u5b57   1\ncaf\u00e9  22\nabcd   3\n");
}

TEST(Table, Texts) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(-5), "0 s");
  EXPECT_EQ(duration_text(3600 * 25), "1 d 1 h");
  EXPECT_EQ(bar(-3, 4), "....");
  EXPECT_EQ(bar(50, 4), "##..");
  EXPECT_EQ(bar(1000, 4), "####");
  EXPECT_EQ(fit("abcdef", 4), "abc~");
}

}  // namespace
}  // namespace sluice::cli
