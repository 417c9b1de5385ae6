// The options of a workload without CLI11, for machines that have no more than a compiler (SLUICE_BARE). The same
// names, ranges and exit status as options.cc; shorter texts.
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

#include "common/options.h"
#include "runtime/driver.h"

namespace workloads {

struct Options::Parser {
  struct Entry {
    bool takes_value = true;
    std::string help;
    std::function<bool(const std::string&)> set;  // false: not an allowed value
  };
  std::string program, purpose;
  Common common;
  std::map<std::string, Entry> entries;

  [[noreturn]] void refuse(const std::string& why) const {
    std::fprintf(stderr, "%s: %s; --help lists the options\n", program.c_str(), why.c_str());
    std::exit(kExitUsage);
  }
  [[noreturn]] void help() const {
    std::printf("%s\n", purpose.c_str());
    for (const auto& [name, entry] : entries) std::printf("  --%-14s %s\n", name.c_str(), entry.help.c_str());
    std::exit(0);
  }
};

namespace {

bool whole_number(const std::string& text, uint64_t least, uint64_t most, uint64_t* value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stopped == end && *value >= least && *value <= most;
}

}  // namespace

Options::Options(const char* program, const char* purpose, Common defaults) : parser_(new Parser) {
  parser_->program = program;
  parser_->purpose = purpose;
  parser_->common = defaults;
  number("seconds", &parser_->common.seconds, 0.01, 1e6, "how long to work");
  flag("json", &parser_->common.json, "print the result as one line of JSON");
  count("mem-mib", &parser_->common.mem_mib, 0, 1u << 24, "device memory to hold while working");
  parser_->entries["device"] = {true, "index of the card", [target = &parser_->common.device](const std::string& text) {
                                  uint64_t value = 0;
                                  if (!whole_number(text, 0, 1023, &value)) return false;
                                  *target = static_cast<int>(value);
                                  return true;
                                }};
  count("seed", &parser_->common.seed, 0, UINT64_MAX, "seed of every random choice");
}

Options::~Options() = default;

Options& Options::number(const char* name, double* target, double least, double most, const char* help) {
  parser_->entries[name] = {true, help, [=](const std::string& text) {
                              char* end = nullptr;
                              errno = 0;
                              const double value = std::strtod(text.c_str(), &end);
                              if (text.empty() || *end != '\0' || errno != 0) return false;
                              if (!(value >= least && value <= most)) return false;
                              *target = value;
                              return true;
                            }};
  return *this;
}

Options& Options::count(const char* name, uint64_t* target, uint64_t least, uint64_t most, const char* help) {
  parser_->entries[name] = {true, help, [=](const std::string& text) {
                              uint64_t value = 0;
                              if (!whole_number(text, least, most, &value)) return false;
                              *target = value;
                              return true;
                            }};
  return *this;
}

Options& Options::flag(const char* name, bool* target, const char* help) {
  parser_->entries[name] = {false, help, [=](const std::string&) { return *target = true; }};
  return *this;
}

Options& Options::text(const char* name, std::string* target, const char* help) {
  parser_->entries[name] = {true, help, [=](const std::string& text) {
                              *target = text;
                              return true;
                            }};
  return *this;
}

Options& Options::choice(const char* name, std::string* target, std::vector<std::string> allowed, const char* help) {
  parser_->entries[name] = {true, help, [=, allowed = std::move(allowed)](const std::string& text) {
                              for (const std::string& one : allowed) {
                                if (one == text) return *target = text, true;
                              }
                              return false;
                            }};
  return *this;
}

const Common& Options::parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--help" || word == "-h") parser_->help();
    if (word.rfind("--", 0) != 0) parser_->refuse("'" + word + "' is no option");
    word.erase(0, 2);
    std::string value;
    const size_t equals = word.find('=');
    const bool attached = equals != std::string::npos;
    if (attached) {
      value = word.substr(equals + 1);
      word.resize(equals);
    }
    const auto entry = parser_->entries.find(word);
    if (entry == parser_->entries.end()) parser_->refuse("there is no option --" + word);
    if (entry->second.takes_value && !attached) {
      if (i + 1 >= argc) parser_->refuse("--" + word + " needs a value");
      value = argv[++i];
    }
    if (!entry->second.set(value)) parser_->refuse("--" + word + ": '" + value + "' is not allowed");
  }
  return parser_->common;
}

}  // namespace workloads
