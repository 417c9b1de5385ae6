// The options of a workload as a table, with those that every workload has: --seconds, --json, --mem-mib, --device,
// --seed. One place that meets CLI11, so that nine programs do not each compile it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace workloads {

struct Common {
  double seconds = 10;    // how long the program works; 0.01 to 1e6
  bool json = false;      // one line of JSON instead of one line per figure
  uint64_t mem_mib = 64;  // device memory held while working
  int device = 0;         // index of the card
  uint64_t seed = 1;      // of every random choice
};

class Options {
 public:
  // `program` is the name in messages, `purpose` one sentence for --help. The common options start as `defaults`.
  Options(const char* program, const char* purpose, Common defaults = {});
  ~Options();
  Options(const Options&) = delete;

  // Each adds --NAME with the target's present value as default. Values outside [least, most] are refused.
  Options& number(const char* name, double* target, double least, double most, const char* help);
  Options& count(const char* name, uint64_t* target, uint64_t least, uint64_t most, const char* help);
  Options& flag(const char* name, bool* target, const char* help);
  Options& text(const char* name, std::string* target, const char* help);
  Options& choice(const char* name, std::string* target, std::vector<std::string> allowed, const char* help);

  // Parses or ends the process: 0 after --help, kExitUsage with one sentence on stderr when an option is wrong.
  const Common& parse(int argc, char** argv);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace workloads
