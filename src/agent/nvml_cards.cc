#include "agent/nvml_cards.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "abi/nvml.h"
#include "base/log.h"

namespace sluice::agent {
namespace {

constexpr char kSoname[] = "libnvidia-ml.so.1";
constexpr std::array<const char*, 7> kFolders{
    "/usr/lib/x86_64-linux-gnu", "/usr/lib64",       "/usr/lib", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64",
    "/usr/lib/nvidia/current",   "/opt/nvidia/lib64"};
constexpr unsigned kMaxCards = 64;
constexpr unsigned kMaxProcesses = 8192;

std::string real_path(const std::string& path) {
  std::array<char, PATH_MAX> buffer{};
  return ::realpath(path.c_str(), buffer.data()) != nullptr ? std::string(buffer.data()) : "";
}

// Function types as in the published interface; the newest process list that the driver has is used.
struct Api {
  nvmlReturn_t (*init)() = nullptr;
  nvmlReturn_t (*shutdown)() = nullptr;
  const char* (*error_string)(nvmlReturn_t) = nullptr;
  nvmlReturn_t (*driver_version)(char*, unsigned) = nullptr;
  nvmlReturn_t (*count)(unsigned*) = nullptr;
  nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*by_uuid)(const char*, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*name)(nvmlDevice_t, char*, unsigned) = nullptr;
  nvmlReturn_t (*uuid)(nvmlDevice_t, char*, unsigned) = nullptr;
  nvmlReturn_t (*minor)(nvmlDevice_t, unsigned*) = nullptr;
  nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  nvmlReturn_t (*utilisation)(nvmlDevice_t, nvmlUtilization_t*) = nullptr;
  nvmlReturn_t (*mig)(nvmlDevice_t, unsigned*, unsigned*) = nullptr;
  nvmlReturn_t (*compute_mode)(nvmlDevice_t, nvmlComputeMode_t*) = nullptr;
  nvmlReturn_t (*samples)(nvmlDevice_t, nvmlProcessUtilizationSample_t*, unsigned*, unsigned long long) = nullptr;
  using List = nvmlReturn_t (*)(nvmlDevice_t, unsigned*, nvmlProcessInfo_v2_t*);  // _v2 and _v3 share the layout
  using ListV1 = nvmlReturn_t (*)(nvmlDevice_t, unsigned*, nvmlProcessInfo_v1_t*);
  std::array<List, 3> lists{};  // compute, graphics, MPS
  std::array<ListV1, 2> old_lists{};
};

template <typename F>
void bind(void* library, F& function, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    function = reinterpret_cast<F>(::dlsym(library, name));
    if (function != nullptr) return;
  }
}

Result<Api> bind_api(void* library, const std::string& path) {
  Api api;
  bind(library, api.init, {"nvmlInit_v2", "nvmlInit"});
  bind(library, api.shutdown, {"nvmlShutdown"});
  bind(library, api.error_string, {"nvmlErrorString"});
  bind(library, api.driver_version, {"nvmlSystemGetDriverVersion"});
  bind(library, api.count, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"});
  bind(library, api.by_index, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"});
  bind(library, api.by_uuid, {"nvmlDeviceGetHandleByUUID"});
  bind(library, api.name, {"nvmlDeviceGetName"});
  bind(library, api.uuid, {"nvmlDeviceGetUUID"});
  bind(library, api.minor, {"nvmlDeviceGetMinorNumber"});
  bind(library, api.memory, {"nvmlDeviceGetMemoryInfo"});
  bind(library, api.utilisation, {"nvmlDeviceGetUtilizationRates"});
  bind(library, api.mig, {"nvmlDeviceGetMigMode"});
  bind(library, api.compute_mode, {"nvmlDeviceGetComputeMode"});
  bind(library, api.samples, {"nvmlDeviceGetProcessUtilization"});
  bind(library, api.lists[0], {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  bind(library, api.lists[1], {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"});
  bind(library, api.lists[2],
       {"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"});
  bind(library, api.old_lists[0], {"nvmlDeviceGetComputeRunningProcesses"});
  bind(library, api.old_lists[1], {"nvmlDeviceGetGraphicsRunningProcesses"});
  if (api.init == nullptr || api.shutdown == nullptr || api.count == nullptr || api.by_index == nullptr ||
      api.by_uuid == nullptr || api.name == nullptr || api.uuid == nullptr || api.memory == nullptr ||
      (api.lists[0] == nullptr && api.old_lists[0] == nullptr)) {
    return invalid(fmt::format("{} lacks basic functions of NVML; is it the driver's library?", path));
  }
  return api;
}

class NvmlCards final : public Cards {
 public:
  NvmlCards(Api api, std::string path) : api_(api), path_(std::move(path)) {}
  ~NvmlCards() override {
    if (started_) api_.shutdown();
  }
  NvmlCards(const NvmlCards&) = delete;
  NvmlCards& operator=(const NvmlCards&) = delete;

  Result<void> start() {
    nvmlReturn_t code = api_.init();
    if (code != NVML_SUCCESS) {
      return not_found(
          fmt::format("no card: {} says '{}'; is the kernel module loaded and /dev/nvidia* there?", path_, text(code)));
    }
    started_ = true;
    return {};
  }

  std::string driver_version() override {
    std::shared_lock guard(restarting_);
    std::array<char, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE> buffer{};
    if (api_.driver_version == nullptr || api_.driver_version(buffer.data(), buffer.size()) != NVML_SUCCESS) return "";
    return buffer.data();
  }

  Result<std::vector<CardInfo>> list() override;
  Result<CardReading> read(const std::string& uuid) override;

  Result<void> restart() override {
    std::unique_lock guard(restarting_);
    if (started_) api_.shutdown();
    started_ = false;
    return start();
  }

 private:
  std::string text(nvmlReturn_t code) const {
    return api_.error_string != nullptr ? api_.error_string(code)
                                        : fmt::format("NVML error {}", static_cast<int>(code));
  }
  Error failed(std::string_view what, const std::string& card, nvmlReturn_t code) const {
    const bool lost =
        code == NVML_ERROR_GPU_IS_LOST || code == NVML_ERROR_NOT_FOUND || code == NVML_ERROR_GPU_NOT_FOUND;
    Error error = unavailable(fmt::format("card {}: NVML cannot read {}: {}", card, what, text(code)));
    if (lost) error.code = ErrorCode::kNotFound;
    return error;
  }
  nvmlReturn_t processes(nvmlDevice_t device, std::map<int64_t, int64_t>& out) const;
  void samples(nvmlDevice_t device, const std::string& uuid, CardReading& reading);

  Api api_;
  std::string path_;
  bool started_ = false;
  std::shared_mutex restarting_;
  std::mutex stamps_guard_;
  std::map<std::string, unsigned long long> last_sample_us_;
};

Result<std::vector<CardInfo>> NvmlCards::list() {
  std::shared_lock guard(restarting_);
  unsigned count = 0;
  nvmlReturn_t code = api_.count(&count);
  if (code != NVML_SUCCESS) return unavailable(fmt::format("NVML cannot count the cards: {}", text(code)));
  std::vector<CardInfo> cards;
  for (unsigned i = 0; i < std::min(count, kMaxCards); ++i) {
    nvmlDevice_t device{};
    std::array<char, NVML_DEVICE_UUID_V2_BUFFER_SIZE> uuid{};
    std::array<char, NVML_DEVICE_NAME_V2_BUFFER_SIZE> name{};
    nvmlMemory_t memory{};
    unsigned minor = 0;
    if (api_.by_index(i, &device) != NVML_SUCCESS || api_.uuid(device, uuid.data(), uuid.size()) != NVML_SUCCESS ||
        api_.name(device, name.data(), name.size()) != NVML_SUCCESS || api_.memory(device, &memory) != NVML_SUCCESS) {
      log::warning("a card does not answer", {{"index", i}});
      continue;
    }
    CardInfo card{static_cast<int32_t>(i), uuid.data(), name.data(), static_cast<int64_t>(memory.total), -1};
    if (api_.minor != nullptr && api_.minor(device, &minor) == NVML_SUCCESS) card.minor = static_cast<int32_t>(minor);
    cards.push_back(std::move(card));
  }
  return cards;
}

// One figure per pid over the compute, graphics and MPS lists: the same process may stand in several with one figure.
nvmlReturn_t NvmlCards::processes(nvmlDevice_t device, std::map<int64_t, int64_t>& out) const {
  auto add = [&](unsigned pid, unsigned long long used) {
    int64_t bytes = used == ~0ull ? kUnknownBytes : static_cast<int64_t>(used);
    auto [entry, fresh] = out.emplace(pid, bytes);
    if (!fresh) entry->second = std::max(entry->second, bytes);
  };
  auto collect = [&](auto function, auto sample) -> nvmlReturn_t {
    std::vector<decltype(sample)> list(64);
    nvmlReturn_t code = NVML_ERROR_INSUFFICIENT_SIZE;
    // The list may grow between two calls: a few tries, each with room to spare.
    for (int attempt = 0; attempt < 8 && code == NVML_ERROR_INSUFFICIENT_SIZE; ++attempt) {
      unsigned count = static_cast<unsigned>(list.size());
      code = function(device, &count, list.data());
      if (code == NVML_SUCCESS) {
        for (unsigned i = 0; i < std::min<size_t>(count, list.size()); ++i) add(list[i].pid, list[i].usedGpuMemory);
      } else if (code == NVML_ERROR_INSUFFICIENT_SIZE) {
        list.resize(std::min<size_t>(kMaxProcesses, std::max<size_t>(count, list.size()) * 2));
      }
    }
    return code;
  };
  nvmlReturn_t worst = NVML_SUCCESS;
  for (size_t i = 0; i < api_.lists.size(); ++i) {
    nvmlReturn_t code = NVML_SUCCESS;
    if (api_.lists[i] != nullptr)
      code = collect(api_.lists[i], nvmlProcessInfo_v2_t{});
    else if (i < api_.old_lists.size() && api_.old_lists[i] != nullptr)
      code = collect(api_.old_lists[i], nvmlProcessInfo_v1_t{});
    if (code != NVML_SUCCESS && i == 0) worst = code;  // graphics and MPS lists are not everywhere
  }
  return worst;
}

void NvmlCards::samples(nvmlDevice_t device, const std::string& uuid, CardReading& reading) {
  if (api_.samples == nullptr) return;
  unsigned long long since = 0;
  {
    std::lock_guard guard(stamps_guard_);
    since = last_sample_us_[uuid];
  }
  unsigned count = 0;
  if (api_.samples(device, nullptr, &count, since) != NVML_ERROR_INSUFFICIENT_SIZE || count == 0) return;
  std::vector<nvmlProcessUtilizationSample_t> list(std::min(count + 16, kMaxProcesses));
  count = static_cast<unsigned>(list.size());
  if (api_.samples(device, list.data(), &count, since) != NVML_SUCCESS) return;
  for (unsigned i = 0; i < std::min<size_t>(count, list.size()); ++i) {
    since = std::max(since, list[i].timeStamp);
    reading.samples.push_back({list[i].pid, list[i].smUtil, list[i].memUtil, list[i].encUtil, list[i].decUtil});
  }
  std::lock_guard guard(stamps_guard_);
  last_sample_us_[uuid] = since;
}

Result<CardReading> NvmlCards::read(const std::string& uuid) {
  std::shared_lock guard(restarting_);
  nvmlDevice_t device{};
  nvmlReturn_t code = api_.by_uuid(uuid.c_str(), &device);
  if (code != NVML_SUCCESS) return failed("the card", uuid, code);
  nvmlMemory_t memory{};
  code = api_.memory(device, &memory);
  if (code != NVML_SUCCESS) return failed("its memory", uuid, code);
  CardReading reading;
  reading.used_bytes = static_cast<int64_t>(memory.used);
  std::map<int64_t, int64_t> by_pid;
  code = processes(device, by_pid);
  if (code != NVML_SUCCESS) return failed("its processes", uuid, code);
  for (const auto& [pid, used] : by_pid) reading.processes.push_back({pid, used});
  nvmlUtilization_t rates{};
  if (api_.utilisation != nullptr && api_.utilisation(device, &rates) == NVML_SUCCESS) {
    reading.utilisation_percent = rates.gpu;
  }
  unsigned mig = 0, pending = 0;
  reading.mig = api_.mig != nullptr && api_.mig(device, &mig, &pending) == NVML_SUCCESS && mig != 0;
  nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
  reading.exclusive_process = api_.compute_mode != nullptr && api_.compute_mode(device, &mode) == NVML_SUCCESS &&
                              (mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS || mode == NVML_COMPUTEMODE_PROHIBITED);
  samples(device, uuid, reading);
  return reading;
}

// The file behind a loaded library.
std::string loaded_path(void* library) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return real_path(map->l_name);
}

}  // namespace

Result<std::vector<uint8_t>> parse_uuid(const std::string& text) {
  std::vector<uint8_t> bytes;
  int high = -1;
  for (size_t i = text.rfind("GPU-", 0) == 0 ? 4 : 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '-') continue;
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return invalid(fmt::format("card UUID '{}': expected GPU- and 32 hex digits", text));
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<uint8_t>(high * 16 + digit));
      high = -1;
    }
  }
  if (bytes.size() != 16 || high >= 0)
    return invalid(fmt::format("card UUID '{}': expected GPU- and 32 hex digits", text));
  return bytes;
}

Result<std::unique_ptr<Cards>> open_nvml_cards(const std::string& driver_directory) {
  void* library = nullptr;
  std::string tried;
  auto attempt = [&](const std::string& path) {
    if (library != nullptr) return;
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* reason = library == nullptr ? ::dlerror() : nullptr;
    if (reason != nullptr) tried = tried.empty() ? std::string(reason) : tried;
  };
  if (!driver_directory.empty()) {
    attempt(driver_directory + "/" + kSoname);
  } else {
    attempt(kSoname);
    for (const char* folder : kFolders) attempt(fmt::format("{}/{}", folder, kSoname));
  }
  if (library == nullptr) {
    return not_found(fmt::format(
        "no card: the driver's {} is not on this machine ({}); install the driver, put the "
        "folder of its libraries (or of a simulated card's) into LD_LIBRARY_PATH, or name it to sluice-agent "
        "with --driver-dir",
        kSoname, tried));
  }
  std::string path = loaded_path(library);
  Result<Api> api = bind_api(library, path);  // never unloaded: the driver keeps threads and handlers of its own
  if (!api) return std::move(api.error());
  auto cards = std::make_unique<NvmlCards>(*api, path);
  Result<void> started = cards->start();
  if (!started) return std::move(started.error());
  log::info("driver library loaded", {{"path", path}, {"driver", cards->driver_version()}});
  return std::unique_ptr<Cards>(std::move(cards));
}

std::vector<DriverFile> find_driver_files(const std::string& driver_directory, const std::string& guest_directory) {
  std::vector<std::string> folders;
  if (!driver_directory.empty()) folders.push_back(driver_directory);
  if (const char* search = std::getenv("LD_LIBRARY_PATH"); search != nullptr) {
    std::string text = search;
    for (size_t start = 0; start <= text.size();) {
      size_t end = std::min(text.find(':', start), text.size());
      if (end > start) folders.push_back(text.substr(start, end - start));
      start = end + 1;
    }
  }
  // Where the loader found NVML, its sibling lies too; asking the loader for it costs nothing, it is loaded already.
  if (void* nvml = ::dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD); nvml != nullptr) {
    std::string path = loaded_path(nvml);
    if (size_t slash = path.find_last_of('/'); slash != std::string::npos) folders.push_back(path.substr(0, slash));
    ::dlclose(nvml);
  }
  folders.insert(folders.end(), kFolders.begin(), kFolders.end());

  std::vector<DriverFile> files;
  for (const char* soname : {"libcuda.so.1", kSoname}) {
    DriverFile file;
    file.soname = soname;
    std::string plain = std::string(soname).substr(0, std::string(soname).size() - 2);  // "libcuda.so"
    for (const std::string& folder : folders) {
      for (const std::string& name : {std::string(soname), plain}) {
        std::string path = real_path(folder + "/" + name);
        if (path.empty()) continue;
        if (file.real_path.empty() && name == soname) file.real_path = path;
        if (std::find(file.cover.begin(), file.cover.end(), path) == file.cover.end()) file.cover.push_back(path);
      }
    }
    if (!guest_directory.empty()) file.guest_path = real_path(guest_directory + "/" + soname);
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace sluice::agent
