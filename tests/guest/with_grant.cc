// Runs a program under a grant, for tests: writes the two pages, builds a private mount namespace with the fixed paths,
// puts the guest libraries in front of a driver, and becomes the program. Does no more than a container runtime would;
// the tool for people is `sluice run`.
//
//   with_grant --driver DIR --guest DIR --state DIR [--limit-mib N] [--core-permille N] [--estimate-mib N]
//              [--delivery bind|preload|none] [--root DIR] [--keep-pages] -- PROGRAM ARGUMENTS...
//
// --driver    folder with libcuda.so.1 and libnvidia-ml.so.1 of the "real" driver. In bind delivery the guest's files
// are
//             mounted over the two; programs find the folder through LD_LIBRARY_PATH, as they would a driver's.
// --root      folder that becomes the program's root; the paths of driver and guest are in it, as seen from outside
// --state     folder where the pages are kept; with --keep-pages existing ones are used, so several programs share
// them. The cards are those of SLUICE_SIM_DIR, asked through the driver's own NVML.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"
#include "page/driver_names.h"
#include "page/usage.h"

namespace {

using namespace sluice;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "with_grant: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(99);
}

struct Options {
  std::string driver, guest, state, root, delivery = "bind";
  uint64_t limit_mib = 0, core_permille = 0, estimate_mib = 600;
  bool keep_pages = false;
  char** program = nullptr;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--") {
      options.program = argv + i + 1;
      break;
    }
    if (name == "--keep-pages") {
      options.keep_pages = true;
      continue;
    }
    if (i + 1 >= argc) fail(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--driver") {
      options.driver = value;
    } else if (name == "--guest") {
      options.guest = value;
    } else if (name == "--state") {
      options.state = value;
    } else if (name == "--root") {
      options.root = value;
    } else if (name == "--delivery") {
      options.delivery = value;
    } else if (name == "--limit-mib") {
      options.limit_mib = std::stoull(value);
    } else if (name == "--core-permille") {
      options.core_permille = std::stoull(value);
    } else if (name == "--estimate-mib") {
      options.estimate_mib = std::stoull(value);
    } else {
      fail("unknown option " + name);
    }
  }
  if (options.program == nullptr || options.program[0] == nullptr || options.driver.empty() || options.state.empty()) {
    fail("usage: with_grant --driver DIR --guest DIR --state DIR [...] -- PROGRAM");
  }
  return options;
}

struct CardInfo {
  uint8_t uuid[16];
  uint64_t bytes;
};

uint8_t hex(char c) {
  return static_cast<uint8_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
}

// In a child, so that the driver is not in this process when it becomes the program.
std::vector<CardInfo> ask_cards(const Options& options) {
  std::vector<CardInfo> cards;
  void* library = dlopen((options.driver + "/libnvidia-ml.so.1").c_str(), RTLD_NOW);
  if (library == nullptr) fail(dlerror());
  auto find = [&](const char* name) { return dlsym(library, name); };
  if (reinterpret_cast<decltype(&nvmlInit_v2)>(find("nvmlInit_v2"))() != NVML_SUCCESS) fail("nvmlInit_v2");
  unsigned int count = 0;
  reinterpret_cast<decltype(&nvmlDeviceGetCount_v2)>(find("nvmlDeviceGetCount_v2"))(&count);
  for (unsigned int i = 0; i < count && i < page::kMaxCards; ++i) {
    nvmlDevice_t device = nullptr;
    char uuid[96] = {};
    nvmlMemory_t memory = {};
    reinterpret_cast<decltype(&nvmlDeviceGetHandleByIndex_v2)>(find("nvmlDeviceGetHandleByIndex_v2"))(i, &device);
    reinterpret_cast<decltype(&nvmlDeviceGetUUID)>(find("nvmlDeviceGetUUID"))(device, uuid, sizeof uuid);
    reinterpret_cast<decltype(&nvmlDeviceGetMemoryInfo)>(find("nvmlDeviceGetMemoryInfo"))(device, &memory);
    CardInfo card = {};
    card.bytes = memory.total;
    int digit = 0;
    for (const char* c = uuid + 4; *c != '\0' && digit < 32; ++c) {
      if (*c == '-') continue;
      card.uuid[digit / 2] = static_cast<uint8_t>(card.uuid[digit / 2] | (hex(*c) << (digit % 2 == 0 ? 4 : 0)));
      ++digit;
    }
    cards.push_back(card);
  }
  return cards;
}

void* make_file(const std::string& path, size_t bytes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0 || ::fchmod(file, 0666) != 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) fail(path);
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (address == MAP_FAILED) fail(path);
  ::close(file);
  return address;
}

void write_pages(const Options& options, const std::vector<CardInfo>& cards) {
  ::mkdir((options.state + "/grant").c_str(), 0755);
  const uint32_t count = static_cast<uint32_t>(cards.size());
  auto* grant = static_cast<page::Grant*>(make_file(options.state + "/grant/page", page::grant_bytes(count)));
  auto* usage = static_cast<page::Usage*>(make_file(options.state + "/usage", page::usage_bytes(count)));
  page::GrantHeader& header = grant->header;
  header.magic = page::kGrantMagic;
  header.major = page::kMajor;
  header.minor = page::kMinor;
  header.bytes = page::grant_bytes(count);
  header.card_count = count;
  header.grant_id = 0x5ee5;
  std::strcpy(header.container, "test");
  for (uint32_t i = 0; i < count; ++i) {
    page::GrantCard& card = grant->cards[i];
    std::memcpy(card.uuid, cards[i].uuid, 16);
    card.index = i;
    card.card_memory_bytes = cards[i].bytes;
    card.context_estimate_bytes = options.estimate_mib << 20;
    card.memory_limit_bytes.store(options.limit_mib << 20);
    card.core_permille.store(static_cast<uint32_t>(options.core_permille));
    card.gate.store(options.core_permille != 0 ? 0 : page::kGateFree);
    card.policy.store(options.core_permille != 0 ? page::kPolicyFixed : page::kPolicyNative);
  }
  usage->header.magic = page::kUsageMagic;
  usage->header.major = page::kMajor;
  usage->header.bytes = page::usage_bytes(count);
  usage->header.card_count = count;
  usage->header.grant_id = 0x5ee5;
}

void bind(const std::string& from, const std::string& to, bool read_only) {
  if (::mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) != 0) fail("mount " + from + " on " + to);
  if (read_only && ::mount(nullptr, to.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
    fail("read-only " + to);
  }
}

void touch(const std::string& path) {
  ::close(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
}

void build_namespace(const Options& options) {
  if (::unshare(CLONE_NEWNS) != 0) fail("unshare");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("private mounts");
  // A tmpfs of its own under the fixed path, visible in this namespace only.
  const std::string fixed = options.root + "/run/sluice";
  ::mkdir(fixed.c_str(), 0755);
  if (::mount("tmpfs", fixed.c_str(), "tmpfs", 0, "mode=0755") != 0) fail("tmpfs");
  const std::string root = options.root + page::kContainerRoot;
  const std::string usage = options.root + page::kUsagePath;
  for (const char* folder : {"", "/grant", "/driver"}) ::mkdir((root + folder).c_str(), 0755);
  touch(usage);
  bind(options.state + "/grant", root + "/grant", true);
  bind(options.state + "/usage", usage, false);
  for (const char* library : {"/libcuda.so.1", "/libnvidia-ml.so.1"}) {
    const std::string real = options.root + page::kDriverDirectory + "/" + page::real_driver_name(library + 1);
    touch(real);
    bind(options.driver + library, real, true);
    if (options.delivery == "bind") bind(options.guest + library, options.driver + library, true);
  }
  if (options.delivery == "preload") {
    const std::string list = "/run/sluice/ld.so.preload";
    FILE* out = std::fopen(list.c_str(), "w");
    if (out == nullptr) fail(list);
    for (const char* library : {"/libcuda.so.1", "/libnvidia-ml.so.1", "/libsluice-preload.so"}) {
      std::fprintf(out, "%s%s\n", options.guest.c_str(), library);
    }
    std::fclose(out);
    touch("/etc/ld.so.preload");
    bind(list, "/etc/ld.so.preload", true);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  ::mkdir(options.state.c_str(), 0755);
  const bool present = ::access((options.state + "/grant/page").c_str(), F_OK) == 0;
  if (!options.keep_pages || !present) write_pages(options, ask_cards(options));
  build_namespace(options);
  if (!options.root.empty() && (::chroot(options.root.c_str()) != 0 || ::chdir("/") != 0)) fail("root " + options.root);
  ::execvp(options.program[0], options.program);
  fail(options.program[0]);
}
