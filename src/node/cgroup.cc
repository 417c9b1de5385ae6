#include "node/cgroup.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/files.h"

namespace sluice::node {
namespace {

constexpr size_t kMaxText = 256 << 10;
constexpr size_t kHashDigits = 32;       // a static pod's UID
constexpr size_t kContainerDigits = 64;  // container ids of containerd, CRI-O and docker
constexpr std::string_view kPods = "kubepods";

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); });
}

// "pod<uid>" at the end of the name, the uid's dashes as they are or as underscores.
std::optional<std::string> pod_uid_of(std::string_view name) {
  size_t at = name.rfind("pod");
  // The name before it belongs to the kubelet: nothing, or a slice's path ("kubepods-burstable-").
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '-')) return std::nullopt;
  std::string uid(name.substr(at + 3));
  if (uid.size() == kHashDigits && is_hex(uid)) return uid;
  constexpr size_t kUidLength = 36;
  if (uid.size() != kUidLength) return std::nullopt;
  for (size_t i = 0; i < uid.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash && (uid[i] == '-' || uid[i] == '_'))
      uid[i] = '-';
    else if (dash || !is_hex(std::string_view(&uid[i], 1)))
      return std::nullopt;
  }
  return uid;
}

// "<id>", "cri-containerd-<id>.scope", "crio-<id>". CRI-O's monitor ("crio-conmon-<id>") is no container.
std::string container_id_of(std::string_view name) {
  if (name.ends_with(".scope")) name.remove_suffix(6);
  if (name.find("conmon") != std::string_view::npos) return "";
  if (const size_t dash = name.rfind('-'); dash != std::string_view::npos) name.remove_prefix(dash + 1);
  return name.size() == kContainerDigits && is_hex(name) ? std::string(name) : "";
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(at, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::optional<CgroupOwner> parse_path(std::string_view path) {
  const std::vector<std::string_view> names = split(path, '/');
  // Users may make groups of any name in their own sessions.
  if (names.size() > 1 && names[1] == "user.slice") return std::nullopt;
  // From inside a cgroup namespace the names above are cut off ("/../../burstable/pod<uid>/<id>").
  bool below_pods = names.size() > 1 && names[1] == "..";
  for (size_t i = 1; i < names.size(); ++i) {  // [0] is what stands before the first '/'
    if (names[i].find(kPods) != std::string_view::npos) below_pods = true;
    if (!below_pods) continue;
    // "<slice>:<prefix>:<container id>": a systemd pod whose runtime uses the other driver.
    const std::vector<std::string_view> parts = split(names[i], ':');
    std::string_view name = parts.front();
    if (name.ends_with(".slice")) name.remove_suffix(6);
    std::optional<std::string> uid = pod_uid_of(name);
    if (!uid) {
      const bool may_lie_above =
          name == ".." || name == "burstable" || name == "besteffort" || name.find(kPods) != std::string_view::npos;
      if (!may_lie_above) below_pods = false;
      continue;
    }
    CgroupOwner owner{*std::move(uid), ""};
    if (parts.size() == 3)
      owner.container_id = container_id_of(parts.back());
    else if (i + 1 < names.size())
      owner.container_id = container_id_of(names[i + 1]);
    return owner;
  }
  return std::nullopt;
}

// Fields of /proc/PID/stat after the command, which stands in parentheses and may hold anything.
struct Stat {
  char state = '?';
  int64_t threads = 0;
  uint64_t start_ticks = 0;

  // A leader that has ended while its threads live on is a process still.
  bool ended() const { return (state == 'Z' || state == 'X') && threads <= 1; }
};
std::optional<Stat> read_stat(const std::string& path) {
  Result<std::string> text = read_file(path, 4096);
  if (!text) return std::nullopt;
  const size_t close = text->rfind(')');
  if (close == std::string::npos || close + 2 >= text->size()) return std::nullopt;
  const std::vector<std::string_view> fields = split(std::string_view(*text).substr(close + 2), ' ');
  constexpr size_t kThreadsField = 17;  // 20 and 22 in proc(5), counted from the state, which is 3
  constexpr size_t kStartField = 19;
  if (fields.size() <= kStartField || fields[0].empty()) return std::nullopt;
  Stat stat;
  stat.state = fields[0].front();
  const std::string_view threads = fields[kThreadsField], start = fields[kStartField];
  std::from_chars(threads.data(), threads.data() + threads.size(), stat.threads);
  std::from_chars(start.data(), start.data() + start.size(), stat.start_ticks);
  return stat;
}

}  // namespace

std::optional<CgroupOwner> parse_cgroup(std::string_view text) {
  std::optional<CgroupOwner> found;
  for (std::string_view line : split(text, '\n')) {
    // "hierarchy:controllers:path"; controllers hold no colon, paths may.
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    std::optional<CgroupOwner> owner = parse_path(line.substr(second + 1));
    if (owner && !owner->container_id.empty()) return owner;
    if (owner && !found) found = std::move(owner);
  }
  return found;
}

std::optional<ProcessSeen> look_at_process(int64_t pid, const std::string& proc) {
  const std::string folder = fmt::format("{}/{}", proc, pid);
  const std::optional<Stat> stat = read_stat(folder + "/stat");
  if (!stat || stat->ended()) return std::nullopt;
  ProcessSeen seen;
  seen.pid = pid;
  seen.start_ticks = stat->start_ticks;
  if (Result<std::string> text = read_file(folder + "/comm", 4096); text) {
    while (!text->empty() && text->back() == '\n') text->pop_back();
    for (char& c : *text) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    seen.command = *std::move(text);
  }
  if (Result<std::string> text = read_file(folder + "/cgroup", kMaxText); text) seen.owner = parse_cgroup(*text);
  const std::optional<Stat> again = read_stat(folder + "/stat");
  if (!again || again->start_ticks != stat->start_ticks) return std::nullopt;  // another one by now
  return seen;
}

bool stop_process(const ProcessSeen& process) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid), 0)));
  if (!pidfd.valid()) return false;
  const std::optional<ProcessSeen> now = look_at_process(process.pid);
  if (!now || now->start_ticks != process.start_ticks) return false;
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0) == 0;
}

}  // namespace sluice::node
