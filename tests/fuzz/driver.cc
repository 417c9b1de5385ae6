// Runs a fuzz target without libFuzzer: every seed of a folder as it is, then ROUNDS mutations of seeds, always the
// same.
//   fuzz_X ROUNDS FOLDER        fuzz_X 0 FILE...: single inputs, to look at a crash again
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t bound) {
  return bound == 0 ? 0 : static_cast<size_t>(random() % bound);
}

const char* const kTokens[] = {"null",
                               "{}",
                               "[]",
                               "\"\"",
                               "-1",
                               "1e999",
                               "9223372036854775808",
                               "true",
                               "\\u0000",
                               "\xff\xfe",
                               "\n",
                               "{",
                               "}",
                               "[",
                               "]",
                               "\"",
                               ":",
                               ",",
                               "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["};

std::string mutated(std::string text, const std::string& other, Random& random) {
  for (size_t times = 1 + below(random, 4); times > 0; --times) {
    size_t at = below(random, text.size() + 1);
    size_t length = std::min(text.size() - at, below(random, 24));
    switch (below(random, 6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, kTokens[below(random, std::size(kTokens))]);
        break;
      case 4:
        text.replace(at, length, other.substr(below(random, other.size() + 1), 24));
        break;
      case 5:
        text.resize(at);
        break;
    }
  }
  return text;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void feed(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int i = 2; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i]))
      paths.emplace_back(argv[i]);
    else
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) paths.push_back(entry.path());
  }
  if (paths.empty()) {
    std::fprintf(stderr, "usage: %s ROUNDS FOLDER|FILE...\n", argv[0]);
    return 2;
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) seeds.push_back(read(path));
  for (const std::string& seed : seeds) feed(seed);
  Random random(1);
  long rounds = std::strtol(argv[1], nullptr, 10);
  for (long round = 0; round < rounds; ++round)
    feed(mutated(seeds[below(random, seeds.size())], seeds[below(random, seeds.size())], random));
  std::printf("%zu seeds, %ld mutations\n", seeds.size(), rounds);
  return 0;
}
