// A file's bytes. (base/files.h would bring a formatting library into the simulated driver.)
#pragma once

#include <cstddef>
#include <string>

namespace sluice::sim {

// False when it cannot be read or is longer than `most`.
bool read_whole_file(const char* path, size_t most, std::string* text);

}  // namespace sluice::sim
