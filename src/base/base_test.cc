#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics_text.h"
#include "base/text.h"
#include "base/yaml.h"

namespace sluice {
namespace {

TEST(Json, ParsesAndNamesFaults) {
  EXPECT_EQ(json::to_string(*json::parse(" {\"a\": [1, true, null]} \n")), "{\"a\":[1,true,null]}");
  EXPECT_NE(json::parse("{\"a\": }").error().message.find("byte"), std::string::npos);
  EXPECT_FALSE(json::parse("{} x").ok());
  EXPECT_FALSE(json::parse("").ok());
  json::Value value = *json::parse("{\"n\": 3.0, \"s\": \"x\", \"z\": null}");
  EXPECT_EQ(*json::get_int(value.get_object(), "n"), 3);
  EXPECT_EQ(json::get_int(value.get_object(), "s").error().message, "'s' is a string, expected a whole number");
  EXPECT_EQ(json::get_string(value.get_object(), "q").error().message, "'q' is missing, expected a string");
  EXPECT_EQ(*json::get_int_or(value.get_object(), "z", 7), 7);
}

TEST(Yaml, DocumentsBecomeJson) {
  auto documents = yaml::parse_documents("a: 10\nb: \"10\"\nc: 30.5\nd: [x, true]\n---\n---\ne:\n");
  ASSERT_TRUE(documents.ok());
  ASSERT_EQ(documents->size(), 2u);
  EXPECT_EQ(json::to_string((*documents)[0]), "{\"a\":10,\"b\":\"10\",\"c\":3.05E1,\"d\":[\"x\",true]}");
  EXPECT_EQ(json::to_string((*documents)[1]), "{\"e\":null}");
}

TEST(Yaml, FaultsNameTheLine) {
  EXPECT_NE(yaml::parse_documents("a: 1\nb: [\n").error().message.find("line 3"), std::string::npos);
  EXPECT_NE(yaml::parse_documents("a: 1\na: 2\n").error().message.find("'a' stands twice"), std::string::npos);
  EXPECT_FALSE(yaml::parse_documents("a: &x 1\nb: *x\n").ok());
  EXPECT_FALSE(yaml::parse_documents("a: &x [1]\nb: [*x, *x]\n").ok());
  EXPECT_NE(yaml::parse_documents("#\n,").error().message.find("line 2"), std::string::npos);  // once endless
}

// What a scalar means, or why it is refused.
TEST(Yaml, ScalarsMeanWhatKubernetesReads) {
  const struct {
    std::string text, json, error;
  } cases[] = {
      {"10", "10", ""},
      {"-7", "-7", ""},
      {"0", "0", ""},
      {"0.5", "5E-1", ""},
      {".5", "5E-1", ""},
      {"1e3", "1E3", ""},
      {"\"010\"", "\"010\"", ""},
      {"010", "", "line 1: 010 is octal"},
      {"-010", "", "is octal"},
      {"00", "", "is octal"},
      {"08", "", "is octal"},
      {"01.5", "1.5E0", ""},
      {"01a", "\"01a\"", ""},
      {"inf", "\"inf\"", ""},
      {"nan", "\"nan\"", ""},
      {"Infinity", "\"Infinity\"", ""},
      {"-inf", "\"-inf\"", ""},
      {"TRUE", "true", ""},
      {"False", "false", ""},
      {"NULL", "null", ""},
      {"~", "null", ""},
      {"0x10", "\"0x10\"", ""},
      {"-", "", "line 1"},
      {"yes", "\"yes\"", ""},
  };
  for (const auto& one : cases) {
    auto read = yaml::parse_documents("a: " + one.text);
    if (one.error.empty()) {
      ASSERT_TRUE(read.ok()) << one.text << ": " << read.error().message;
      EXPECT_EQ(json::to_string(read->front()), "{\"a\":" + one.json + "}") << one.text;
    } else {
      ASSERT_FALSE(read.ok()) << one.text;
      EXPECT_NE(read.error().message.find(one.error), std::string::npos) << read.error().message;
    }
  }
}

TEST(Yaml, OnlyUtf8IsRead) {
  EXPECT_EQ(json::to_string(yaml::parse_documents("\xef\xbb\xbf"
                                                  "a: \xc3\xa9\n")
                                ->front()),
            "{\"a\":\"\xc3\xa9\"}");
  const std::pair<std::string, std::string> cases[] = {
      {std::string("\xff\xfe"
                   "a\0:\0 \0"
                   "1\0",
                   10),
       "UTF-16"},
      {std::string("\xfe\xff\0a\0:", 6), "UTF-16"},
      {std::string("a\0:\0 \0"
                   "1\0",
                   8),
       "UTF-16"},
      {std::string("\0\0\0a", 4), "UTF-16 or UTF-32"},
      {"a: 1\nb: \xe9t\xe9\n", "line 2: a byte that is no UTF-8"},
      {std::string("a: 1\nb: x\0y\n", 12), "line 2: a NUL byte"},
      {"a: " + std::string(100'000, '['), "nested too deeply"},
  };
  for (const auto& [text, error] : cases) {
    auto read = yaml::parse_documents(text);
    ASSERT_FALSE(read.ok()) << error;
    EXPECT_NE(read.error().message.find(error), std::string::npos) << read.error().message;
  }
}

TEST(Text, Utf8IsTold) {
  for (const char* good : {"", "abc", "\xc3\xa9", "\xe6\xbc\xa2", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(text::is_utf8(good));
  for (const char* bad :
       {"\xff", "\xc3", "a\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xe6\xbc"})
    EXPECT_FALSE(text::is_utf8(bad));
  EXPECT_EQ(text::utf8_prefix("ab\xc3\xa9\xff"), 4u);
}

TEST(Text, WidthsAreThoseOfATerminal) {
  const struct {
    std::string text;
    size_t columns;
    std::string in_four;
  } cases[] = {
      {"", 0, ""},
      {"abcd", 4, "abcd"},
      {"abcdef", 6, "abc~"},
      {"\u00e9t\u00e9", 3, "\u00e9t\u00e9"},
      {"\u6f22\u5b57", 4, "\u6f22\u5b57"},
      {"\u6f22\u5b57\u6f22", 6, "\u6f22~"},  // a wide one does not fit beside the '~'
      {"a\u6f22\u5b57\u6f22", 7, "a\u6f22~"},
      {"e\u0301e\u0301", 2, "e\u0301e\u0301"},  // combining
      {"a\xff"
       "b",
       3, "a?b"},
      {"a\nb", 3, "a?b"},
      {"\u009b1m", 3, "?1m"},  // a terminal's one-byte escape
  };
  for (const auto& one : cases) {
    if (one.text.find('\n') == std::string::npos) {
      EXPECT_EQ(text::columns(one.text), one.columns) << one.text;
    }
    EXPECT_EQ(text::fit(one.text, 4), one.in_four) << one.text;
  }
  EXPECT_EQ(text::fit("abc", 0), "");
  EXPECT_EQ(text::fit("abc", 1), "~");
}

TEST(Yaml, WhatIsWrittenReadsBackTheSame) {
  const char* text =
      R"({"kind":"Inspection","n":-3,"big":9007199254740993,"yes":true,"none":null,"share":0.25,"list":[1,"two",[]],
      "texts":["10","0x1f","no","","- a","a: b","tab\tline\nend","GPU-1","node-a","1e3","~","null","\u00e9"],
      "empty":{},"nodes":[{"name":"a","cards":[{"index":0}]}]})";
  const json::Value value = *json::parse(text);
  const std::string written = yaml::to_string(value);
  Result<std::vector<json::Value>> read = yaml::parse_documents(written);
  ASSERT_TRUE(read) << written << read.error().message;
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ(json::to_string(read->front()), json::to_string(value)) << written;
  EXPECT_EQ(yaml::to_string(*json::parse(R"({"a":[{"b":"x","c":"1"}],"d":[]})")),
            "a:\n  - b: x\n    c: \"1\"\nd: []\n");
}

TEST(Files, WritesAreWholeOrNothing) {
  std::string path = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/sluice_files_test";
  ASSERT_TRUE(write_file_atomic(path, "one").ok());
  ASSERT_TRUE(write_file_atomic(path, "two").ok());
  EXPECT_EQ(*read_file(path), "two");
  EXPECT_FALSE(read_file(path, 2).ok());
  EXPECT_EQ(write_file_atomic("/nonexistent/x", "y").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_file("/tmp").error().code, ErrorCode::kInvalid);  // what was named is the wrong kind of thing
  EXPECT_EQ(read_file("/" + std::string(300, 'x')).error().code, ErrorCode::kInvalid);
}

TEST(Log, WhatCannotBeWrittenGoesOutBeforeTheNextLine) {
  const std::string path = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/sluice_log_test";
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600));
  ASSERT_TRUE(file.valid());
  Fd stderr_before(::dup(STDERR_FILENO));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto usual = ::signal(SIGXFSZ, SIG_IGN);
  ::dup2(file.get(), STDERR_FILENO);
  // As on a file system with 30 bytes of room: the first line comes half, the others not at all.
  const rlimit small{30, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  for (const char* text : {"one", "two", "three"}) log::warning(text);
  const std::string cut = *read_file(path);
  for (int i = 0; i < 1000; ++i) log::warning(std::string(100, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  log::warning("last");
  ::dup2(stderr_before.get(), STDERR_FILENO);
  ::signal(SIGXFSZ, usual);
  EXPECT_EQ(cut.size(), 30u) << cut;
  const std::string text = *read_file(path);
  EXPECT_LT(text.size(), size_t{20} << 10);
  std::vector<std::string> words;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line.rfind("time=", 0), 0u) << line;
    words.push_back(line.substr(line.find("msg=")));
  }
  ASSERT_GT(words.size(), 4u);
  EXPECT_EQ(std::vector<std::string>(words.begin(), words.begin() + 3),
            (std::vector<std::string>{"msg=one", "msg=two", "msg=three"}));
  EXPECT_EQ(words.back(), "msg=last");
  ::unlink(path.c_str());
}

TEST(Metrics, EscapesLabels) {
  MetricsText text;
  text.family("m", "gauge", "a \\ b");
  text.sample("m", {{"k", "a\"b\n"}}, 0.5);
  EXPECT_EQ(text.text(), "# HELP m a \\\\ b\n# TYPE m gauge\nm{k=\"a\\\"b\\n\"} 0.5\n");
}

}  // namespace
}  // namespace sluice
