#include "kube/reflector.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "kube/scripted_server.h"

namespace sluice::kube {
namespace {

class Copy : public ReflectorSink {
 public:
  void replaced(json::Array items) override {
    std::lock_guard lock(mutex_);
    items_.clear();
    for (json::Value& item : items) put(std::move(item));
  }
  void changed(json::Value object) override {
    std::lock_guard lock(mutex_);
    put(std::move(object));
  }
  void deleted(json::Value object) override {
    std::lock_guard lock(mutex_);
    items_.erase(name(object));
  }
  std::string names() {
    std::lock_guard lock(mutex_);
    std::string out;
    for (const auto& [key, value] : items_) out += key;
    return out;
  }

 private:
  static std::string name(const json::Value& object) {
    return std::string(object.at("metadata").at("name").get_string());
  }
  void put(json::Value object) { items_[name(object)] = std::move(object); }
  std::mutex mutex_;
  std::map<std::string, json::Value> items_;
};

std::string object(const std::string& name, int version) {
  return fmt::format(R"({{"metadata":{{"name":"{}","resourceVersion":"{}"}}}})", name, version);
}
std::string list(const std::string& items, int version, const std::string& next = "") {
  return fmt::format(R"({{"metadata":{{"resourceVersion":"{}","continue":"{}"}},"items":[{}]}})", version, next, items);
}
std::string event(const std::string& type, const std::string& body) {
  return fmt::format(R"({{"type":"{}","object":{}}})", type, body) + "\n";
}

ReflectorOptions quick() {
  ReflectorOptions options;
  options.path = "/api/v1/pods";
  options.field_selector = "spec.nodeName=a";
  options.backoff_min = std::chrono::milliseconds(5);
  options.backoff_max = std::chrono::milliseconds(10);
  return options;
}

struct Session {
  explicit Session(std::vector<ScriptedAnswer> script) : server(std::move(script)) {
    Endpoint endpoint;
    endpoint.server = server.url();
    reflector = std::make_unique<Reflector>(endpoint, quick(), copy);
    reflector->start();
  }
  ScriptedServer server;
  Copy copy;
  std::unique_ptr<Reflector> reflector;
};

TEST(Reflector, ListsInPagesThenWatchesFromTheNewestVersion) {
  Session run(
      {{200, list(object("a", 1), 5, "page2"), false, ""},
       {200, list(object("b", 2), 5), false, ""},
       {200, event("ADDED", object("c", 6)) + event("DELETED", object("a", 7)) + event("BOOKMARK", object("", 9)),
        false, ""}});
  ASSERT_TRUE(run.server.wait_for_requests(4));
  std::vector<std::string> requests = run.server.requests();
  EXPECT_EQ(requests[0].find("GET /api/v1/pods?fieldSelector=spec.nodeName%3Da&limit=500 "), 0u);
  EXPECT_NE(requests[1].find("continue=page2"), std::string::npos);
  EXPECT_NE(requests[2].find("allowWatchBookmarks=true"), std::string::npos);
  EXPECT_NE(requests[2].find("resourceVersion=5 "), std::string::npos);
  EXPECT_NE(requests[3].find("watch=1"), std::string::npos);  // a clean end is resumed
  EXPECT_NE(requests[3].find("resourceVersion=9 "), std::string::npos);
  EXPECT_EQ(run.copy.names(), "bc");
  EXPECT_EQ(run.reflector->lists(), 1u);
}

TEST(Reflector, BothFormsOf410ListAgainAndDropPhantoms) {
  for (bool in_stream : {false, true}) {
    ScriptedAnswer gone = in_stream
                              ? ScriptedAnswer{200, event("ERROR", R"({"code":410,"reason":"Expired"})"), false, ""}
                              : ScriptedAnswer{410, "{}", false, ""};
    Session run({{200, list(object("a", 1) + "," + object("b", 2), 5), false, ""},
                 gone,
                 {200, list(object("b", 2), 8), false, ""}});
    ASSERT_TRUE(run.server.wait_for_requests(4));
    EXPECT_EQ(run.copy.names(), "b") << in_stream;
    EXPECT_EQ(run.reflector->lists(), 2u);
    EXPECT_NE(run.server.requests()[3].find("resourceVersion=8 "), std::string::npos);
  }
}

TEST(Reflector, ACutWatchResumesWithoutListing) {
  Session run({{200, list("", 5), false, ""},
               {200, event("ADDED", object("a", 6)) + "{\"type\":\"ADD", true, ""},
               {500, "", false, ""},
               {200, event("ADDED", object("b", 7)), false, ""}});
  ASSERT_TRUE(run.server.wait_for_requests(5));
  EXPECT_EQ(run.reflector->lists(), 1u);
  EXPECT_NE(run.server.requests()[3].find("resourceVersion=6 "), std::string::npos);
  EXPECT_EQ(run.copy.names(), "ab");
}

// An old copy is worse than a request too many: neither cuts in a row nor a server that is away for a while make the
// reflector wait long.
TEST(Reflector, AWatchThatIsCutAgainAndAgainIsResumedSoon) {
  std::vector<ScriptedAnswer> script{{200, list("", 5), false, ""}};
  for (int i = 0; i < 12; ++i) script.push_back({200, event("ADDED", object("a", 6 + i)), true, ""});
  for (int i = 0; i < 8; ++i) script.push_back({500, "", false, ""});
  ScriptedServer server(script);
  Endpoint endpoint;
  endpoint.server = server.url();
  ReflectorOptions options = quick();
  options.backoff_max = std::chrono::seconds(60);
  options.resume_max = std::chrono::milliseconds(40);
  Copy copy;
  Reflector reflector(endpoint, options, copy);
  reflector.start();
  EXPECT_TRUE(server.wait_for_requests(21));  // within five seconds
  EXPECT_EQ(reflector.lists(), 1u);
}

TEST(Reflector, AFailedPageStartsTheListOver) {
  Session run({{200, list(object("a", 1), 5, "page2"), false, ""},
               {410, "{}", false, ""},
               {200, list(object("b", 2), 6), false, ""}});
  ASSERT_TRUE(run.server.wait_for_requests(4));
  EXPECT_EQ(run.server.requests()[2].find("continue"), std::string::npos);
  EXPECT_EQ(run.copy.names(), "b");
}

TEST(Reflector, StopsWhileTheServerIsSilent) {
  Session run({{200, list("", 5), false, ""}});
  ASSERT_TRUE(run.server.wait_for_requests(2));
  auto before = std::chrono::steady_clock::now();
  run.reflector->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(3));
}

}  // namespace
}  // namespace sluice::kube
