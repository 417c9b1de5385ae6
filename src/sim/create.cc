// Making a card: the file is built aside and linked into place whole, so that no reader ever sees half of one.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>

#include "base/files.h"
#include "sim/card.h"
#include "sim/profile.h"

namespace sluice::sim {

namespace {

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

void fill(CardFile& file, const ProfileData& profile, const CardOptions& options) {
  file.magic = kMagic;
  file.version = kLayoutVersion;
  file.file_bytes = layout().total;
  file.card_index = file.minor = options.card_index;
  file.pci_bus = 0x1a + options.card_index * 4;
  file.profile = profile;
  size_t k = 0;
#define KNOB(name, value, unit, meaning) file.knobs[k++] = value;
#include "sim/knobs.def"
#undef KNOB
  file.knobs[static_cast<size_t>(Knob::seed)] = static_cast<int64_t>(options.seed);
  draw_identity(file, options.seed, options.card_index);
  file.journal_txn = 1;
  CardHeader& h = file.header;
  h.epoch_ns = options.epoch_ns != 0 ? options.epoch_ns : monotonic_ns();
  h.switch_end_ns = h.slice_end_ns = h.next_teardown_ns = kNever;
  h.sample_at_ns = 139000000;
  std::mt19937_64 random(options.seed + 77);
  h.clock_offset_ns = static_cast<int64_t>(random() % 1000000000000000ULL);
}

}  // namespace

void draw_identity(CardFile& file, uint64_t seed, uint32_t index) {
  std::mt19937_64 random(seed * 1000003 + index * 7919 + file.generation);
  for (auto& byte : file.uuid_bytes) byte = static_cast<uint8_t>(random());
  const uint8_t* u = file.uuid_bytes;
  std::snprintf(file.uuid, sizeof file.uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
  std::snprintf(file.serial_number, sizeof file.serial_number, "%013llu",
                static_cast<unsigned long long>(random() % 10000000000000ULL));
}

Result<void> Card::create(const std::string& path, const CardOptions& options) {
  auto profile = find_profile(options.profile);
  if (!profile) return std::move(profile.error());
  const std::string aside = path + ".new-" + std::to_string(getpid());
  const Fd fd(::open(aside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return errno_error("cannot make", aside, errno);
  fchmod(fd.get(), 0666);  // programs of all users share the card, as they share /dev/nvidia0
  const Layout l = layout();
  Result<void> result;
  if (ftruncate(fd.get(), static_cast<off_t>(l.total)) != 0) {
    result = errno_error("cannot size", aside, errno);
  } else {
    void* mapped = mmap(nullptr, l.total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
    if (mapped == MAP_FAILED) {
      result = errno_error("cannot map", aside, errno);
    } else {
      auto* file = static_cast<CardFile*>(mapped);
      fill(*file, *profile, options);
      if (const int64_t offset = file->knobs[static_cast<size_t>(Knob::clock_offset_ns)]; offset >= 0) {
        file->header.clock_offset_ns = offset;
      }
      // Subject 1 is the card as a whole.
      file->header.tables.subjects.high = 1;
      munmap(mapped, l.total);
      if (link(aside.c_str(), path.c_str()) != 0) {
        result = errno == EEXIST ? Error{ErrorCode::kExists, path + " exists; remove it first if it is to be made anew"}
                                 : errno_error("cannot make", path, errno);
      }
    }
  }
  unlink(aside.c_str());
  if (!result) return result;
  const std::string contents = path + ".contents";
  if (mkdir(contents.c_str(), 0777) != 0 && errno != EEXIST) return errno_error("cannot make", contents, errno);
  chmod(contents.c_str(), 01777);
  return {};
}

}  // namespace sluice::sim
