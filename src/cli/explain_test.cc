#include "cli/explain.h"

#include <gtest/gtest.h>

#include "cli/exit_codes.h"
#include "cli/options.h"

namespace sluice::cli {
namespace {

json::Object object(const char* text) {
  return json::parse(text)->get_object();
}

TEST(Explain, NodesThatFitFirstThenThoseThatWould) {
  EXPECT_EQ(explain_text(object(R"({"pod":"d/p","state":"waiting: no node has a fitting card","reason":"card memory: x",
      "nodes":[{"node":"c","fits":false,"reason":"node mode: y"},
               {"node":"b","fits":false,"reason":"card memory: x","would_fit_without":["d/q","d/r"]},
               {"node":"a","fits":true}]})")),
            "d/p: waiting: no node has a fitting card\n"
            "  card memory: x\n"
            "\n"
            "NODE  FITS  REASON          WOULD FIT WITHOUT\n"
            "a     yes\n"
            "b     no    card memory: x  d/q, d/r\n"
            "c     no    node mode: y\n");
  EXPECT_EQ(explain_text(object(R"({"pod":"d/p","state":"bound","node":"n","problem":"no record"})")),
            "d/p: bound on node n\n  no record\n");
}

TEST(Explain, OddAnswersAreShownAsFarAsTheyGo) {
  EXPECT_EQ(explain_text({}), ": \n");
  EXPECT_EQ(explain_text(object(R"({"pod":7,"state":"s\u001b[2J","nodes":[7,{"node":3,"would_fit_without":[1]}]})")),
            ": s?[2J\n\nNODE  FITS  REASON  WOULD FIT WITHOUT\n      no\n");
  json::Array nodes;
  for (int i = 0; i < 100; ++i) nodes.push_back(json::Object{{"node", "n"}, {"reason", "r"}});
  std::string text = explain_text(json::Object{{"pod", "d/p"}, {"state", "s"}, {"nodes", nodes}});
  EXPECT_NE(text.find("and 70 more nodes; --json has them all\n"), std::string::npos) << text;
}

TEST(Explain, Names) {
  EXPECT_EQ(parse_pod_name("a/b", "d")->name_space, "a");
  EXPECT_EQ(parse_pod_name("b", "d")->name_space, "d");
  for (const char* wrong : {"", "/", "a/", "/b", "a/b/c"}) EXPECT_FALSE(parse_pod_name(wrong, "d").ok()) << wrong;
}

TEST(Explain, Options) {
  const ParsedOptions p = parse_options({"explain", "team/p", "--scheduler", "http://h:1", "--json"});
  ASSERT_TRUE(p.options) << p.text;
  EXPECT_EQ(p.options->verb, Verb::kExplain);
  EXPECT_EQ(p.options->explain.pod, "team/p");
  EXPECT_EQ(p.options->explain.scheduler, "http://h:1");
  EXPECT_TRUE(p.options->json);
  EXPECT_EQ(parse_options({"explain"}).exit_status, kExitUsage);
}

}  // namespace
}  // namespace sluice::cli
