// Structured log lines on stderr, logfmt: `time=... level=info msg="grant made" container=a card=0`. One write(2) per
// line, so lines of several threads do not mix. Lines below the chosen level cost a comparison. What cannot be written
// because the log's file system is full is kept (16 KiB at most) and written before the next line that can be.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace sluice::log {

enum class Level { kDebug, kInfo, kWarning, kError };

struct Field {
  std::string_view key;
  std::string value;
  template <typename T>
  Field(std::string_view name, const T& v) : key(name), value(fmt::format("{}", v)) {}
};

void set_level(Level level);
void write(Level level, std::string_view message, std::initializer_list<Field> fields);

inline void debug(std::string_view message, std::initializer_list<Field> fields = {}) {
  write(Level::kDebug, message, fields);
}
inline void info(std::string_view message, std::initializer_list<Field> fields = {}) {
  write(Level::kInfo, message, fields);
}
inline void warning(std::string_view message, std::initializer_list<Field> fields = {}) {
  write(Level::kWarning, message, fields);
}
inline void error(std::string_view message, std::initializer_list<Field> fields = {}) {
  write(Level::kError, message, fields);
}

}  // namespace sluice::log
