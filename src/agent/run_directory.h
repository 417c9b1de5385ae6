// The directory where an agent's socket, locks, records and pages live, and whom it must belong to. A directory that
// somebody else could write would let them put their own socket or pages in our place, so it is refused, not mended.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/files.h"
#include "base/result.h"

namespace sluice::agent {

std::string root_run_directory();  // "/run/sluice"
// $XDG_RUNTIME_DIR/sluice where that is set, else /tmp/sluice-UID.
std::string user_run_directory();
// The directory an agent of this user serves when nothing else is said.
std::string default_run_directory();

// Creates the directory (0755 for root, 0700 for others) with missing parents for root only, and checks it: a
// directory, no link, of this user, writable by nobody else. Returns it opened (O_PATH would not do for fsync).
Result<Fd> open_run_directory(const std::string& path);

// Takes an exclusive flock on directory/name, waiting at most timeout_ms. kUnavailable, saying who, when somebody keeps
// it.
Result<Fd> lock_file(int directory, const std::string& directory_path, const std::string& name, int timeout_ms);
// Who took the lock last, for people: "pid 123".
std::string lock_holder(int directory, const std::string& name);

// The first line of the lock's file, by whoever has or had the lock; "" when nobody ever had.
std::string last_holder(int directory, const std::string& name);

// A directory descriptor's socket as an address short enough for any directory: "/proc/self/fd/N/name".
Result<int> connect_socket(int directory, const std::string& name);  // errno as kNotFound / kPermission / kInternal
Result<Fd> listen_socket(int directory, const std::string& name, mode_t mode);

}  // namespace sluice::agent
