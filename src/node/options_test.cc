#include "node/options.h"

#include <gtest/gtest.h>

#include <functional>

namespace sluice::node {
namespace {

TEST(Options, WhatIsWrongIsNamedBeforeAnythingIsTouched) {
  Options good;
  good.node_name = "ip-10-0-0-1.internal";
  good.kubelet_directory = testing::TempDir();
  good.driver_root = "";  // as read_options leaves "/"
  EXPECT_TRUE(check_options(good).ok()) << check_options(good).error().message;
  const struct {
    std::function<void(Options&)> spoil;
    const char* error;
  } cases[] = {
      {[](Options& o) { o.node_name = ""; }, "Set --node-name or NODE_NAME"},
      {[](Options& o) { o.node_name = "Node_1"; }, "--node-name 'Node_1': expected"},
      {[](Options& o) { o.node_name = "a,metadata.name!=b"; }, "--node-name 'a,metadata.name!=b'"},
      {[](Options& o) { o.node_name = "a\nb"; }, "--node-name 'a?b'"},
      {[](Options& o) { o.force = true; }, "--force goes with --clean-up"},
      {[](Options& o) { o.run_directory = "run"; }, "--run-dir 'run': expected an absolute path"},
      {[](Options& o) { o.state_directory = "./state"; }, "--state-dir './state': expected an absolute path"},
      {[](Options& o) { o.cdi_directory = "cdi"; }, "--cdi-dir"},
      {[](Options& o) { o.library_directory = "lib"; }, "--library-dir"},
      {[](Options& o) { o.driver_root = "driver"; }, "--driver-root"},
      {[](Options& o) { o.driver_host_root = "driver"; }, "--driver-host-root"},
      {[](Options& o) { o.card_lock_directory = "locks"; }, "--card-lock-dir"},
      {[](Options& o) { o.kubelet_directory = "kubelet"; }, "--kubelet-dir 'kubelet': expected an absolute path"},
      {[](Options& o) { o.kubelet_directory = "/nonexistent"; },
       "--kubelet-dir '/nonexistent': there is no such directory"},
      {[](Options& o) { o.metrics_listen = "9449"; }, "--metrics-listen '9449': expected IP:PORT"},
      {[](Options& o) { o.metrics_listen = "0.0.0.0:99999"; }, "--metrics-listen"},
      {[](Options& o) { o.exempt_namespaces = {"kube-system", "a/b"}; }, "--stranger-exempt-namespace 'a/b'"},
  };
  for (const auto& one : cases) {
    Options options = good;
    one.spoil(options);
    Result<void> checked = check_options(options);
    ASSERT_FALSE(checked.ok()) << one.error;
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalid);
    EXPECT_NE(checked.error().message.find(one.error), std::string::npos) << checked.error().message;
  }
  // Clean-up comes after the kubelet may be gone.
  good.clean_up = good.force = true;
  good.kubelet_directory = "/nonexistent";
  EXPECT_TRUE(check_options(good).ok());
}

}  // namespace
}  // namespace sluice::node
