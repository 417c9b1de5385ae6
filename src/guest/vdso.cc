#include "guest/vdso.h"

#include <elf.h>

#include "guest/text.h"

namespace sluice::guest {
namespace {

constexpr unsigned long kMostSymbols = 4096;
constexpr unsigned kMostHeaders = 64;

// Parts of a loaded image, as its dynamic section names them.
struct Image {
  unsigned long bias = 0;  // address minus the address it was linked for
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  const Elf64_Word* hash = nullptr;      // DT_HASH
  const Elf64_Word* gnu_hash = nullptr;  // DT_GNU_HASH
};

void read_dynamic(const Elf64_Dyn* entry, Image& image) {
  for (; entry->d_tag != DT_NULL; ++entry) {
    const unsigned long address = image.bias + entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        image.symbols = reinterpret_cast<const Elf64_Sym*>(address);
        break;
      case DT_STRTAB:
        image.names = reinterpret_cast<const char*>(address);
        break;
      case DT_HASH:
        image.hash = reinterpret_cast<const Elf64_Word*>(address);
        break;
      case DT_GNU_HASH:
        image.gnu_hash = reinterpret_cast<const Elf64_Word*>(address);
        break;
      default:
        break;
    }
  }
}

// The dynamic symbol table does not say how long it is; the hash tables do.
unsigned long symbol_count(const Image& image) {
  if (image.hash != nullptr) return image.hash[1];
  if (image.gnu_hash == nullptr) return 0;
  const Elf64_Word bucket_count = image.gnu_hash[0];
  const Elf64_Word first = image.gnu_hash[1];
  const Elf64_Word* buckets = image.gnu_hash + 4 + 2 * image.gnu_hash[2];  // behind the filter's 64-bit words
  const Elf64_Word* chains = buckets + bucket_count;
  Elf64_Word last = 0;
  for (Elf64_Word i = 0; i < bucket_count; ++i) last = buckets[i] > last ? buckets[i] : last;
  if (last < first) return 0;
  while (last < kMostSymbols && (chains[last - first] & 1) == 0) ++last;
  return last + 1ul;
}

}  // namespace

ClockGettime find_clock_gettime(unsigned long address) {
  if (address == 0) return nullptr;
  const Elf64_Ehdr* header = reinterpret_cast<const Elf64_Ehdr*>(address);
  const unsigned char* id = header->e_ident;
  if (id[0] != ELFMAG0 || id[1] != ELFMAG1 || id[2] != ELFMAG2 || id[3] != ELFMAG3 || id[4] != ELFCLASS64 ||
      header->e_phnum > kMostHeaders) {
    return nullptr;
  }
  Image image;
  const Elf64_Phdr* headers = reinterpret_cast<const Elf64_Phdr*>(address + header->e_phoff);
  const Elf64_Dyn* dynamic = nullptr;
  bool loaded = false;
  for (unsigned i = 0; i < header->e_phnum; ++i) {
    if (headers[i].p_type == PT_LOAD && !loaded) {
      image.bias = address + headers[i].p_offset - headers[i].p_vaddr;
      loaded = true;
    }
    if (headers[i].p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const Elf64_Dyn*>(address + headers[i].p_offset);
  }
  if (!loaded || dynamic == nullptr) return nullptr;
  read_dynamic(dynamic, image);
  if (image.symbols == nullptr || image.names == nullptr) return nullptr;
  unsigned long count = symbol_count(image);
  if (count > kMostSymbols) count = kMostSymbols;
  for (unsigned long i = 0; i < count; ++i) {
    const Elf64_Sym& symbol = image.symbols[i];
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    if (text_equal(image.names + symbol.st_name, "__vdso_clock_gettime")) {
      return reinterpret_cast<ClockGettime>(image.bias + symbol.st_value);
    }
  }
  return nullptr;
}

}  // namespace sluice::guest
