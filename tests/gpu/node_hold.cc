// gpu_node hold: pages for a few containers of one card, and the card's turns.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"
#include "agent/turn_host.h"
#include "agent/turn_keeper.h"
#include "node.h"

namespace sluice::gpu_node {

void fail(const std::string& what, bool with_errno) {
  const int reason = errno;
  std::fprintf(stderr, "gpu_node: %s%s%s\n", what.c_str(), with_errno ? ": " : "",
               with_errno ? std::strerror(reason) : "");
  std::exit(99);
}

namespace {

struct CardInfo {
  uint8_t uuid[16] = {};
  uint64_t bytes = 0;
};

int hex(char c) {
  return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

CardInfo ask_card(const HoldOptions& options) {
  void* library = dlopen(options.nvml.c_str(), RTLD_NOW);
  if (library == nullptr) fail(dlerror(), false);
  auto need = [&](const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr) fail(options.nvml + " has no " + name, false);
    return symbol;
  };
  nvmlDevice_t device = nullptr;
  char uuid[96] = {};
  nvmlMemory_t memory = {};
  if (reinterpret_cast<decltype(&nvmlInit_v2)>(need("nvmlInit_v2"))() != NVML_SUCCESS ||
      reinterpret_cast<decltype(&nvmlDeviceGetHandleByIndex_v2)>(need("nvmlDeviceGetHandleByIndex_v2"))(
          options.card, &device) != NVML_SUCCESS ||
      reinterpret_cast<decltype(&nvmlDeviceGetUUID)>(need("nvmlDeviceGetUUID"))(device, uuid, sizeof uuid) !=
          NVML_SUCCESS ||
      reinterpret_cast<decltype(&nvmlDeviceGetMemoryInfo)>(need("nvmlDeviceGetMemoryInfo"))(device, &memory) !=
          NVML_SUCCESS) {
    fail("NVML does not tell uuid and memory of card " + std::to_string(options.card), false);
  }
  CardInfo card;
  card.bytes = memory.total;
  int digit = 0;
  for (const char* c = std::strncmp(uuid, "GPU-", 4) == 0 ? uuid + 4 : uuid; *c != '\0' && digit < 32; ++c) {
    if (*c == '-') continue;
    card.uuid[digit / 2] = static_cast<uint8_t>(card.uuid[digit / 2] | (hex(*c) << (digit % 2 == 0 ? 4 : 0)));
    ++digit;
  }
  return card;
}

struct File {
  int fd = -1;
  char* address = nullptr;
};

File make_file(const std::string& path, size_t bytes) {
  File file;
  file.fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file.fd < 0 || ::fchmod(file.fd, 0666) != 0 || ::ftruncate(file.fd, static_cast<off_t>(bytes)) != 0) fail(path);
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) fail(path);
  file.address = static_cast<char*>(address);
  return file;
}

// One container's pages; what the agent's pages do, for files that nobody hostile writes.
class Pages final : public agent::UsageView {
 public:
  Pages(const std::string& folder, const Container& container, const CardInfo& card, const HoldOptions& options) {
    ::mkdir(folder.c_str(), 0755);
    ::mkdir((folder + "/grant").c_str(), 0755);
    const uint64_t id = 0x91d0000000000000ull + reinterpret_cast<uintptr_t>(this);
    auto* grant = reinterpret_cast<page::Grant*>(make_file(folder + "/grant/page", page::grant_bytes(1)).address);
    grant->header.major = page::kMajor;
    grant->header.minor = page::kMinor;
    grant->header.bytes = page::grant_bytes(1);
    grant->header.card_count = 1;
    grant->header.grant_id = id;
    std::snprintf(grant->header.container, sizeof grant->header.container, "%s", container.name.c_str());
    card_ = &grant->cards[0];
    std::memcpy(card_->uuid, card.uuid, sizeof card.uuid);
    card_->index = options.card;
    card_->card_memory_bytes = card.bytes;
    card_->context_estimate_bytes = options.estimate_mib << 20;
    card_->memory_limit_bytes.store(container.limit_mib << 20);
    card_->core_permille.store(container.core_permille);
    card_->policy.store(container.core_permille != 0 ? page::kPolicyFixed : page::kPolicyNative);
    card_->gate.store(container.core_permille != 0 ? 0 : page::kGateFree);
    grant->header.magic = page::kGrantMagic;

    usage_ = make_file(folder + "/usage", page::usage_bytes(1));
    page_ = reinterpret_cast<page::Usage*>(usage_.address);
    page_->header.magic = page::kUsageMagic;
    page_->header.major = page::kMajor;
    page_->header.minor = page::kMinor;
    page_->header.bytes = page::usage_bytes(1);
    page_->header.card_count = 1;
    page_->header.grant_id = id;
  }

  bool read(uint64_t offset, void* into, size_t bytes) override {
    return ::pread(usage_.fd, into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  }
  const volatile uint32_t* futex_word(uint64_t offset) override {
    return reinterpret_cast<const volatile uint32_t*>(usage_.address + offset);
  }
  bool slot_owned(uint32_t card, uint32_t slot) override {
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(page::slot_lock_byte(card, slot));
    lock.l_len = 1;
    return ::fcntl(usage_.fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

  page::GrantCard* grant() { return card_; }
  page::UsageCard& usage() { return page_->cards[0]; }

 private:
  page::GrantCard* card_ = nullptr;
  File usage_;
  page::Usage* page_ = nullptr;
};

void report(const HoldOptions& options, const std::vector<std::shared_ptr<Pages>>& pages, bool turns) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("{\"now_ns\": %lld, \"turns\": %s, \"containers\": {",
              static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec, turns ? "true" : "false");
  for (size_t i = 0; i < pages.size(); ++i) {
    page::UsageCard& card = pages[i]->usage();
    unsigned long long reserved = 0, launches = 0, throttled = 0;
    for (const page::Slot& slot : card.slots) {
      reserved += slot.reserved_bytes.load();
      launches += slot.launches.load();
      throttled += slot.throttled_ns.load();
    }
    std::printf(
        "%s\"%s\": {\"busy_ns\": %llu, \"reserved_bytes\": %llu, \"launches\": %llu, \"throttled_ns\": %llu, "
        "\"refused\": %u, \"overdue_passes\": %llu, \"refusal_code\": %u}",
        i == 0 ? "" : ", ", options.containers[i].name.c_str(),
        static_cast<unsigned long long>(card.account.busy_total_ns.load()), reserved, launches, throttled,
        card.account.refused_allocations.load(), static_cast<unsigned long long>(card.account.overdue_passes.load()),
        card.account.refusal_code.load());
  }
  std::printf("}}\n");
  if (std::fflush(stdout) != 0) std::exit(0);  // nobody reads any more
}

// True when standard input has ended, which is how the script says that it is done.
bool input_ended(int wait_ms) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::poll(&input, 1, wait_ms) <= 0) return false;
  char byte;
  return ::read(STDIN_FILENO, &byte, 1) <= 0;
}

}  // namespace

int hold(const HoldOptions& options) {
  const CardInfo card = ask_card(options);
  ::mkdir(options.state.c_str(), 0755);
  agent::LinuxTurnHost host;
  agent::TurnKeeper keeper(host);
  std::vector<std::shared_ptr<Pages>> pages;
  bool capped = false;
  for (const Container& container : options.containers) {
    pages.push_back(std::make_shared<Pages>(options.state + "/" + container.name, container, card, options));
    capped = capped || container.core_permille != 0;
  }
  keeper.set_policy(capped ? core::ComputePolicy::kFixed : core::ComputePolicy::kNative, 20);
  for (size_t i = 0; i < pages.size(); ++i) {
    keeper.add({i + 1, pages[i]->grant(), pages[i], 0, {options.containers[i].core_permille, 1, false}});
  }
  std::thread thread([&] { keeper.run(); });
  do {
    report(options, pages, keeper.turns_in_force());
  } while (!input_ended(static_cast<int>(options.report_ms)));
  keeper.stop();
  thread.join();
  return 0;
}

}  // namespace sluice::gpu_node
