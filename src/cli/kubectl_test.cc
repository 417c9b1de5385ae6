#include "cli/kubectl.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "cli/scratch_test.h"

namespace sluice::cli {
namespace {

// A program called kubectl, first in PATH for as long as the test runs.
class FakeKubectl {
 public:
  explicit FakeKubectl(const std::string& script) : before_(getenv("PATH")) {
    if (!script.empty()) chmod(scratch_.file("kubectl", "#!/bin/sh\n" + script).c_str(), 0755);
    setenv("PATH", script.empty() ? scratch_.path("").c_str() : (scratch_.path("") + ":" + before_).c_str(), 1);
  }
  ~FakeKubectl() { setenv("PATH", before_.c_str(), 1); }

 private:
  Scratch scratch_;
  std::string before_;
};

TEST(Kubectl, GivesTheBodyAndPassesTheChoiceOfClusterOn) {
  FakeKubectl kubectl("printf '%s\\n' \"$@\"; echo a warning >&2");
  Result<std::string> got = kubectl_get({"/a b/config", "prod", 7}, "/api/v1/nodes?limit=500");
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(*got,
            "--kubeconfig=/a b/config\n--context=prod\n--request-timeout=7s\nget\n--raw\n/api/v1/nodes?limit=500\n");
  got = kubectl_get({}, "/x");
  ASSERT_TRUE(got);
  EXPECT_EQ(*got, "--request-timeout=60s\nget\n--raw\n/x\n");
}

TEST(Kubectl, LargeAnswersAndManyWarningsDoNotBlock) {
  FakeKubectl kubectl(
      "head -c 3000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2; exec >&-; echo z >&2");
  Result<std::string> got = kubectl_get({}, "/x");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->size(), 3'000'000u);
}

TEST(Kubectl, ErrorsHaveTheirKind) {
  struct Case {
    const char* script;
    ErrorCode code;
    const char* text;
  };
  for (const Case& one :
       {Case{"echo 'Error from server (Forbidden): nodes is forbidden' >&2; exit 1", ErrorCode::kPermission,
             "kubectl: Error from server (Forbidden): nodes is forbidden"},
        Case{"echo 'the plugin says hello' >&2; echo 'error: You must be logged in to the server (Unauthorized)' >&2; "
             "exit 1",
             ErrorCode::kPermission, "kubectl: error: You must be logged in to the server (Unauthorized)"},
        Case{"echo 'Error from server (NotFound): no' >&2; exit 1", ErrorCode::kNotFound,
             "kubectl: Error from server (NotFound): no"},
        Case{"echo 'Unable to connect to the server: x' >&2; exit 1", ErrorCode::kUnavailable,
             "kubectl: Unable to connect to the server: x"},
        Case{"exit 3", ErrorCode::kUnavailable, "kubectl ended with status 3"},
        Case{"kill -9 $$", ErrorCode::kUnavailable, "kubectl ended with status 137"}}) {
    FakeKubectl kubectl(one.script);
    Result<std::string> got = kubectl_get({}, "/x");
    ASSERT_FALSE(got) << one.script;
    EXPECT_EQ(got.error().code, one.code) << one.script;
    EXPECT_EQ(got.error().message, one.text);
  }
  FakeKubectl none("");
  Result<std::string> got = kubectl_get({}, "/x");
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace sluice::cli
