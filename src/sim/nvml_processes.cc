// Who uses a card, as NVML tells it: lists of processes in the three sizes that clients were built with, the list with
// details, and the vendor tool's private table.
//
// Pids are the difficult part. A record holds its process's pid in the process's own PID namespace. Drivers since 580
// translate to the caller's namespace and leave out what the caller cannot see; older ones show pids of the outermost
// namespace to everybody. Both are modelled (knob pid_namespace_filter). A namespace sees the processes of those below
// it under pids of its own: /proc/<pid>/status tells all of them in NSpid, which needs no privilege.

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "sim/nvml_state.h"

namespace sluice::sim {
namespace {

uint64_t own_namespace() {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

// The last pid of NSpid, which is the process's pid in its own namespace; 0 when there is no such process.
int32_t innermost_pid(const std::string& pid) {
  std::ifstream status("/proc/" + pid + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("NSpid:", 0) != 0) continue;
    const size_t start = line.find_last_of(" \t");
    int32_t value = 0;
    std::from_chars(line.data() + start + 1, line.data() + line.size(), value);
    return value;
  }
  return 0;
}

bool is_process(const std::string& pid, const NvmlProcess& wanted) {
  if (innermost_pid(pid) != wanted.pid) return false;
  // A namespace that has just gone lends its number to the next one, in which pid 1 is pid 1 again.
  if (wanted.started_ticks != 0 && started_ticks(pid.c_str()) != wanted.started_ticks) return false;
  // The namespace's identity can be read of one's own processes only; without it the pid has to do.
  struct stat info{};
  if (stat(("/proc/" + pid + "/ns/pid").c_str(), &info) != 0) return true;
  return info.st_ino == wanted.pid_namespace;
}

// A process of a namespace that has gone, whose number and pid are those of a process here now.
bool taken_by_another(const NvmlProcess& process) {
  if (process.started_ticks == 0) return false;
  const uint32_t now = started_ticks(std::to_string(process.pid).c_str());
  return now != 0 && now != process.started_ticks;
}

// The caller's pid of a process of another namespace, 0 when it cannot be seen.
int32_t translate(const NvmlProcess& process) {
  if (process.host_pid > 0 && is_process(std::to_string(process.host_pid), process)) return process.host_pid;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return 0;
  int32_t found = 0;
  while (const dirent* entry = readdir(proc)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !is_process(entry->d_name, process)) continue;
    found = static_cast<int32_t>(std::strtol(entry->d_name, nullptr, 10));
    break;
  }
  closedir(proc);
  return found;
}

nvmlReturn_t list_processes(std::string_view call, nvmlDevice_t handle, std::vector<NvmlProcess>* out) {
  bool filter = true;
  const nvmlReturn_t result = with_device(call, handle, [&](NvmlView& view) {
    *out = card_processes(view.card);
    filter = view.card.knob(Knob::pid_namespace_filter) != 0;
    return NVML_SUCCESS;
  });
  if (result == NVML_SUCCESS) *out = visible_processes(std::move(*out), filter);
  return result;
}

nvmlProcessInfo_v1_t info_v1(const NvmlProcess& process) {
  return {static_cast<unsigned>(process.pid), process.bytes};
}

nvmlProcessInfo_v2_t info_v2(const NvmlProcess& process) {
  return {static_cast<unsigned>(process.pid), process.bytes, NVML_GPU_INSTANCE_ID_ANY, NVML_COMPUTE_INSTANCE_ID_ANY};
}

template <typename T>
nvmlReturn_t give_processes(std::string_view call, nvmlDevice_t handle, unsigned* count, T* infos,
                            T (*make)(const NvmlProcess&)) {
  std::vector<NvmlProcess> processes;
  const nvmlReturn_t result = list_processes(call, handle, &processes);
  if (result != NVML_SUCCESS) return result;
  std::vector<T> list;
  for (const NvmlProcess& process : processes) list.push_back(make(process));
  return give_list(list, count, infos);
}

// No process of this card does graphics or runs under MPS.
nvmlReturn_t give_none(std::string_view call, nvmlDevice_t handle, unsigned* count) {
  return answer(call, handle, count, [](NvmlView&) { return 0U; });
}

// The private table: slot numbers and the size of an entry as driver 580 has them.
constexpr size_t kSlots = 256;
constexpr size_t kHandleByIndexSlot = 81;
constexpr size_t kFirstListSlot = 213;
constexpr unsigned char kTableId[16] = {0x6c, 0x3e, 0xfe, 0xc4, 0x8f, 0xc9, 0x4e, 0x6c,
                                        0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
constexpr unsigned char kTableIdMixed[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                             0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

struct PrivateProcess {
  nvmlProcessDetail_v1_t detail;
  char name[4096];
};
static_assert(sizeof(PrivateProcess) == 4128);

nvmlReturn_t private_compute_list(nvmlDevice_t handle, unsigned* count, PrivateProcess* out) {
  std::vector<NvmlProcess> processes;
  const nvmlReturn_t result = list_processes("nvmlInternalGetExportTable", handle, &processes);
  if (result != NVML_SUCCESS) return result;
  std::vector<PrivateProcess> list;
  for (const NvmlProcess& process : processes) {
    PrivateProcess entry{};
    entry.detail = {static_cast<unsigned>(process.pid), process.bytes, NVML_GPU_INSTANCE_ID_ANY,
                    NVML_COMPUTE_INSTANCE_ID_ANY, 0};
    process.name.copy(entry.name, sizeof entry.name - 1);
    list.push_back(entry);
  }
  return give_list(list, count, out);
}

nvmlReturn_t private_empty_list(nvmlDevice_t handle, unsigned* count, PrivateProcess*) {
  return give_none("nvmlInternalGetExportTable", handle, count);
}

nvmlReturn_t private_other() {
  return NVML_ERROR_NOT_SUPPORTED;
}

const void* const* private_table() {
  static const std::vector<const void*> table = [] {
    std::vector<const void*> slots(kSlots, reinterpret_cast<const void*>(&private_other));
    slots[0] = reinterpret_cast<const void*>(kSlots * sizeof(void*));
    slots[kHandleByIndexSlot] = reinterpret_cast<const void*>(&sim_nvmlDeviceGetHandleByIndex_v2);
    slots[kFirstListSlot] = reinterpret_cast<const void*>(&private_compute_list);
    slots[kFirstListSlot + 1] = reinterpret_cast<const void*>(&private_empty_list);
    slots[kFirstListSlot + 2] = reinterpret_cast<const void*>(&private_empty_list);
    return slots;
  }();
  return table.data();
}

}  // namespace

std::vector<NvmlProcess> card_processes(Card& card) {
  std::vector<NvmlProcess> list;
  const Index high = card.header().tables.processes.high;
  for (Index i = 1; i <= high; ++i) {
    const ProcessRecord& record = card.process(i);
    if (record.state == LiveState::kFree) continue;
    if (record.first_context == kNone && record.resident_bytes == 0) continue;
    const size_t length = strnlen(record.name, sizeof record.name);
    list.push_back({i, record.pid, record.host_pid, record.pid_namespace, record.simulated != 0, record.started_ticks,
                    record.resident_bytes, std::string(record.name, length)});
  }
  return list;
}

std::vector<NvmlProcess> visible_processes(std::vector<NvmlProcess> all, bool filter) {
  const uint64_t own = own_namespace();
  std::vector<NvmlProcess> visible;
  for (NvmlProcess& process : all) {
    if (!filter) {
      if (process.host_pid > 0) process.pid = process.host_pid;
    } else if (!process.simulated && process.pid_namespace != 0 && process.pid_namespace != own) {
      process.pid = translate(process);
      if (process.pid == 0) continue;
    } else if (taken_by_another(process)) {
      continue;
    }
    visible.push_back(std::move(process));
  }
  return visible;
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_v1_t* out) {
  return give_processes("nvmlDeviceGetComputeRunningProcesses", device, count, out, info_v1);
}

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                         nvmlProcessInfo_v2_t* out) {
  return give_processes("nvmlDeviceGetComputeRunningProcesses_v2", device, count, out, info_v2);
}

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_t* out) {
  return give_processes("nvmlDeviceGetComputeRunningProcesses_v3", device, count, out, info_v2);
}

nvmlReturn_t sim_nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_v1_t*) {
  return give_none("nvmlDeviceGetGraphicsRunningProcesses", device, count);
}

nvmlReturn_t sim_nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_v2_t*) {
  return give_none("nvmlDeviceGetGraphicsRunningProcesses_v2", device, count);
}

nvmlReturn_t sim_nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_t*) {
  return give_none("nvmlDeviceGetGraphicsRunningProcesses_v3", device, count);
}

nvmlReturn_t sim_nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_v1_t*) {
  return give_none("nvmlDeviceGetMPSComputeRunningProcesses", device, count);
}

nvmlReturn_t sim_nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                            nvmlProcessInfo_v2_t*) {
  return give_none("nvmlDeviceGetMPSComputeRunningProcesses_v2", device, count);
}

nvmlReturn_t sim_nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count, nvmlProcessInfo_t*) {
  return give_none("nvmlDeviceGetMPSComputeRunningProcesses_v3", device, count);
}

nvmlReturn_t sim_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t* list) {
  if (list == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (list->version != NVML_VERSION_WORD(nvmlProcessDetailList_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  std::vector<NvmlProcess> processes;
  const nvmlReturn_t result = list_processes("nvmlDeviceGetRunningProcessDetailList", device, &processes);
  if (result != NVML_SUCCESS) return result;
  std::vector<nvmlProcessDetail_v1_t> details;
  constexpr unsigned kComputeMode = 0;
  if (list->mode == kComputeMode) {
    for (const NvmlProcess& process : processes) {
      details.push_back({static_cast<unsigned>(process.pid), process.bytes, NVML_GPU_INSTANCE_ID_ANY,
                         NVML_COMPUTE_INSTANCE_ID_ANY, 0});
    }
  }
  return give_list(details, &list->numProcArrayEntries, list->procArray);
}

nvmlReturn_t sim_nvmlInternalGetExportTable(const void** table, const void* id) {
  if (table == nullptr || id == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (std::memcmp(id, kTableId, sizeof kTableId) != 0 && std::memcmp(id, kTableIdMixed, sizeof kTableIdMixed) != 0) {
    return NVML_ERROR_NOT_FOUND;
  }
  *table = private_table();
  return NVML_SUCCESS;
}

}  // extern "C"
