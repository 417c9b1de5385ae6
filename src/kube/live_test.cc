// The client against a real API server: what a scripted server can only claim. Run by tests/kube/client_test.py, which
// starts one; KUBECONFIG says where it is.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "kube/api_client.h"
#include "kube/endpoint.h"
#include "kube/reflector.h"

namespace sluice::kube {
namespace {

constexpr const char* kMaps = "/api/v1/namespaces/default/configmaps";

Endpoint endpoint() {
  Result<Endpoint> found = find_endpoint("", "");
  EXPECT_TRUE(found.ok()) << found.error().message;
  return *found;
}

json::Value map_of(const std::string& name, const std::string& key, const std::string& value) {
  return json::Object{{"apiVersion", "v1"},
                      {"kind", "ConfigMap"},
                      {"metadata", json::Object{{"name", name}}},
                      {"data", json::Object{{key, value}}}};
}

std::string text_at(const json::Value& object, std::string_view parent, std::string_view key) {
  const json::Value* member = object.at(parent).get_object().if_contains(key);
  return member == nullptr ? "" : std::string(member->get_string());
}

TEST(Live, ServerSideApplyOwnsFieldsByManager) {
  ApiClient api(endpoint());
  std::string path = std::string(kMaps) + "/applied";
  ASSERT_TRUE(api.patch(path, PatchKind::kApply, map_of("applied", "ours", "1"), "sluice").ok());
  ASSERT_TRUE(api.patch(path, PatchKind::kApply, map_of("applied", "theirs", "1"), "others").ok());
  ApiAnswer conflict = api.patch(path, PatchKind::kApply, map_of("applied", "ours", "2"), "others", false);
  EXPECT_EQ(conflict.status, 409) << conflict.message;
  EXPECT_NE(conflict.message.find("conflict with \"sluice\""), std::string::npos) << conflict.message;
  // By force the field changes hands; what the first manager then leaves out stays.
  ApiAnswer forced = api.patch(path, PatchKind::kApply, map_of("applied", "ours", "2"), "others", true);
  ASSERT_TRUE(forced.ok()) << forced.message;
  EXPECT_EQ(text_at(forced.body, "data", "ours"), "2");
  EXPECT_EQ(text_at(forced.body, "data", "theirs"), "");  // others no longer apply it
  ApiAnswer left = api.patch(path, PatchKind::kApply, map_of("applied", "new", "3"), "sluice");
  EXPECT_EQ(text_at(left.body, "data", "ours"), "2");
}

TEST(Live, PreconditionsAreKept) {
  ApiClient api(endpoint());
  ApiAnswer made = api.create(kMaps, map_of("guarded", "a", "1"));
  ASSERT_TRUE(made.ok()) << made.message;
  std::string path = std::string(kMaps) + "/guarded";
  std::string version = text_at(made.body, "metadata", "resourceVersion");
  auto patch = [&](const std::string& key, const std::string& value) {
    return json::Object{{"metadata", json::Object{{key, value}, {"annotations", json::Object{{"a", version}}}}}};
  };
  ASSERT_TRUE(api.patch(path, PatchKind::kMerge, patch("resourceVersion", version)).ok());
  EXPECT_EQ(api.patch(path, PatchKind::kMerge, patch("resourceVersion", version)).status, 409);  // changed since
  // Another UID is a change of a field that cannot change.
  ApiAnswer other = api.patch(path, PatchKind::kMerge, patch("uid", "another"));
  EXPECT_EQ(other.status, 422) << other.message;
  EXPECT_TRUE(other.definitely_refused());
  EXPECT_TRUE(api.remove(path).ok());
  ApiAnswer gone = api.get(path);
  EXPECT_EQ(gone.status, 404);
  EXPECT_NE(gone.message.find("\"guarded\" not found"), std::string::npos) << gone.message;
  ApiAnswer invalid = api.create(kMaps, map_of("NOT A NAME", "a", "1"));
  EXPECT_EQ(invalid.status, 422);
  EXPECT_EQ(invalid.to_error("map").code, ErrorCode::kInvalid);
}

class Names : public ReflectorSink {
 public:
  void replaced(json::Array items) override {
    std::lock_guard lock(mutex_);
    names_.clear();
    for (const json::Value& item : items) names_.insert(text_at(item, "metadata", "name"));
  }
  void changed(json::Value object) override {
    std::lock_guard lock(mutex_);
    names_.insert(text_at(object, "metadata", "name"));
    ++changes_;
  }
  void deleted(json::Value object) override {
    std::lock_guard lock(mutex_);
    names_.erase(text_at(object, "metadata", "name"));
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return names_.size();
  }
  bool comes_to(size_t expected) {
    for (int i = 0; i < 1000 && count() != expected; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return count() == expected;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
  size_t changes_ = 0;
};

// 1,201 objects are three pages. The server ends each watch after 2 to 4 s: the next one resumes from the newest
// version without a new list, and no change falls in between.
TEST(Live, AReflectorListsInPagesAndOutlivesTheEndOfItsWatches) {
  ApiClient api(endpoint());
  size_t before = api.get(kMaps).body.at("items").get_array().size();
  json::Value labelled = map_of("", "a", "1");
  for (int i = 0; i < 1201; ++i) {
    labelled.at("metadata").get_object() =
        json::Object{{"name", "reflected-" + std::to_string(i)}, {"labels", json::Object{{"reflected", "yes"}}}};
    ASSERT_TRUE(api.create(kMaps, labelled).ok());
  }
  Names all;
  Names some;
  ReflectorOptions options;
  options.path = kMaps;
  options.watch_timeout_min_s = 2;
  Reflector everything(endpoint(), options, all);
  options.label_selector = "reflected=yes";
  Reflector selected(endpoint(), options, some);
  everything.start();
  selected.start();
  EXPECT_TRUE(all.comes_to(before + 1201)) << all.count();
  EXPECT_TRUE(some.comes_to(1201)) << some.count();
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  size_t left = 1201;
  while (std::chrono::steady_clock::now() < until) {
    --left;
    ASSERT_TRUE(api.remove(std::string(kMaps) + "/reflected-" + std::to_string(left)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  // Leaving the selection is a deletion to whoever selects.
  json::Object unlabel{{"metadata", json::Object{{"labels", json::Object{{"reflected", nullptr}}}}}};
  ASSERT_TRUE(api.patch(std::string(kMaps) + "/reflected-0", PatchKind::kMerge, unlabel).ok());
  EXPECT_TRUE(all.comes_to(before + left)) << all.count() << " of " << before + left;
  EXPECT_TRUE(some.comes_to(left - 1)) << some.count();
  EXPECT_EQ(everything.lists(), 1u);
  EXPECT_EQ(selected.lists(), 1u);
  EXPECT_EQ(everything.watch_errors(), 0u);
  EXPECT_LT(everything.age_ms(), 5'000);
}

}  // namespace
}  // namespace sluice::kube
