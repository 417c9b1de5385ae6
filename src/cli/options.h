// The command line as plain values. The one place that meets CLI11 is options.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

enum class Delivery {
  kBindMount,  // our libraries are mounted over the driver's files
  kPreload,    // our libraries are listed in an /etc/ld.so.preload of their own
};

struct RunOptions {
  std::optional<std::string> memory_units;  // --gpu-mem, as written
  std::optional<std::string> core_percent;  // --gpu-core
  std::optional<std::string> whole_cards;   // --gpus
  std::optional<std::string> card_count;    // --gpu-count
  std::string name;
  std::string policy;
  std::optional<std::string> weight;
  bool high_priority = false;
  std::string manifest;  // -f; "-" is standard input
  std::string job;
  Delivery delivery = Delivery::kBindMount;
  bool quiet = false;
  std::vector<std::string> command;
};

struct SetOptions {
  std::string grant;
  std::optional<std::string> memory_units;
  std::optional<std::string> core_percent;
  std::optional<std::string> weight;
  std::optional<bool> high_priority;
};

struct TopOptions {
  int interval_ms = 1000;
  int iterations = 0;  // 0: until stopped
};

struct DemoOptions {
  std::vector<std::string> arguments;  // for the demo's own parser
};

struct ExplainOptions {
  std::string pod;  // POD or NAMESPACE/POD
  std::string kubeconfig;
  std::string context;
  std::string scheduler;  // URL; empty: through the API server
  std::string ca_file;    // of an https scheduler
};

struct DoctorOptions {
  std::string kubeconfig;
  std::string context;
  std::string node;
  std::string kubelet_directory;  // empty: this node's kubelet is not looked at
  std::string cdi_directory = "/var/run/cdi";
  bool cluster = false;  // --kubeconfig, --context, --node or --cluster was given
};

enum class Verb { kRun, kPs, kTop, kSet, kCards, kDoctor, kDemo, kExplain, kVerify };

struct Options {
  Verb verb = Verb::kPs;
  bool json = false;
  std::string run_directory;  // --run-dir
  RunOptions run;
  SetOptions set;
  TopOptions top;
  DemoOptions demo;
  ExplainOptions explain;
  DoctorOptions doctor;
};

struct ParsedOptions {
  std::optional<Options> options;  // absent: `text` is all there is to do
  std::string text;                // help or version (standard output), or what is wrong (standard error)
  int exit_status = 0;
};

// argv without the program's name.
ParsedOptions parse_options(const std::vector<std::string>& arguments);

}  // namespace sluice::cli
