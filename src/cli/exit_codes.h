// What the tool's exit status means. `sluice run` passes the command's own status on, so its own failures sit in a
// block just below the codes that shells give to a command that could not be started (126, 127) or was killed (128 +
// signal).
#pragma once

#include "base/result.h"

namespace sluice::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitBroken = 1;      // doctor, verify: a link is broken; demo: a check failed
inline constexpr int kExitUsage = 2;       // wrong options (of `run`: kExitRequest)
inline constexpr int kExitRequest = 120;   // the request or the manifest is wrong, or no card here could ever serve it
inline constexpr int kExitBusy = 121;      // it fits, but not now: the cards are taken, or a disk is full
inline constexpr int kExitNotFound = 122;  // no card, no driver, no such file or grant
inline constexpr int kExitUnavailable = 123;    // the agent cannot be reached or started
inline constexpr int kExitPermission = 124;     // the kernel or the agent does not allow it
inline constexpr int kExitInternal = 125;       // anything else that is not the command's doing
inline constexpr int kExitNotExecutable = 126;  // the command was found, but cannot be executed
inline constexpr int kExitNoCommand = 127;      // the command was not found
inline constexpr int kExitSignalBase = 128;     // + the number of the signal that ended the command

struct ExitCode {
  int code;
  const char* meaning;
};

// For --help and docs/cli.md.
inline constexpr ExitCode kExitCodes[] = {
    {kExitRequest, "the request or the manifest is wrong, or no card here could ever serve it"},
    {kExitBusy, "it would fit, but not now: the cards are taken, or a file system is full"},
    {kExitNotFound, "no card, no driver, no such file or grant"},
    {kExitUnavailable, "the agent cannot be reached or started"},
    {kExitPermission, "the kernel or the agent does not allow it"},
    {kExitInternal, "any other failure of sluice itself"},
    {kExitNotExecutable, "COMMAND was found, but cannot be executed"},
    {kExitNoCommand, "COMMAND was not found"},
};

constexpr int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return kExitRequest;
    case ErrorCode::kExhausted:
      return kExitBusy;
    case ErrorCode::kNotFound:
      return kExitNotFound;
    case ErrorCode::kUnavailable:
      return kExitUnavailable;
    case ErrorCode::kPermission:
      return kExitPermission;
    case ErrorCode::kExists:
    case ErrorCode::kInternal:
      return kExitInternal;
  }
  return kExitInternal;
}

}  // namespace sluice::cli
