// Counts the instructions that one thread executes by stepping it: exact on every machine, where perf has no counters
// (most virtual machines) and valgrind cannot run a program whose library starts threads of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

struct Stepped {
  std::vector<uint64_t> instructions;  // of each call of `one`, in user space; a system call counts as one
  std::string error;                   // empty: it was counted
};

struct Stepping {
  std::function<void()> prepare;  // at full speed, with whatever threads it starts
  std::function<void()> one;      // what is counted
  size_t run_in = 0;  // so often at full speed first, while those threads (that should be asleep) stand still
  size_t times = 1;   // and so often instruction by instruction; with run_in > 0 they still stand still
};

// In a process of its own. A step takes microseconds; at most 5 million.
Stepped count_stepped(const Stepping& what);

}  // namespace bench
