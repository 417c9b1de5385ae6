// The names that a shared library exports, and its SONAME, read from the file: loading a driver to ask it would run its
// code. For 64-bit little-endian ELF files (System V ABI, ELF-64 object file format). The file is treated as hostile:
// every offset is checked against its size.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

struct ElfExports {
  std::string soname;
  std::vector<std::string> names;  // defined dynamic symbols, sorted, without versions
};

// kInvalid when the bytes are no such file or have no dynamic symbol table.
Result<ElfExports> parse_elf_exports(std::string_view bytes);

// Maps the file for the time of the call.
Result<ElfExports> read_elf_exports(const std::string& path);

}  // namespace sluice::cli
