// The process that keeps the kubelet's connection. The kubelet takes the end of a device plugin's stream for the end of
// its devices: every pod that reaches it before the plugin has registered anew is Failed for good, and pods go on
// coming until the Node object says that nothing is left (a status period later, 10 s by default). So the agent is two
// processes of one program. The front, which the container runtime starts, holds the streams and next to nothing else;
// the worker, its child, does the work. A worker that crashes or is killed is started again within milliseconds; the
// kubelet sees the list as it was, and its calls wait for the new worker (Allocate has no deadline, PreStartContainer
// 30 s). A front that is killed takes the worker with it, and the kubelet notices that.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "node/front_messages.h"
#include "node/plugin_set.h"

namespace sluice::node {

// The environment variable that makes a process the worker: the number of its end of the socket pair.
inline constexpr char kWorkerVariable[] = "SLUICE_AGENT_FRONT_FD";
// How the worker calls itself in its command line.
inline constexpr char kWorkerName[] = "sluice-agent-worker";

// Calls of the kubelet that wait for the worker, of whom there may be another when the answer comes.
class CallDesk {
 public:
  // Asks the worker, waiting at most so long for one that answers.
  ReplyMessage ask(CallMessage call, std::chrono::milliseconds longest);
  void worker_here(LineChannel* channel);  // what is unanswered is asked again
  void worker_gone();
  void answered(ReplyMessage reply);
  void close();  // no more: everything open fails

 private:
  struct Open {
    CallMessage call;
    std::optional<ReplyMessage> reply;
  };
  std::mutex mutex_;
  std::condition_variable news_;
  std::map<uint64_t, Open> open_;
  uint64_t last_id_ = 0;
  LineChannel* channel_ = nullptr;
  bool closed_ = false;
};

// Whether a worker that has died is started again, and after how long. Pure.
class RestartRule {
 public:
  using Clock = std::chrono::steady_clock;
  void started(Clock::time_point now) { started_ = now; }
  // nullopt: it dies again and again; the front ends too, and whoever started it decides.
  std::optional<std::chrono::milliseconds> died(Clock::time_point now);

 private:
  Clock::time_point started_{};
  int quick_deaths_ = 0;
};

class Front {
 public:
  // arguments: of the worker, without the program's name. directory: the kubelet's device-plugins.
  Front(std::vector<std::string> arguments, std::string directory);
  ~Front();
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  // Until a signal ends both, or the worker ends by itself. SIGTERM, SIGINT, SIGHUP and SIGCHLD must be blocked. The
  // program's exit code: the worker's.
  int run();

 private:
  struct Calls;
  Result<void> start_worker();
  std::optional<int> reap();  // the exit code once the worker has ended for good
  bool try_again_for_what_is_missing();
  void read_worker();
  void offer(OfferMessage message);
  void tell_status();

  std::vector<std::string> arguments_;
  PluginSet plugins_;
  CallDesk desk_;
  std::map<std::string, std::unique_ptr<Calls>> calls_;  // by resource
  std::map<std::string, PluginSet::Wanted> wanted_;
  Fd signals_;
  pid_t worker_ = -1;
  std::unique_ptr<LineChannel> channel_;
  RestartRule rule_;
  std::optional<std::chrono::steady_clock::time_point> missing_since_;
  std::chrono::steady_clock::time_point next_start_{};
  uint64_t restarts_ = 0;
  bool leaving_ = false;
  std::optional<PluginStatus> told_;
};

}  // namespace sluice::node
