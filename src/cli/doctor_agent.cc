// Agent, cards and pages: what can be checked once an agent answers.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/files.h"
#include "cli/doctor_checks.h"
#include "page/grant.h"
#include "page/usage.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kHeartbeatOldNs = 500'000'000;

struct RefusalSentence {
  uint32_t code;
  const char* text;
};
constexpr RefusalSentence kRefusals[] = {
    {page::kRefusalGrantMissing,
     "there was no grant page; the program ran outside of sluice run or its grant had ended"},
    {page::kRefusalGrantUnreadable, "the grant page could not be read; is its directory open to the program's user?"},
    {page::kRefusalGrantMagic, "the grant page was no grant page"},
    {page::kRefusalGrantVersion,
     "the grant page was of another version; agent and libraries have to be of one release"},
    {page::kRefusalGrantSize, "the grant page was cut short"},
    {page::kRefusalUsageMissing, "there was no usage file"},
    {page::kRefusalUsageUnwritable, "the usage file could not be written; is it mounted read-write?"},
    {page::kRefusalUsageLayout, "the usage file did not fit the grant; agent and libraries have to be of one release"},
    {page::kRefusalPagesApart, "grant page and usage file belonged to different grants"},
    {page::kRefusalDriverMissing, "the driver could not be loaded from its private place"},
    {page::kRefusalDriverSymbols, "the driver lacks a function that cannot be done without; it is too old"},
    {page::kRefusalSlotsFull, "256 processes held the card already"},
    {page::kRefusalLocks, "record locks did not work on the usage file"},
};

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

template <typename T>
bool read_at(const Fd& file, uint64_t offset, T& into) {
  return pread(file.get(), &into, sizeof into, static_cast<off_t>(offset)) == static_cast<ssize_t>(sizeof into);
}

// The folder in which the agent keeps a grant's two pages.
std::string grant_folder(const std::string& run_directory, const std::string& id) {
  std::error_code ignored;
  for (const char* place : {"grants", "pages", "."}) {
    const auto folder = std::filesystem::path(run_directory) / place / id;
    if (std::filesystem::exists(folder / "grant" / "page", ignored)) return folder;
  }
  return "";
}

Link broken_page(const std::string& name, const std::string& found) {
  return {name, LinkState::kBroken, found, "end the programs of this grant and start them again"};
}

// The agent takes the magic number out of the page when the grant's command has ended: no program starts with it then.
bool is_closed(const std::string& folder) {
  Fd file(open((folder + "/grant/page").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  uint64_t magic = 0;
  return file.valid() && read_at(file, offsetof(page::GrantHeader, magic), magic) && magic == 0;
}

Link check_grant_page(const std::string& name, const std::string& folder, bool beating) {
  const std::string path = folder + "/grant/page";
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return broken_page(name, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  // Fields one by one: the header holds atomics and is no value to copy.
  uint64_t magic = 0, heartbeat = 0;
  uint16_t major = 0;
  uint32_t bytes = 0;
  struct stat st{};
  if (!read_at(file, offsetof(page::GrantHeader, magic), magic) ||
      !read_at(file, offsetof(page::GrantHeader, major), major) ||
      !read_at(file, offsetof(page::GrantHeader, bytes), bytes) || fstat(file.get(), &st) != 0 ||
      !read_at(file, offsetof(page::GrantHeader, heartbeat_ns), heartbeat)) {
    return broken_page(name, "the grant page is cut short");
  }
  if (magic != page::kGrantMagic) return broken_page(name, "the grant page is no grant page");
  if (major != page::kMajor) {
    return broken_page(name, fmt::format("the grant page is of version {}, this sluice knows {}", major, page::kMajor));
  }
  if (st.st_size < static_cast<off_t>(bytes))
    return broken_page(name, "the grant page is shorter than its header claims");
  const uint64_t now = monotonic_ns();
  if (beating && now > heartbeat + kHeartbeatOldNs) {
    return {name, LinkState::kBroken, fmt::format("no heartbeat for {} ms", (now - heartbeat) / 1'000'000),
            "the agent is stopped or overloaded; programs govern themselves meanwhile. Start it again if it stays so"};
  }
  return {name, LinkState::kHolds, "pages are whole, the heartbeat is fresh", ""};
}

// What guests of the grant complained about last.
std::string refusal_of(const std::string& folder, size_t cards) {
  const std::string path = folder + "/usage.d/usage";
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) return "";
  for (size_t i = 0; i < std::min<size_t>(cards, page::kMaxCards); ++i) {
    uint32_t code = 0;
    const uint64_t offset = sizeof(page::UsageHeader) + i * sizeof(page::UsageCard) +
                            offsetof(page::UsageCard, account) + offsetof(page::Account, refusal_code);
    if (read_at(file, offset, code) && !refusal_text(code).empty()) return refusal_text(code);
  }
  return "";
}

}  // namespace

std::string refusal_text(uint32_t code) {
  const auto found = std::find_if(std::begin(kRefusals), std::end(kRefusals),
                                  [&](const RefusalSentence& r) { return r.code == code; });
  return found == std::end(kRefusals) ? "" : found->text;
}

std::vector<Link> check_agent(const Result<agent::Client>& client) {
  if (!client) {
    const std::string& found = client.error().message;
    if (client.error().code != ErrorCode::kUnavailable)
      return {{"agent", LinkState::kBroken, found, "see above; ask who runs it"}};
    // It is there and silent: programs go on, but nobody takes turns and no program starts.
    if (found.find("did not answer") != std::string::npos)
      return {{"agent", LinkState::kBroken, found, "continue it, or end it: sluice run starts another"}};
    return {
        {"agent", LinkState::kNote, found, "nothing to do unless a program is running: sluice run starts an agent"}};
  }
  const agent::HelloAnswer& hello = client->agent();
  std::vector<Link> links;
  links.push_back(
      {"agent", LinkState::kHolds,
       fmt::format("version {}, pid {}, uid {}, in {}", hello.version, hello.pid, hello.uid, hello.run_directory), ""});
  if (hello.version != SLUICE_VERSION) {
    links.push_back({"agent: version", LinkState::kNote,
                     fmt::format("the agent is {}, this tool {}", hello.version, SLUICE_VERSION),
                     "let the agent leave (it does when idle) or restart it, so that both are of one release"});
  }
  struct stat ours{};
  struct stat theirs{};
  if (stat("/proc/self/ns/pid", &ours) == 0 && stat(fmt::format("/proc/{}/ns/pid", hello.pid).c_str(), &theirs) == 0 &&
      ours.st_ino != theirs.st_ino) {
    links.push_back({"agent: pid namespace", LinkState::kBroken, "the agent is in another pid namespace",
                     "run it in the machine's own (hostPID): it has to see every process that holds a card"});
  }
  return links;
}

std::vector<Link> check_cards(const agent::ListAnswer& list) {
  if (list.cards.empty()) {
    return {{"cards", LinkState::kBroken, "the agent finds no card",
             "see the driver's links above; nvidia-smi -L should list cards"}};
  }
  std::vector<Link> links;
  for (const agent::CardStatus& card : list.cards) {
    const std::string name = fmt::format("card {}", card.index);
    const std::string what = fmt::format("{}, {} MiB, {}", card.model, card.memory_mib, card.uuid);
    if (card.state == "ok") {
      links.push_back({name, LinkState::kHolds, what, ""});
    } else {
      links.push_back({name, LinkState::kBroken, fmt::format("{}: {}", what, card.state),
                       card.state == "lost"
                           ? "look for XID messages in the kernel log; reset the card or restart the machine"
                           : "end the other agent, or use its run directory (--run-dir)"});
    }
    for (const agent::ProcessStatus& process : card.strangers) {
      links.push_back({name, LinkState::kNote, fmt::format("process {} uses it without a grant", process.pid),
                       "start it with sluice run, or end it: no limit holds for it"});
    }
  }
  return links;
}

std::vector<Link> check_pages_alone(const std::string& run_directory) {
  std::vector<Link> links;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(run_directory) / "grants",
                                           std::filesystem::directory_options::skip_permission_denied, ignored)) {
    const std::string id = entry.path().filename();
    const std::string folder = grant_folder(run_directory, id);
    if (folder.empty() || is_closed(folder)) continue;
    Link link = check_grant_page("grant " + id, folder, false);
    if (link.state == LinkState::kHolds) link.found = "its page is whole; no agent looks after it";
    links.push_back(link);
  }
  return links;
}

std::vector<Link> check_pages(const agent::ListAnswer& list) {
  std::vector<Link> links;
  for (const agent::GrantStatus& grant : list.grants) {
    const std::string name = fmt::format("grant {}", grant.name);
    const std::string folder = grant_folder(list.run_directory, grant.id);
    if (folder.empty()) {
      links.push_back({name, LinkState::kNote,
                       fmt::format("its pages under {} are not readable for this user", list.run_directory),
                       "run sluice doctor as root to check them"});
      continue;
    }
    if (grant.runner_pid == 0 && is_closed(folder)) {
      links.push_back({name, LinkState::kNote,
                       grant.processes.empty()
                           ? "its command has ended"
                           : "its command has ended; processes of it still hold the card, within its limits",
                       ""});
      continue;
    }
    Link link = check_grant_page(name, folder, true);
    const std::string refusal = refusal_of(folder, grant.cards.size());
    if (link.state == LinkState::kHolds && !refusal.empty()) {
      link = {name, LinkState::kBroken, fmt::format("a program was refused: {}", refusal),
              "mend that and start the program again"};
    }
    links.push_back(link);
  }
  return links;
}

}  // namespace sluice::cli
