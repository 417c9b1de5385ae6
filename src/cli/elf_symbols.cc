#include "cli/elf_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/files.h"

namespace sluice::cli {
namespace {

constexpr size_t kSectionsMax = 4096;
constexpr size_t kSymbolsMax = 1u << 20;

template <typename T>
std::optional<T> read_at(std::string_view bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<std::string_view> slice(std::string_view bytes, uint64_t offset, uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) return std::nullopt;
  return bytes.substr(offset, size);
}

std::string_view text_at(std::string_view strings, uint64_t offset) {
  if (offset >= strings.size()) return {};
  const size_t end = strings.find('\0', offset);
  return end == std::string_view::npos ? std::string_view() : strings.substr(offset, end - offset);
}

Error not_elf(std::string_view why) {
  return invalid(fmt::format("not a 64-bit shared library: {}", why));
}

struct Section {
  std::string_view contents;
  std::string_view strings;
};

Result<std::vector<Elf64_Shdr>> read_sections(std::string_view bytes) {
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return not_elf("no ELF header");
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB)
    return not_elf("another class of ELF");
  if (header->e_shnum > kSectionsMax) return not_elf("too many sections");
  std::vector<Elf64_Shdr> sections;
  for (uint64_t i = 0; i < header->e_shnum; ++i) {
    const auto section = read_at<Elf64_Shdr>(bytes, header->e_shoff + i * sizeof(Elf64_Shdr));
    if (!section) return not_elf("section headers outside of the file");
    sections.push_back(*section);
  }
  return sections;
}

std::optional<Section> find_section(std::string_view bytes, const std::vector<Elf64_Shdr>& sections, uint32_t type) {
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != type || section.sh_link >= sections.size()) continue;
    const auto contents = slice(bytes, section.sh_offset, section.sh_size);
    const auto strings = slice(bytes, sections[section.sh_link].sh_offset, sections[section.sh_link].sh_size);
    if (contents && strings) return Section{*contents, *strings};
  }
  return std::nullopt;
}

}  // namespace

Result<ElfExports> parse_elf_exports(std::string_view bytes) {
  const auto sections = read_sections(bytes);
  if (!sections) return sections.error();
  const auto symbols = find_section(bytes, *sections, SHT_DYNSYM);
  if (!symbols) return not_elf("no dynamic symbol table");
  ElfExports exports;
  const size_t count = std::min(symbols->contents.size() / sizeof(Elf64_Sym), kSymbolsMax);
  for (size_t i = 0; i < count; ++i) {
    const Elf64_Sym symbol = *read_at<Elf64_Sym>(symbols->contents, i * sizeof(Elf64_Sym));
    const unsigned binding = ELF64_ST_BIND(symbol.st_info);
    if (symbol.st_shndx == SHN_UNDEF || (binding != STB_GLOBAL && binding != STB_WEAK)) continue;
    const std::string_view name = text_at(symbols->strings, symbol.st_name);
    if (!name.empty()) exports.names.emplace_back(name);
  }
  std::sort(exports.names.begin(), exports.names.end());
  exports.names.erase(std::unique(exports.names.begin(), exports.names.end()), exports.names.end());
  if (const auto dynamic = find_section(bytes, *sections, SHT_DYNAMIC)) {
    for (size_t i = 0; i < dynamic->contents.size() / sizeof(Elf64_Dyn); ++i) {
      const Elf64_Dyn entry = *read_at<Elf64_Dyn>(dynamic->contents, i * sizeof(Elf64_Dyn));
      if (entry.d_tag == DT_SONAME) exports.soname = text_at(dynamic->strings, entry.d_un.d_val);
    }
  }
  return exports;
}

Result<ElfExports> read_elf_exports(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open", path, errno);
  struct stat st{};
  if (fstat(fd.get(), &st) != 0) return errno_error("cannot look at", path, errno);
  if (st.st_size <= 0) return not_elf("the file is empty").wrap(path);
  const size_t size = static_cast<size_t>(st.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapping == MAP_FAILED) return errno_error("cannot map", path, errno);
  auto exports = parse_elf_exports(std::string_view(static_cast<const char*>(mapping), size));
  munmap(mapping, size);
  if (!exports) return std::move(exports).error().wrap(path);
  return exports;
}

}  // namespace sluice::cli
