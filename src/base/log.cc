#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <mutex>

namespace sluice::log {
namespace {

std::atomic<Level> minimum{Level::kInfo};

// Lines that could not be written (the file system of the log is full), the oldest first; they go out before the next
// one that can be.
constexpr size_t kMaxKeptBytes = 16 << 10;
std::mutex kept_mutex;
std::string& kept = *new std::string;  // for the whole life of the process: threads may log while it ends

// Writes what can be; gives back the rest.
std::string_view put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return text;
}

void put_or_keep(const std::string& line) {
  std::unique_lock guard(kept_mutex, std::try_to_lock);
  if (!guard) {  // another thread is writing, or was when this process was forked: never a reason to wait
    put(line);
    return;
  }
  if (!kept.empty()) kept.erase(0, kept.size() - put(kept).size());
  const std::string_view rest = kept.empty() ? put(line) : std::string_view(line);
  if (kept.size() + rest.size() <= kMaxKeptBytes) kept += rest;
}

// Values with anything but plain characters are quoted and escaped, so that a line stays one line.
void append_value(std::string& line, std::string_view value) {
  bool plain = !value.empty();
  for (char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 127) plain = false;
  }
  if (plain) {
    line += value;
    return;
  }
  line += '"';
  for (char c : value) {
    if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else if (static_cast<unsigned char>(c) < ' ' || c == 127) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  line += '"';
}

}  // namespace

void set_level(Level level) {
  minimum.store(level, std::memory_order_relaxed);
}

void write(Level level, std::string_view message, std::initializer_list<Field> fields) {
  if (level < minimum.load(std::memory_order_relaxed)) return;
  static constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  std::string line = fmt::format("time={:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z level={} msg=", parts.tm_year + 1900,
                                 parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                                 now.tv_nsec / 1'000'000, kNames[static_cast<int>(level)]);
  append_value(line, message);
  for (const Field& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    append_value(line, field.value);
  }
  line += '\n';
  put_or_keep(line);
}

}  // namespace sluice::log
