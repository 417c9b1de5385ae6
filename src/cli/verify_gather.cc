// The evidence of `sluice verify`: pages read, libraries loaded as any program loads them, a few calls made.
//
// A trap: a process loses its record locks on a file when it closes ANY descriptor of that file, and the library's slot
// is such a lock. So the usage file is opened once, before the library is loaded, and stays open until the process
// ends.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>

#include "abi/cuda.h"
#include "abi/nvml.h"
#include "base/files.h"
#include "cli/driver_files.h"
#include "cli/verify.h"
#include "page/grant.h"
#include "page/usage.h"

namespace sluice::cli {
namespace {

constexpr size_t kMib = 1 << 20;
constexpr size_t kProbeBytes = kMib;
constexpr int kSettleMs = 2000;
constexpr int kStepMs = 5;

template <typename T>
bool read_at(int fd, uint64_t offset, T& into) {
  return pread(fd, &into, sizeof into, static_cast<off_t>(offset)) == static_cast<ssize_t>(sizeof into);
}

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

std::string uuid_text(const uint8_t* bytes) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

bool read_card(int fd, uint32_t index, GrantedCard& card) {
  const uint64_t start = sizeof(page::GrantHeader) + uint64_t{index} * sizeof(page::GrantCard);
  uint8_t uuid[16];
  if (!read_at(fd, start + offsetof(page::GrantCard, uuid), uuid) ||
      !read_at(fd, start + offsetof(page::GrantCard, memory_limit_bytes), card.memory_limit_bytes) ||
      !read_at(fd, start + offsetof(page::GrantCard, core_permille), card.core_permille) ||
      !read_at(fd, start + offsetof(page::GrantCard, policy), card.policy) ||
      !read_at(fd, start + offsetof(page::GrantCard, heartbeat_ns), card.heartbeat_ns)) {
    return false;
  }
  card.uuid = uuid_text(uuid);
  return true;
}

// The usage file as far as its own header goes. Errors are found by the checks that build on it.
struct Usage {
  int fd = -1;  // left open on purpose
  std::string problem;

  uint64_t card_start(size_t card) const { return sizeof(page::UsageHeader) + card * sizeof(page::UsageCard); }
  uint32_t refused(size_t card) const {
    uint32_t value = 0;
    read_at(fd, card_start(card) + offsetof(page::UsageCard, account) + offsetof(page::Account, refused_allocations),
            value);
    return value;
  }
  uint64_t launches(size_t card, uint32_t slot) const {
    uint64_t value = 0;
    read_at(fd,
            card_start(card) + offsetof(page::UsageCard, slots) + slot * sizeof(page::Slot) +
                offsetof(page::Slot, launches),
            value);
    return value;
  }
  std::optional<uint32_t> own_slot(uint32_t card) const;
};

// Whose lock it is another process can tell alone: one that asks about its own gets no answer.
std::optional<uint32_t> Usage::own_slot(uint32_t card) const {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  Fd from(ends[0]), to(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    for (uint32_t slot = 0; slot < page::kMaxProcesses; ++slot) {
      struct flock lock{};
      lock.l_type = F_WRLCK;
      lock.l_whence = SEEK_SET;
      lock.l_start = static_cast<off_t>(page::slot_lock_byte(card, slot));
      lock.l_len = 1;
      if (fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid == parent) {
        _exit(write(to.get(), &slot, sizeof slot) == static_cast<ssize_t>(sizeof slot) ? 0 : 1);
      }
    }
    _exit(1);
  }
  to.reset();
  uint32_t slot = 0;
  const bool found = child > 0 && read(from.get(), &slot, sizeof slot) == static_cast<ssize_t>(sizeof slot);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return found ? std::optional(slot) : std::nullopt;
}

Usage open_usage(uint64_t grant_id, size_t cards) {
  Usage usage;
  usage.fd = open(page::kUsagePath, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (usage.fd < 0) {
    usage.problem = fmt::format("cannot open {} for writing: {}", page::kUsagePath, std::strerror(errno));
    return usage;
  }
  uint64_t magic = 0, id = 0;
  uint32_t count = 0;
  struct stat st{};
  const bool read = read_at(usage.fd, offsetof(page::UsageHeader, magic), magic) &&
                    read_at(usage.fd, offsetof(page::UsageHeader, grant_id), id) &&
                    read_at(usage.fd, offsetof(page::UsageHeader, card_count), count) && fstat(usage.fd, &st) == 0;
  if (!read || magic != page::kUsageMagic)
    usage.problem = "it is no usage file";
  else if (id != grant_id || count != cards)
    usage.problem = "it belongs to another grant";
  else if (st.st_size < static_cast<off_t>(page::usage_bytes(count)))
    usage.problem = "it has been cut short";
  return usage;
}

Usage read_grant(GrantEvidence& grant) {
  Fd file(open(page::kGrantPath, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  grant.there = file.valid() || errno != ENOENT;
  if (!grant.there) return {};
  if (!file.valid()) {
    grant.problem = fmt::format("cannot read {}: {}", page::kGrantPath, std::strerror(errno));
    return {};
  }
  uint64_t magic = 0, id = 0;
  uint16_t major = 0;
  uint32_t count = 0;
  char name[sizeof(page::GrantHeader::container)] = {};
  if (!read_at(file.get(), offsetof(page::GrantHeader, magic), magic) || magic != page::kGrantMagic) {
    grant.problem = magic == 0 ? "the grant has ended" : "the grant page is no grant page";
    return {};
  }
  if (!read_at(file.get(), offsetof(page::GrantHeader, major), major) || major != page::kMajor) {
    grant.problem = fmt::format("the grant page is of version {}, this sluice knows {}", major, page::kMajor);
    return {};
  }
  bool whole = read_at(file.get(), offsetof(page::GrantHeader, card_count), count) && count >= 1 &&
               count <= page::kMaxCards && read_at(file.get(), offsetof(page::GrantHeader, grant_id), id) &&
               read_at(file.get(), offsetof(page::GrantHeader, container), name) &&
               read_at(file.get(), offsetof(page::GrantHeader, heartbeat_ns), grant.heartbeat_ns);
  grant.cards.resize(whole ? count : 0);
  for (uint32_t i = 0; i < grant.cards.size(); ++i) whole = whole && read_card(file.get(), i, grant.cards[i]);
  if (!whole) {
    grant.problem = "the grant page is cut short";
    return {};
  }
  grant.now_ns = monotonic_ns();
  grant.container.assign(name, strnlen(name, sizeof name));
  Fd for_writing(open(page::kGrantPath, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  grant.writable = for_writing.valid();
  Usage usage = open_usage(id, grant.cards.size());
  grant.usage_problem = usage.problem;
  return usage;
}

using FileKey = std::pair<dev_t, ino_t>;
std::optional<FileKey> key_of(const std::string& path) {
  struct stat st{};
  if (stat(path.c_str(), &st) != 0) return std::nullopt;
  return FileKey{st.st_dev, st.st_ino};
}

// Loads it as programs do. The file that answers is ours when every other file of the driver that could be loaded is
// the very same one (mounted over it); with preload delivery the driver's own files stay where they are, uncovered.
void* load(DriverLibrary library, LibraryEvidence& out) {
  void* handle = dlopen(soname(library), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    out.problem = reason == nullptr ? "it cannot be loaded" : reason;
    return nullptr;
  }
  Dl_info info{};
  void* any = dlsym(handle, library == DriverLibrary::kCuda ? "cuInit" : "nvmlInit_v2");
  if (any == nullptr || dladdr(any, &info) == 0 || info.dli_fname == nullptr) {
    out.problem = "it lacks the functions of a driver";
    return nullptr;
  }
  out.path = info.dli_fname;
  // Preloaded: it answers every name, wherever programs look.
  if (out.path.starts_with(std::string(page::kContainerRoot) + "/lib/")) return handle;
  const char* path = std::getenv("LD_LIBRARY_PATH");
  const DriverFiles files = find_driver_files(
      {.library_path = path == nullptr ? "" : path, .folders = default_driver_folders(), .own_files = {}});
  const std::optional<FileKey> own = key_of(out.path);
  std::set<std::string> others;
  for (const DriverFile& file : files.all(library)) {
    if (key_of(file.target) != own) others.insert(file.target);
  }
  out.others.assign(others.begin(), others.end());
  return handle;
}

struct CudaCalls {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*device_count)(int*) = nullptr;
  CUresult (*device)(CUdevice*, int) = nullptr;
  CUresult (*uuid)(CUuuid*, CUdevice) = nullptr;
  CUresult (*total)(size_t*, CUdevice) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
  CUresult (*memory)(size_t*, size_t*) = nullptr;
  CUresult (*alloc)(CUdeviceptr*, size_t) = nullptr;
  CUresult (*free)(CUdeviceptr) = nullptr;
  CUresult (*memset)(CUdeviceptr, unsigned char, size_t) = nullptr;
  CUresult (*synchronize)() = nullptr;
};

template <typename F>
bool bind(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool bind_cuda(void* library, CudaCalls& calls) {
  return bind(library, "cuInit", calls.init) && bind(library, "cuDeviceGetCount", calls.device_count) &&
         bind(library, "cuDeviceGet", calls.device) && bind(library, "cuDeviceGetUuid", calls.uuid) &&
         bind(library, "cuDeviceTotalMem_v2", calls.total) && bind(library, "cuDevicePrimaryCtxRetain", calls.retain) &&
         bind(library, "cuCtxSetCurrent", calls.set_current) && bind(library, "cuMemGetInfo_v2", calls.memory) &&
         bind(library, "cuMemAlloc_v2", calls.alloc) && bind(library, "cuMemFree_v2", calls.free) &&
         bind(library, "cuMemsetD8_v2", calls.memset) && bind(library, "cuCtxSynchronize", calls.synchronize);
}

// The position in the pages of the card with this UUID.
std::optional<uint32_t> page_index(const GrantEvidence& grant, const std::string& uuid) {
  for (uint32_t i = 0; i < grant.cards.size(); ++i) {
    if (grant.cards[i].uuid == uuid) return i;
  }
  return std::nullopt;
}

void try_card(const CudaCalls& cuda, int ordinal, const GrantEvidence& grant, const Usage& usage, CardEvidence& out) {
  CUdevice device = 0;
  CUuuid uuid{};
  const auto failed = [&out](const char* call, CUresult code) {
    if (code != CUDA_SUCCESS) out.problem = fmt::format("{} gave CUDA error {}", call, static_cast<int>(code));
    return code != CUDA_SUCCESS;
  };
  if (failed("cuDeviceGet", cuda.device(&device, ordinal)) || failed("cuDeviceGetUuid", cuda.uuid(&uuid, device)))
    return;
  out.uuid = uuid_text(reinterpret_cast<const uint8_t*>(uuid.bytes));
  CUcontext context = nullptr;
  size_t total = 0, free_now = 0, whole = 0;
  if (failed("cuDeviceTotalMem", cuda.total(&total, device)) ||
      failed("cuDevicePrimaryCtxRetain", cuda.retain(&context, device)) ||
      failed("cuCtxSetCurrent", cuda.set_current(context)) || failed("cuMemGetInfo", cuda.memory(&free_now, &whole))) {
    return;
  }
  out.total_bytes = total;
  out.free_bytes = free_now;
  const std::optional<uint32_t> card = page_index(grant, out.uuid);
  if (!card || usage.fd < 0 || !usage.problem.empty()) return;
  const std::optional<uint32_t> slot = usage.own_slot(*card);
  out.registered = slot.has_value();

  CUdeviceptr pointer = 0;
  if (grant.cards[*card].memory_limit_bytes != 0) {
    const uint32_t before = usage.refused(*card);
    out.over_limit_result = static_cast<int>(cuda.alloc(&pointer, total + kMib));
    out.refusal_counted = usage.refused(*card) != before;
    if (out.over_limit_result == 0) cuda.free(pointer);
  }
  if (free_now < 2 * kProbeBytes) return;
  out.small_result = static_cast<int>(cuda.alloc(&pointer, kProbeBytes));
  if (out.small_result != 0) return;
  out.launch_tried = true;
  const uint64_t before = slot ? usage.launches(*card, *slot) : 0;
  if (!failed("cuMemsetD8", cuda.memset(pointer, 0, kProbeBytes))) failed("cuCtxSynchronize", cuda.synchronize());
  // Counted when it is settled, which the library does a little later.
  const bool capped = grant.cards[*card].core_permille != 0;
  for (int waited_ms = 0; slot && capped && waited_ms < kSettleMs && !out.launch_counted; waited_ms += kStepMs) {
    out.launch_counted = usage.launches(*card, *slot) > before;
    if (!out.launch_counted) usleep(kStepMs * 1000);
  }
  cuda.free(pointer);
}

void try_cuda(void* library, const Usage& usage, Evidence& evidence) {
  CudaCalls cuda;
  if (!bind_cuda(library, cuda)) {
    evidence.cuda_problem = "the library lacks a function that every driver has";
    return;
  }
  if (const CUresult code = cuda.init(0); code != CUDA_SUCCESS) {
    evidence.cuda_problem = fmt::format("cuInit gave CUDA error {}", static_cast<int>(code));
    return;
  }
  int count = 0;
  if (const CUresult code = cuda.device_count(&count); code != CUDA_SUCCESS) {
    evidence.cuda_problem = fmt::format("cuDeviceGetCount gave CUDA error {}", static_cast<int>(code));
    return;
  }
  evidence.cards.resize(static_cast<size_t>(std::max(count, 0)));
  for (size_t i = 0; i < evidence.cards.size(); ++i)
    try_card(cuda, static_cast<int>(i), evidence.grant, usage, evidence.cards[i]);
}

void try_nvml(void* library, Evidence& evidence) {
  nvmlReturn_t (*init)() = nullptr;
  nvmlReturn_t (*device_count)(unsigned*) = nullptr;
  nvmlReturn_t (*device)(unsigned, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*uuid)(nvmlDevice_t, char*, unsigned) = nullptr;
  nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  if (!bind(library, "nvmlInit_v2", init) || !bind(library, "nvmlDeviceGetCount_v2", device_count) ||
      !bind(library, "nvmlDeviceGetHandleByIndex_v2", device) || !bind(library, "nvmlDeviceGetUUID", uuid) ||
      !bind(library, "nvmlDeviceGetMemoryInfo", memory)) {
    evidence.nvml_problem = "the library lacks a function that every driver has";
    return;
  }
  const auto failed = [&evidence](const char* call, nvmlReturn_t code) {
    if (code != NVML_SUCCESS)
      evidence.nvml_problem = fmt::format("{} gave NVML error {}", call, static_cast<int>(code));
    return code != NVML_SUCCESS;
  };
  unsigned count = 0;
  if (failed("nvmlInit", init()) || failed("nvmlDeviceGetCount", device_count(&count))) return;
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t handle = nullptr;
    std::array<char, NVML_DEVICE_UUID_V2_BUFFER_SIZE> text{};
    nvmlMemory_t bytes{};
    if (failed("nvmlDeviceGetHandleByIndex", device(i, &handle)) ||
        failed("nvmlDeviceGetUUID", uuid(handle, text.data(), static_cast<unsigned>(text.size()))) ||
        failed("nvmlDeviceGetMemoryInfo", memory(handle, &bytes))) {
      return;
    }
    evidence.nvml_cards.push_back({text.data(), bytes.total});
  }
}

}  // namespace

Evidence gather_evidence() {
  Evidence evidence;
  const Usage usage = read_grant(evidence.grant);
  if (!evidence.grant.there || !evidence.grant.problem.empty()) return evidence;
  if (void* library = load(DriverLibrary::kNvml, evidence.nvml); library != nullptr) try_nvml(library, evidence);
  if (void* library = load(DriverLibrary::kCuda, evidence.cuda); library != nullptr) try_cuda(library, usage, evidence);
  return evidence;
}

}  // namespace sluice::cli
