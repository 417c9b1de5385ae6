#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <ctime>

namespace sluice::log {
namespace {

std::atomic<Level> minimum{Level::kInfo};

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
  [[maybe_unused]] ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace sluice::log
