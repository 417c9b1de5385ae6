#include "cli/elf_symbols.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/files.h"
#include "cli/doctor_checks.h"

namespace sluice::cli {
namespace {

// Any real shared library will do; the C library is always there.
std::string libc_path() {
  for (const char* path : {"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"}) {
    if (read_file(path)) return path;
  }
  return "";
}

TEST(ElfSymbols, ReadsALibrarysNames) {
  const auto exports = read_elf_exports(libc_path());
  ASSERT_TRUE(exports) << exports.error().message;
  EXPECT_EQ(exports->soname, "libc.so.6");
  EXPECT_TRUE(std::is_sorted(exports->names.begin(), exports->names.end()));
  EXPECT_TRUE(std::binary_search(exports->names.begin(), exports->names.end(), "dlsym"));
  // Needed from the loader, not defined here.
  EXPECT_FALSE(std::binary_search(exports->names.begin(), exports->names.end(), "__tls_get_addr"));
}

TEST(ElfSymbols, OtherFilesAreRefusedWithTheirName) {
  const auto text = read_elf_exports("/etc/passwd");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message, "/etc/passwd: not a 64-bit shared library: no ELF header");
  EXPECT_FALSE(read_elf_exports("/nowhere"));
  EXPECT_FALSE(parse_elf_exports(""));
}

TEST(ElfSymbols, CutAndGarbledFilesNeverReadOutside) {
  const auto whole = read_file(libc_path());
  ASSERT_TRUE(whole);
  for (size_t length = 1; length < whole->size(); length = length * 3 / 2 + 1) {
    const std::string cut(whole->data(), length);  // a copy, so that a sanitizer sees a read past its end
    static_cast<void>(parse_elf_exports(cut));
  }
  uint32_t seed = 1;
  for (int round = 0; round < 20; ++round) {
    std::string garbled = *whole;
    for (int i = 0; i < 64; ++i) {
      seed = seed * 1664525u + 1013904223u;
      const size_t at = i % 2 == 0 ? seed % 64 : garbled.size() - 1 - seed % 4096;  // header, section headers
      garbled[at] = static_cast<char>(seed >> 24);
    }
    static_cast<void>(parse_elf_exports(garbled));
  }
}

TEST(DoctorNames, OnlyNamesThatProgramsAskForCount) {
  EXPECT_EQ(unknown_names({"cuInit", "cuNew", "cudbgApiAttach", "helper", "nvmlInit_v2", "nvmlNew"},
                          {"cuInit", "nvmlInit_v2"}),
            (std::vector<std::string>{"cuNew", "nvmlNew"}));
}

TEST(DoctorNames, EveryRefusalHasASentenceAndNothingElseHas) {
  EXPECT_EQ(refusal_text(0), "");
  EXPECT_EQ(refusal_text(0xffffffff), "");
  for (uint32_t code = 1; code <= 13; ++code) EXPECT_NE(refusal_text(code), "") << code;
}

}  // namespace
}  // namespace sluice::cli
