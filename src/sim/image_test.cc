#include "sim/image.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace sluice::sim {
namespace {

// An ELF image with one kernel: header, names, section headers.
std::string small_elf() {
  const std::string names("\0.shstrtab\0.text.fill\0.nv.info.fill\0", 37);
  std::string bytes(sizeof(Elf64_Ehdr), '\0');
  const uint64_t names_at = bytes.size();
  bytes += names;
  bytes.resize((bytes.size() + 7) / 8 * 8);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = bytes.size();
  header.e_shnum = 3;
  header.e_shstrndx = 0;
  Elf64_Shdr sections[3] = {};
  sections[0].sh_name = 1, sections[0].sh_offset = names_at, sections[0].sh_size = names.size();
  sections[1].sh_name = 11, sections[1].sh_offset = names_at, sections[1].sh_size = 160,
  sections[1].sh_info = 40u << 24;
  sections[2].sh_name = 22, sections[2].sh_offset = names_at, sections[2].sh_size = 8;
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
  return bytes;
}

TEST(Image, ASmallOneIsRead) {
  const ImageInfo info = read_image(small_elf());
  ASSERT_EQ(info.kernels.size(), 1u);
  EXPECT_EQ(info.kernels[0].name, "fill");
  EXPECT_EQ(info.kernels[0].registers, 40u);
}

// Offsets and sizes whose sum wraps, or that end beyond the image: no name is read, nothing outside is looked at.
TEST(Image, HostileOffsetsReadNothingOutside) {
  const std::string good = small_elf();
  const uint64_t table = reinterpret_cast<const Elf64_Ehdr*>(good.data())->e_shoff;
  const uint64_t fields[] = {offsetof(Elf64_Ehdr, e_shoff), table + offsetof(Elf64_Shdr, sh_offset),
                             table + offsetof(Elf64_Shdr, sh_size),
                             table + 2 * sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_offset),
                             table + 2 * sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_size)};
  const uint64_t size = good.size();
  const uint64_t values[] = {size,      size - 1,     size + 1,         uint64_t{1} << 63, ~uint64_t{0},
                             0 - size,  0 - size + 1, ~uint64_t{0} - 7, 0 - uint64_t{64},  0 - uint64_t{128},
                             0 - table, size - 63,    uint64_t{1} << 32};
  for (const uint64_t field : fields) {
    for (const uint64_t value : values) {
      std::string bytes = good;
      std::memcpy(bytes.data() + field, &value, sizeof value);
      EXPECT_LE(read_image(bytes).kernels.size(), 2u) << field << " " << value;
    }
  }
  std::mt19937_64 random(11);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int change = 0; change < 4; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % (bytes.size() + 1));
    read_image(bytes);
  }
}

TEST(Image, NumbersOfTextAreBounded) {
  const ImageInfo info = read_image(
      ".version 8.0\n.entry k(.param .u64 a)\n.maxntid 2000000000, 2000000000, 2000000000\n"
      "{ .reg .b32 r .reg .b32 s .reg .b64 t\n ret; }");
  ASSERT_EQ(info.kernels.size(), 1u);
  EXPECT_EQ(info.kernels[0].max_threads, 1024u);
  EXPECT_EQ(info.kernels[0].cost.instructions, 1u);
}

}  // namespace
}  // namespace sluice::sim
