// Texts of /proc/PID/cgroup as the kubelet and container runtimes leave them (tests/data/cgroup), and live processes.
#include "node/cgroup.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/files.h"

namespace sluice::node {
namespace {

const std::string kUid = "0a4c7e6f-53d5-4b8e-9d27-f1b1c0a5e912";
const std::string kHash = "2d3b1f0c9e8a7d6c5b4a39281706f5e4";
const std::string kId = "9f2d6c7a1b0e4d3f8a5b6c7d8e9f00112233445566778899aabbccddeeff0011";

struct Form {
  const char* file;
  const std::string& uid;
  const std::string& id;
};

const std::string kNothing;

TEST(Cgroup, EveryFormNamesPodAndContainer) {
  const Form forms[] = {
      {"v1_cgroupfs_burstable", kUid, kId},
      {"v1_cgroupfs_guaranteed", kUid, kId},
      {"v1_cgroupfs_root_named", kUid, kId},
      {"v1_systemd", kUid, kId},
      {"v1_systemd_docker", kUid, kId},
      {"v1_systemd_pod_cgroupfs_container", kUid, kId},
      {"v1_some_hierarchies_only", kUid, kId},
      {"v2_systemd_containerd", kUid, kId},
      {"v2_systemd_crio", kUid, kId},
      {"v2_systemd_crio_monitor", kUid, kNothing},
      {"v2_cgroupfs", kUid, kId},
      {"v2_static_pod", kHash, kId},
      {"v2_namespace_systemd", kUid, kId},
      {"v2_namespace_cgroupfs", kUid, kId},
      {"v2_kind", kUid, kId},
      {"v2_nested_groups", kUid, kId},
      {"v2_pod_only", kUid, kNothing},
      {"host_service", kNothing, kNothing},
      {"host_docker", kNothing, kNothing},
      {"host_user_pretends", kNothing, kNothing},
      {"host_namespace_pretends", kNothing, kNothing},
  };
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(CGROUP_DATA)) ++files;
  EXPECT_EQ(files, std::size(forms)) << "a file of " << CGROUP_DATA << " is not looked at";
  for (const Form& form : forms) {
    Result<std::string> text = read_file(std::string(CGROUP_DATA) + "/" + form.file + ".txt");
    ASSERT_TRUE(text) << form.file;
    const std::optional<CgroupOwner> owner = parse_cgroup(*text);
    EXPECT_EQ(owner.has_value(), !form.uid.empty()) << form.file;
    if (owner) {
      EXPECT_EQ(owner->pod_uid, form.uid) << form.file;
      EXPECT_EQ(owner->container_id, form.id) << form.file;
    }
  }
}

TEST(Cgroup, NonsenseIsNobodys) {
  for (const std::string& text :
       std::vector<std::string>{"", "\n", ":", "::", "0::", "0::/", "no colons", "0::/kubepods", "0::/kubepods/pod",
                                "0::/kubepods/pod/x", "0::/kubepods/pod0a4c7e6f-53d5-4b8e-9d27-f1b1c0a5e91",
                                "0::/kubepods/podzz4c7e6f-53d5-4b8e-9d27-f1b1c0a5e912/x",
                                "0::/kubepods/tripod" + kUid + "/" + kId, "0::/other/pod" + kUid + "/" + kId,
                                "0::kubepods", std::string(100'000, '/'), std::string("0::/kubepods/\0pod", 17)}) {
    EXPECT_FALSE(parse_cgroup(text)) << text.substr(0, 80);
  }
  // Cut anywhere, a text may say less, never something else.
  const std::string whole = "0::/kubepods/burstable/pod" + kUid + "/" + kId + "\n";
  for (size_t length = 0; length <= whole.size(); ++length) {
    const std::optional<CgroupOwner> owner = parse_cgroup(whole.substr(0, length));
    if (!owner) continue;
    EXPECT_EQ(owner->pod_uid, kUid);
    EXPECT_TRUE(owner->container_id.empty() || owner->container_id == kId);
  }
}

class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) ::pause();
    }
  }
  ~Child() { end(); }
  void end() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(Process, IsKnownByPidAndStartAndOnlyThatOneIsStopped) {
  Child child;
  std::optional<ProcessSeen> seen = look_at_process(child.pid());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->pid, child.pid());
  EXPECT_GT(seen->start_ticks, 0u);
  EXPECT_EQ(seen->command, "node_view_test");
  ProcessSeen other = *seen;
  other.start_ticks += 1;  // as if the pid had been given to another since
  EXPECT_FALSE(stop_process(other));
  EXPECT_EQ(::kill(child.pid(), 0), 0);
  EXPECT_TRUE(stop_process(*seen));
  // Killed and not reaped: no process any more.
  for (int i = 0; i < 500 && look_at_process(child.pid()); ++i) ::usleep(10'000);
  EXPECT_FALSE(look_at_process(child.pid()));
  EXPECT_FALSE(stop_process(*seen));
  child.end();
  EXPECT_FALSE(look_at_process(999'999'999));
}

// Hiding behind a leader that has ended does not help: its threads hold the card.
TEST(Process, LivesAsLongAsOneOfItsThreads) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::thread([] {
      while (true) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);  // of this thread alone
  }
  const std::string stat = "/proc/" + std::to_string(pid) + "/stat";
  bool zombie = false;
  for (int i = 0; i < 500 && !zombie; ++i) {
    Result<std::string> text = read_file(stat);
    zombie = text && text->find(") Z ") != std::string::npos;
    ::usleep(10'000);
  }
  EXPECT_TRUE(zombie);
  std::optional<ProcessSeen> seen = look_at_process(pid);
  EXPECT_TRUE(seen);
  EXPECT_TRUE(seen && stop_process(*seen));
  ::waitpid(pid, nullptr, 0);
}

// The kernel's own text, for groups named as both drivers name them.
TEST(Process, LiveGroupsOfVersionOne) {
  const std::string root = "/sys/fs/cgroup/freezer";
  const std::string top = root + "/sluice-test-" + std::to_string(::getpid());
  std::error_code code;
  if (!std::filesystem::create_directory(top, code)) GTEST_SKIP() << "no groups can be made under " << root;
  std::string systemd_uid = kUid;
  std::replace(systemd_uid.begin(), systemd_uid.end(), '-', '_');
  const std::vector<std::vector<std::string>> paths = {
      {"kubepods", "burstable", "pod" + kUid, kId},
      {"kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-pod" + systemd_uid + ".slice",
       "cri-containerd-" + kId + ".scope"},
  };
  std::vector<std::string> made = {top};
  for (const std::vector<std::string>& path : paths) {
    std::string folder = top;
    for (const std::string& name : path) {
      folder += "/" + name;
      ASSERT_EQ(::mkdir(folder.c_str(), 0755), 0) << folder;
      made.push_back(folder);
    }
    Child child;
    std::ofstream(folder + "/cgroup.procs") << child.pid() << std::flush;
    const std::optional<ProcessSeen> seen = look_at_process(child.pid());
    ASSERT_TRUE(seen && seen->owner) << folder;
    EXPECT_EQ(*seen->owner, (CgroupOwner{kUid, kId})) << folder;
  }
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) {
    for (int i = 0; i < 100 && ::rmdir(folder->c_str()) != 0; ++i) ::usleep(10'000);
    EXPECT_NE(::access(folder->c_str(), F_OK), 0) << *folder << " is left";
  }
}

}  // namespace
}  // namespace sluice::node
