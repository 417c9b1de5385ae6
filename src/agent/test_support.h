// For the agent's tests: cards made of plain values, a turn host that sleeps, a run directory that goes away, and the
// stand-in program of tests/agent.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "agent/cards.h"
#include "agent/node.h"

namespace sluice::agent::test {

constexpr int64_t kMib = 1 << 20;

class FakeCards final : public Cards {
 public:
  explicit FakeCards(int count, int64_t memory_mib = 32510) {
    for (int i = 0; i < count; ++i) add(i, memory_mib);
  }
  void add(int index, int64_t memory_mib) {
    std::lock_guard guard(mutex_);
    CardInfo info{index, uuid(index), "Tesla V100-SXM2-32GB", memory_mib * kMib, index};
    infos_[info.uuid] = info;
  }
  static std::string uuid(int index) {
    char text[64];
    std::snprintf(text, sizeof(text), "GPU-%08x-0000-4000-8000-%012x", ::getpid(), index);
    return text;
  }
  void use(int index, int64_t pid, int64_t mib) {  // 0: the process is no longer listed
    std::lock_guard guard(mutex_);
    auto& list = used_[uuid(index)];
    if (mib == 0)
      list.erase(pid);
    else
      list[pid] = mib * kMib;
  }
  void set_utilisation(uint32_t percent) {
    std::lock_guard guard(mutex_);
    utilisation_ = percent;
  }
  void set_lost(int index, bool lost) {
    std::lock_guard guard(mutex_);
    lost_[uuid(index)] = lost;
  }
  std::string driver_version() override { return "550.54.15"; }
  Result<std::vector<CardInfo>> list() override {
    std::lock_guard guard(mutex_);
    std::vector<CardInfo> cards;
    for (const auto& [id, info] : infos_) {
      if (!lost_[id]) cards.push_back(info);
    }
    return cards;
  }
  Result<CardReading> read(const std::string& id) override {
    std::lock_guard guard(mutex_);
    if (lost_[id]) return not_found("GPU is lost");
    CardReading reading;
    reading.utilisation_percent = utilisation_;
    for (const auto& [pid, bytes] : used_[id]) {
      reading.processes.push_back({pid, bytes});
      reading.used_bytes += bytes;
    }
    return reading;
  }
  Result<void> restart() override { return {}; }

 private:
  std::mutex mutex_;
  std::map<std::string, CardInfo> infos_;
  std::map<std::string, bool> lost_;
  std::map<std::string, std::map<int64_t, int64_t>> used_;
  uint32_t utilisation_ = 0;
};

class SleepyHost final : public TurnHost {
 public:
  uint64_t now_ns() override { return monotonic_ns(); }
  void wait_any(std::span<const Word>, uint64_t) override { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  void wake(std::atomic<uint32_t>*) override {}
  void spin_pause() override { std::this_thread::yield(); }
};

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-agent-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data()) != nullptr ? pattern : "";
  }
  ~TemporaryDirectory() {
    // Usage files lie on mounts of their own where the test runs as root.
    std::string command =
        "for m in $(grep -o '" + path_ + "[^ ]*' /proc/mounts); do umount -l \"$m\"; done; rm -rf '" + path_ + "'";
    if (std::system(command.c_str()) != 0) std::fprintf(stderr, "cannot remove %s\n", path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The stand-in program, from its start to its end.
class FakeProgram {
 public:
  FakeProgram(const std::string& usage_file, int card, int slot, int64_t reserved_mib) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    std::string words[] = {FAKE_PROGRAM, usage_file, std::to_string(card), std::to_string(slot),
                           std::to_string(reserved_mib)};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), words[4].data(), nullptr};
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execv(argv[0], argv);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_ = Fd(in[1]);
    out_ = Fd(out[0]);
    ready_ = read_line().rfind("ready", 0) == 0;
  }
  ~FakeProgram() { kill(); }
  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }
  bool tell(const std::string& command) {
    std::string line = command + "\n";
    return ::write(in_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) && read_line() == "done";
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  std::string read_line() {
    std::string line;
    char c = 0;
    while (::read(out_.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  pid_t pid_ = -1;
  Fd in_, out_;
  bool ready_ = false;
};

inline bool eventually(const std::function<bool()>& condition, int limit_ms = 5000) {
  for (int waited_ms = 0; waited_ms < limit_ms; waited_ms += 5) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

}  // namespace sluice::agent::test
