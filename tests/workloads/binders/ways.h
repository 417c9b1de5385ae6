// The ways in which programs come to the driver's functions, each run in a process of its own by the zoo.
#pragma once

#include <span>
#include <string>

#include "binders/probe.h"

namespace binders {

struct Arguments {
  unsigned long long allocate_bytes;
  std::string folder;       // where the helper programs and libraries lie, without a final slash
  std::string driver_path;  // for the way "absolute"; "" searches for it
};

struct Way {
  const char* name;
  const char* meaning;
  // Runs in a fresh process and prints one JSON object; may replace the process by another program.
  void (*run)(const char* name, const Arguments& arguments);
};

std::span<const Way> ways();

}  // namespace binders
