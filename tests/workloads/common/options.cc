#include "common/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "runtime/driver.h"

namespace workloads {

struct Options::Parser {
  std::string program;
  Common common;
  CLI::App app;
};

Options::Options(const char* program, const char* purpose, Common defaults) : parser_(new Parser) {
  parser_->program = program;
  parser_->common = defaults;
  parser_->app.name(program);
  parser_->app.description(purpose);
  number("seconds", &parser_->common.seconds, 0.01, 1e6, "how long to work");
  flag("json", &parser_->common.json, "print the result as one line of JSON");
  count("mem-mib", &parser_->common.mem_mib, 0, 1u << 24, "device memory to hold while working");
  parser_->app.add_option("--device", parser_->common.device, "index of the card")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  count("seed", &parser_->common.seed, 0, UINT64_MAX, "seed of every random choice");
}

Options::~Options() = default;

Options& Options::number(const char* name, double* target, double least, double most, const char* help) {
  parser_->app.add_option(std::string("--") + name, *target, help)
      ->check(CLI::Range(least, most))
      ->capture_default_str();
  return *this;
}

Options& Options::count(const char* name, uint64_t* target, uint64_t least, uint64_t most, const char* help) {
  parser_->app.add_option(std::string("--") + name, *target, help)
      ->check(CLI::Range(least, most))
      ->capture_default_str();
  return *this;
}

Options& Options::flag(const char* name, bool* target, const char* help) {
  parser_->app.add_flag(std::string("--") + name, *target, help);
  return *this;
}

Options& Options::text(const char* name, std::string* target, const char* help) {
  parser_->app.add_option(std::string("--") + name, *target, help)->capture_default_str();
  return *this;
}

Options& Options::choice(const char* name, std::string* target, std::vector<std::string> allowed, const char* help) {
  parser_->app.add_option(std::string("--") + name, *target, help)
      ->check(CLI::IsMember(std::move(allowed)))
      ->capture_default_str();
  return *this;
}

const Common& Options::parse(int argc, char** argv) {
  try {
    parser_->app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(parser_->app.help().c_str(), stdout);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s; --help lists the options\n", parser_->program.c_str(), error.what());
    std::exit(kExitUsage);
  }
  return parser_->common;
}

}  // namespace workloads
