// The mounts, made for real in a child process: as root where the test runs as root, and always as an ordinary user
// through a user namespace. Files with a few letters stand for driver and libraries.
#include "cli/namespace.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include "base/files.h"
#include "cli/scratch_test.h"
#include "page/grant.h"

namespace sluice::cli {
namespace {

constexpr uid_t kOrdinaryUser = 65534;

struct Place {
  Scratch scratch;
  agent::GrantAnswer grant;
  DriverFiles found;

  Place() {
    scratch.file("agent/grant/page", "page");
    grant.grant_directory = scratch.path("agent/grant");
    grant.usage_file = scratch.file("agent/usage", "usage");
    std::filesystem::permissions(grant.usage_file, std::filesystem::perms(0666));
    for (const DriverLibrary library : kDriverLibraries) {
      const std::string name = soname(library);
      agent::DriverFile file;
      file.soname = name;
      file.real_path = scratch.file("lib/" + name + ".580.95.05", "real");
      scratch.link("lib/" + name, name + ".580.95.05");
      scratch.file("other/" + name, "second real");
      file.cover = {file.real_path};
      file.guest_path = scratch.file("guest/" + name, "ours");
      grant.driver_files.push_back(file);
    }
    scratch.file("guest/libsluice-preload.so", "shim");
    found = find_driver_files({scratch.path("lib") + ":" + scratch.path("other"), scratch.path("none"), {}, {}});
  }
};

std::string text_of(const std::string& path) {
  const auto text = read_file(path);
  return text ? *text : "(" + text.error().message + ")";
}

// Runs `look` inside the namespace as `uid`, with what it returns as the result; what went wrong begins with "error: ".
std::string inside(const NamespacePlan& plan, uid_t uid, const std::function<std::string()>& look) {
  int ends[2];
  if (pipe(ends) != 0) return "error: pipe";
  const pid_t child = fork();
  if (child == 0) {
    std::string text;
    const bool switched = uid == geteuid() || (setgroups(0, nullptr) == 0 && setresgid(uid, uid, uid) == 0 &&
                                               setresuid(uid, uid, uid) == 0);
    // A process that changed its uid may not write its own uid map until it is dumpable again.
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    Result<void> entered = switched ? enter_namespace(plan) : Result<void>(internal("cannot change the uid"));
    if (entered) entered = drop_privileges();
    text = entered ? look() : "error: " + entered.error().message;
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written >= 0 ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "error: the child died";
}

class Namespace : public testing::TestWithParam<bool> {  // true: as root
 protected:
  void SetUp() override {
    if (GetParam() && geteuid() != 0) GTEST_SKIP() << "needs root";
    if (auto tried = try_namespace(); !tried) GTEST_SKIP() << tried.error().message;
  }
  uid_t uid() const { return GetParam() || geteuid() != 0 ? geteuid() : kOrdinaryUser; }
  NamespacePlan plan(const Place& place, Delivery delivery) {
    auto made = plan_namespace(place.grant, place.found, delivery, "");
    EXPECT_TRUE(made) << made.error().message;
    return *made;
  }
};

TEST_P(Namespace, EveryDriverFileLeadsToOursAndTheRealOneToItsPrivatePlace) {
  Place place;
  const auto path = [&](const char* name) { return place.scratch.path(name); };
  const std::string seen = inside(plan(place, Delivery::kBindMount), uid(), [&] {
    std::string out;
    for (const char* name :
         {"lib/libcuda.so.1", "lib/libcuda.so.1.580.95.05", "other/libcuda.so.1", "lib/libnvidia-ml.so.1"}) {
      out += text_of(path(name)) + " ";
    }
    return out + text_of(std::string(page::kDriverDirectory) + "/real-cuda");
  });
  EXPECT_EQ(seen, "ours ours ours ours real");
  EXPECT_EQ(text_of(path("lib/libcuda.so.1")), "real") << "the mounts reached the host";
}

TEST_P(Namespace, TheGrantIsReadOnlyAndUsageWritable) {
  Place place;
  const std::string seen = inside(plan(place, Delivery::kBindMount), uid(), [&]() -> std::string {
    const auto writable = [](const char* path) {
      const int fd = open(path, O_RDWR);
      if (fd >= 0) close(fd);
      return std::string(fd >= 0 ? "rw" : errno == EROFS || errno == EACCES ? "ro" : "??");
    };
    return text_of(page::kGrantPath) + " " + writable(page::kGrantPath) + " " + text_of(page::kUsagePath) + " " +
           writable(page::kUsagePath) +
           (rename(page::kUsagePath, "/run/sluice/container/other") == 0 ? " moved" : " fixed") +
           (mkdir("/run/sluice/new", 0755) == 0 ? " made" : " closed");
  });
  EXPECT_EQ(seen, "page ro usage rw fixed closed");
}

TEST_P(Namespace, NothingOfItCanBeUndoneFromInside) {
  Place place;
  const std::string seen = inside(plan(place, Delivery::kBindMount), uid(), [&]() -> std::string {
    const std::string cover = place.scratch.path("lib/libcuda.so.1.580.95.05");
    std::string out = umount2(cover.c_str(), MNT_DETACH) == 0 ? "undone" : "kept";
    out += umount2("/run/sluice", MNT_DETACH) == 0 ? " undone" : " kept";
    out += mount(nullptr, "/run/sluice/container/grant", nullptr, MS_BIND | MS_REMOUNT, nullptr) == 0 ? " undone"
                                                                                                      : " kept";
    return out;
  });
  EXPECT_EQ(seen, "kept kept kept");
}

TEST_P(Namespace, TheUserStaysWhoTheyAreAndRunKeepsItsEntries) {
  Place place;
  std::string before;
  for (const auto& entry : std::filesystem::directory_iterator("/run")) {
    if (entry.path() != "/run/sluice") before += entry.path().string() + ";";
  }
  const std::string seen = inside(plan(place, Delivery::kBindMount), uid(), [&] {
    std::string missing;
    for (size_t start = 0; start < before.size();) {
      const size_t end = before.find(';', start);
      const std::string path = before.substr(start, end - start);
      struct stat st{};
      if (lstat(path.c_str(), &st) != 0) missing += " " + path;
      start = end + 1;
    }
    return std::to_string(geteuid()) + " " + std::to_string(getegid()) + missing;
  });
  const gid_t gid = uid() == geteuid() ? getegid() : kOrdinaryUser;
  EXPECT_EQ(seen, std::to_string(uid()) + " " + std::to_string(gid));
}

TEST_P(Namespace, PreloadDeliveryNamesOursInAFileOfItsOwn) {
  Place place;
  const bool had = std::filesystem::exists("/etc/ld.so.preload");
  const std::string seen = inside(plan(place, Delivery::kPreload), uid(), [&] {
    return text_of("/etc/ld.so.preload") + text_of("/run/sluice/container/lib/libcuda.so.1") + " " +
           text_of(place.scratch.path("lib/libcuda.so.1")) + " " + (read_file("/etc/passwd") ? "etc" : "no etc");
  });
  EXPECT_EQ(seen.substr(0, seen.find("ours") + 4),
            "/run/sluice/container/lib/libcuda.so.1\n/run/sluice/container/lib/libnvidia-ml.so.1\n"
            "/run/sluice/container/lib/libsluice-preload.so\n" +
                std::string(had ? text_of("/etc/ld.so.preload") : "") + "ours");
  EXPECT_TRUE(seen.ends_with("ours real etc")) << seen;
  EXPECT_EQ(std::filesystem::exists("/etc/ld.so.preload"), had) << "the host's /etc was written";
}

TEST_P(Namespace, AMissingSourceIsNamedAndNothingRuns) {
  Place place;
  place.grant.driver_files[0].guest_path = place.scratch.path("gone");
  const std::string seen = inside(plan(place, Delivery::kBindMount), uid(), [] { return std::string("ran"); });
  EXPECT_EQ(seen, "error: cannot open " + place.scratch.path("gone") + ": No such file or directory");
}

std::string user_name(const testing::TestParamInfo<bool>& as) {
  return as.param ? "Root" : "User";
}
INSTANTIATE_TEST_SUITE_P(As, Namespace, testing::Values(true, false), user_name);

TEST(NamespacePlan, CoversEachFileOnceAndHidesAUsersAgent) {
  Place place;
  const auto plan = plan_namespace(place.grant, place.found, Delivery::kBindMount, "/tmp/sluice-1000");
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->covers.size(), 4u);  // two files of each library
  EXPECT_EQ(plan->hidden, (std::vector<std::string>{"/tmp/sluice-1000"}));
  EXPECT_TRUE(plan_namespace(place.grant, place.found, Delivery::kBindMount, "/run/sluice")->hidden.empty());
  EXPECT_EQ(plan_namespace(place.grant, place.found, Delivery::kBindMount, "/srv/node-a")->hidden,
            (std::vector<std::string>{"/srv/node-a/grants", "/srv/node-a/records"}));
}

TEST(NamespacePlan, AnAnswerWithoutLibrariesIsNoPlan) {
  Place place;
  place.grant.driver_files.pop_back();
  const auto plan = plan_namespace(place.grant, place.found, Delivery::kBindMount, "");
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace sluice::cli
