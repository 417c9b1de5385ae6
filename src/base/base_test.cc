#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files.h"
#include "base/json.h"
#include "base/metrics_text.h"
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
}

TEST(Metrics, EscapesLabels) {
  MetricsText text;
  text.family("m", "gauge", "a \\ b");
  text.sample("m", {{"k", "a\"b\n"}}, 0.5);
  EXPECT_EQ(text.text(), "# HELP m a \\\\ b\n# TYPE m gauge\nm{k=\"a\\\"b\\n\"} 0.5\n");
}

}  // namespace
}  // namespace sluice
