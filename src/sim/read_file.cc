#include "sim/read_file.h"

#include <cstdio>

namespace sluice::sim {

bool read_whole_file(const char* path, size_t most, std::string* text) {
  FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  text->clear();
  char buffer[65536];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof buffer, file)) > 0 && text->size() <= most) text->append(buffer, got);
  const bool good = std::ferror(file) == 0 && text->size() <= most;
  std::fclose(file);
  return good;
}

}  // namespace sluice::sim
