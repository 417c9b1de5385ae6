#include "agent/process.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/run_directory.h"
#include "agent/version.h"
#include "base/log.h"

namespace sluice::agent {
namespace {

constexpr char kLockName[] = "agent.lock";

// Says in the lock's file who has it, in words for people and for the next one, and in the log whom it follows.
void note_holder(int lock, const std::string& before) {
  const std::string text = fmt::format("pid {} of {}\n", ::getpid(), kVersion);
  // A file system that is full keeps nobody from the lock.
  [[maybe_unused]] ssize_t put = ::pwrite(lock, text.data(), text.size(), 0);
  if (before.empty()) return;
  log::info("this agent follows another; what runs under its grants goes on",
            {{"version", kVersion}, {"before", before}});
}

}  // namespace

sigset_t prepare_process() {
  ::umask(022);
  sigset_t ends;
  sigemptyset(&ends);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return ends;
}

Result<Fd> lock_as_the_agent(int directory, const std::string& run_directory, int leaving_ms) {
  const std::string before = last_holder(directory, kLockName);
  Result<Fd> lock = lock_file(directory, run_directory, kLockName, 0);
  if (lock) note_holder(lock->get(), before);
  if (lock || lock.error().code != ErrorCode::kUnavailable) return lock;
  const std::string holder = lock_holder(directory, kLockName);
  log::info("another agent serves the directory; waiting for it to leave",
            {{"run_dir", run_directory}, {"holder", holder}, {"at_most_ms", leaving_ms}});
  lock = lock_file(directory, run_directory, kLockName, leaving_ms);
  if (lock) note_holder(lock->get(), before);
  if (lock || lock.error().code != ErrorCode::kUnavailable) return lock;
  return Error{ErrorCode::kExists,
               fmt::format("another agent ({}) serves {} and has not left within {} s; end it first, "
                           "or give this one a directory of its own with --run-dir",
                           lock_holder(directory, kLockName), run_directory, leaving_ms / 1000)};
}

int cannot_serve(const Error& error) {
  log::error(error.message);
  return error.code == ErrorCode::kExists ? kExitOtherAgent : kExitFailed;
}

}  // namespace sluice::agent
