// The last step of every program that prints: what it printed has to have arrived. A full disk behind a redirection is
// an error that stdio keeps to itself until asked.
#pragma once

#include <string_view>

#include "base/result.h"

namespace sluice {

// Writes out what standard output still holds. Says why where that, or anything before it, has failed (kExhausted where
// the disk is full).
Result<void> flush_output();

// The exit status of a program that would end with `status`: the same, or `failed` where its output has not arrived,
// which standard error is told ("PROGRAM: cannot write ..."). A status that is not 0 stays as it is.
int finish_output(std::string_view program, int status, int failed = 1);

}  // namespace sluice
