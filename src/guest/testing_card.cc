#include "guest/testing_card.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "abi/cuda_prototypes.h"
#include "abi/nvml.h"
#include "abi/nvml_prototypes.h"

namespace sluice::guest {

TestCard* TestCard::current = nullptr;
TestCard::TestCard() {
  current = this;
}
TestCard::~TestCard() {
  if (current == this) current = nullptr;
}

bool TestCard::take(uint64_t bytes) {
  const uint64_t capacity = shared->capacity.load();
  uint64_t before = shared->resident.load();
  do {
    if (capacity != 0 && before + bytes > capacity) return false;
  } while (!shared->resident.compare_exchange_weak(before, before + bytes));
  uint64_t peak = shared->peak.load();
  while (before + bytes > peak && !shared->peak.compare_exchange_weak(peak, before + bytes)) {
  }
  shared->by_process[process_index].fetch_add(bytes);
  return true;
}

void TestCard::give(uint64_t bytes) {
  shared->resident.fetch_sub(bytes);
  shared->by_process[process_index].fetch_sub(bytes);
}

namespace {

constexpr uint64_t kBlock = 2ull << 20;
uint64_t up(uint64_t value, uint64_t granule) {
  return (value + granule - 1) / granule * granule;
}
TestCard& card() {
  return *TestCard::current;
}
using Lock = std::lock_guard<std::mutex>;
thread_local void* current_of_thread = nullptr;

CUresult allocate(CUdeviceptr* out, size_t bytes) {
  TestCard& c = card();
  Lock lock(c.mutex);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (current_of_thread == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes > (1ull << 20)) {
    if (!c.take(up(bytes, kBlock))) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = c.next_address;
    c.next_address += up(bytes, kBlock);
  } else {
    if (c.small_cursor + bytes > c.small_end || c.small_blocks.count(c.small_cursor / kBlock) == 0) {
      if (!c.take(kBlock)) return CUDA_ERROR_OUT_OF_MEMORY;
      c.small_cursor = c.next_address;
      c.small_end = c.next_address + kBlock;
      c.next_address += kBlock;
      c.small_blocks[c.small_cursor / kBlock] = 0;
    }
    *out = c.small_cursor;
    ++c.small_blocks[*out / kBlock];
    c.small_cursor += up(bytes, 512);
  }
  c.ranges[*out] = {bytes, -1, current_of_thread};
  return CUDA_SUCCESS;
}

void drop(TestCard& c, std::map<uint64_t, TestCard::Range>::iterator range) {
  if (range->second.bytes > (1ull << 20)) {
    c.give(up(range->second.bytes, kBlock));
  } else if (--c.small_blocks[range->first / kBlock] == 0) {
    c.small_blocks.erase(range->first / kBlock);
    c.give(kBlock);
  }
  c.ranges.erase(range);
}

CUresult release(CUdeviceptr address) {
  TestCard& c = card();
  Lock lock(c.mutex);
  auto range = c.ranges.find(address);
  if (range == c.ranges.end()) return CUDA_ERROR_INVALID_VALUE;
  drop(c, range);
  return CUDA_SUCCESS;
}

CUresult pitch(CUdeviceptr* out, size_t* pitch_out, size_t width, size_t height, unsigned int) {
  if (pitch_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pitch_out = up(width, 512);
  return allocate(out, *pitch_out * height);
}

CUresult managed(CUdeviceptr* out, size_t bytes, unsigned int) {
  return allocate(out, bytes);
}

CUresult new_context(CUcontext* out, CUdevice device) {
  TestCard& c = card();
  Lock lock(c.mutex);
  if (device < 0 || device >= c.devices) return CUDA_ERROR_INVALID_DEVICE;
  if (!c.take(c.context_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUcontext>(c.next_handle++);
  c.contexts[*out] = c.context_bytes;
  current_of_thread = *out;
  return CUDA_SUCCESS;
}
CUresult context_create(CUcontext* out, unsigned int, CUdevice device) {
  return new_context(out, device);
}
void end_context(TestCard& c, void* context) {
  for (auto range = c.ranges.begin(); range != c.ranges.end();) {
    auto next = std::next(range);
    if (range->second.context == context) drop(c, range);
    range = next;
  }
  c.give(c.contexts[context]);
  c.contexts.erase(context);
  if (current_of_thread == context) current_of_thread = nullptr;
}
CUresult context_destroy(CUcontext context) {
  TestCard& c = card();
  Lock lock(c.mutex);
  if (c.contexts.count(context) == 0) return CUDA_ERROR_INVALID_CONTEXT;
  end_context(c, context);
  return CUDA_SUCCESS;
}
void* primary_context = nullptr;
CUresult primary_retain(CUcontext* out, CUdevice device) {
  if (card().primary_retains++ == 0) {
    const CUresult result = new_context(out, device);
    if (result != CUDA_SUCCESS) {
      --card().primary_retains;
      return result;
    }
    primary_context = *out;
  }
  *out = static_cast<CUcontext>(primary_context);
  return CUDA_SUCCESS;
}
CUresult primary_release(CUdevice) {
  TestCard& c = card();
  Lock lock(c.mutex);
  if (c.primary_retains == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--c.primary_retains == 0) end_context(c, primary_context);
  return CUDA_SUCCESS;
}
CUresult get_current(CUcontext* out) {
  *out = static_cast<CUcontext>(current_of_thread);
  return CUDA_SUCCESS;
}
CUresult set_current(CUcontext context) {
  current_of_thread = context;
  return CUDA_SUCCESS;
}
CUresult get_device(CUdevice* out) {
  if (current_of_thread == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = 0;
  return CUDA_SUCCESS;
}
CUresult initialise(unsigned int) {
  card().initialised = true;
  return CUDA_SUCCESS;
}
CUresult device_count(int* out) {
  if (!card().initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *out = card().devices;
  return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* out, int ordinal) {
  if (ordinal < 0 || ordinal >= card().devices) return CUDA_ERROR_INVALID_DEVICE;
  *out = ordinal;
  return CUDA_SUCCESS;
}
CUresult device_uuid(CUuuid* out, CUdevice device) {
  std::memcpy(out->bytes, card().uuid, 16);
  out->bytes[0] = static_cast<char>(out->bytes[0] + device);
  return CUDA_SUCCESS;
}
CUresult device_attribute(int* out, CUdevice_attribute attribute, CUdevice) {
  *out = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 80 : 2048;
  return CUDA_SUCCESS;
}
CUresult total_memory(size_t* out, CUdevice) {
  *out = 32ull << 30;
  return CUDA_SUCCESS;
}
CUresult memory_info(size_t* free_bytes, size_t* total) {
  *total = 32ull << 30;
  *free_bytes = *total - card().shared->resident.load();
  return CUDA_SUCCESS;
}
CUresult get_limit(size_t* out, CUlimit limit) {
  *out = card().limits[limit];
  return CUDA_SUCCESS;
}
CUresult set_limit(CUlimit limit, size_t value) {
  card().limits[limit] = value;
  return CUDA_SUCCESS;
}
CUresult module_load(CUmodule* out, const void*) {
  if (!card().take(card().code_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUmodule>(card().next_handle++);
  return CUDA_SUCCESS;
}

CUresult module_unload(CUmodule) {
  card().give(card().code_bytes);
  return CUDA_SUCCESS;
}

CUresult array_create(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d) {
  TestCard& c = card();
  Lock lock(c.mutex);
  const uint64_t bytes = up(d->Width * std::max<size_t>(d->Height, 1) * d->NumChannels * 4, kBlock);
  if (!c.take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUarray>(c.next_handle++);
  c.arrays[reinterpret_cast<uint64_t>(*out)] = bytes;
  return CUDA_SUCCESS;
}
CUresult array_destroy(CUarray array) {
  TestCard& c = card();
  Lock lock(c.mutex);
  auto entry = c.arrays.find(reinterpret_cast<uint64_t>(array));
  if (entry == c.arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
  c.give(entry->second);
  c.arrays.erase(entry);
  return CUDA_SUCCESS;
}

CUresult physical_create(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* p,
                         unsigned long long) {
  TestCard& c = card();
  Lock lock(c.mutex);
  const uint64_t charged = p->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? up(bytes, kBlock) : 0;
  if (!c.take(charged)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = c.next_handle++;
  c.handles[*out] = new TestCard::TestPhysical{charged, 1};
  return CUDA_SUCCESS;
}
void unreference(TestCard& c, TestCard::TestPhysical* physical) {
  if (--physical->references != 0) return;
  c.give(physical->bytes);
  delete physical;
}
std::map<uint64_t, int> handle_counts;
CUresult physical_release(CUmemGenericAllocationHandle handle) {
  TestCard& c = card();
  Lock lock(c.mutex);
  auto entry = c.handles.find(handle);
  if (entry == c.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  TestCard::TestPhysical* physical = entry->second;
  if (handle_counts[handle] > 0) {
    --handle_counts[handle];
  } else {
    c.handles.erase(entry);
  }
  unreference(c, physical);
  return CUDA_SUCCESS;
}
CUresult physical_map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                      unsigned long long) {
  TestCard& c = card();
  Lock lock(c.mutex);
  if (c.handles.count(handle) == 0 || c.mapped.count(address) != 0) return CUDA_ERROR_INVALID_VALUE;
  c.mapped[address] = c.handles[handle];
  c.mapped_bytes[address] = bytes;
  ++c.handles[handle]->references;
  return CUDA_SUCCESS;
}
CUresult physical_unmap(CUdeviceptr address, size_t bytes) {
  TestCard& c = card();
  Lock lock(c.mutex);
  for (uint64_t at = address; at < address + bytes;) {
    if (c.mapped.count(at) == 0) return CUDA_ERROR_INVALID_VALUE;
    TestCard::TestPhysical* physical = c.mapped[at];
    const uint64_t size = c.mapped_bytes[at];
    c.mapped.erase(at);
    unreference(c, physical);
    at += size;
  }
  return CUDA_SUCCESS;
}
CUresult physical_retain(CUmemGenericAllocationHandle* out, void* address) {
  TestCard& c = card();
  Lock lock(c.mutex);
  auto mapping = c.mapped.find(reinterpret_cast<uint64_t>(address));
  if (mapping == c.mapped.end()) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [handle, physical] : c.handles) {
    if (physical == mapping->second) {
      *out = handle;
      ++handle_counts[handle];
      ++physical->references;
      return CUDA_SUCCESS;
    }
  }
  *out = c.next_handle++;
  c.handles[*out] = mapping->second;
  ++mapping->second->references;
  return CUDA_SUCCESS;
}

CUresult default_pool(CUmemoryPool* out, CUdevice) {
  *out = reinterpret_cast<CUmemoryPool>(0x99);
  return CUDA_SUCCESS;
}
CUresult pool_create(CUmemoryPool* out, const CUmemPoolProps*) {
  *out = reinterpret_cast<CUmemoryPool>(card().next_handle++);
  return CUDA_SUCCESS;
}
CUresult from_pool(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream) {
  TestCard& c = card();
  Lock lock(c.mutex);
  TestCard::TestPool& p = c.pools[reinterpret_cast<uint64_t>(pool)];
  if (p.used + bytes > p.reserved) {
    const uint64_t growth = up(p.used + bytes - p.reserved, c.pool_granule);
    if (!c.take(growth)) return CUDA_ERROR_OUT_OF_MEMORY;
    p.reserved += growth;
  }
  p.used += bytes;
  *out = c.next_address;
  c.next_address += up(bytes, kBlock);
  c.ranges[*out] = {bytes, 0, nullptr};
  c.pool_of_address[*out] = reinterpret_cast<uint64_t>(pool);
  return CUDA_SUCCESS;
}
CUresult alloc_async(CUdeviceptr* out, size_t bytes, CUstream stream) {
  if (card().capturing) {
    *out = 0x5000;
    return CUDA_SUCCESS;
  }
  return from_pool(out, bytes, reinterpret_cast<CUmemoryPool>(0x99), stream);
}
CUresult free_async(CUdeviceptr address, CUstream) {
  TestCard& c = card();
  Lock lock(c.mutex);
  auto pool = c.pool_of_address.find(address);
  if (pool == c.pool_of_address.end()) return CUDA_ERROR_INVALID_VALUE;
  c.pools[pool->second].used -= c.ranges[address].bytes;
  c.ranges.erase(address);
  c.pool_of_address.erase(pool);
  return CUDA_SUCCESS;
}
CUresult pool_trim(CUmemoryPool pool, size_t keep) {
  TestCard& c = card();
  Lock lock(c.mutex);
  TestCard::TestPool& p = c.pools[reinterpret_cast<uint64_t>(pool)];
  const uint64_t wanted = std::max<uint64_t>(up(p.used, c.pool_granule), up(keep, c.pool_granule));
  if (wanted < p.reserved) {
    c.give(p.reserved - wanted);
    p.reserved = wanted;
  }
  return CUDA_SUCCESS;
}
CUresult pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* out) {
  TestCard& c = card();
  Lock lock(c.mutex);
  const TestCard::TestPool& p = c.pools[reinterpret_cast<uint64_t>(pool)];
  *static_cast<cuuint64_t*>(out) = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? p.reserved : p.used;
  return CUDA_SUCCESS;
}
CUresult is_capturing(CUstream, CUstreamCaptureStatus* out) {
  *out = card().capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

// One graph with one allocation node of graph_nodes_bytes.
CUresult graph_nodes(CUgraph, CUgraphNode* nodes, size_t* count) {
  *count = card().graph_nodes_bytes != 0 ? 1 : 0;
  if (nodes != nullptr && *count == 1) nodes[0] = reinterpret_cast<CUgraphNode>(0x77);
  return CUDA_SUCCESS;
}
CUresult node_type(CUgraphNode, CUgraphNodeType* out) {
  *out = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  return CUDA_SUCCESS;
}
CUresult alloc_node_params(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  out->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  out->bytesize = card().graph_nodes_bytes;
  return CUDA_SUCCESS;
}
CUresult instantiate(CUgraphExec* out, CUgraph, unsigned long long) {
  *out = reinterpret_cast<CUgraphExec>(0x4444);
  return CUDA_SUCCESS;
}
CUresult graph_upload(CUgraphExec, CUstream) {
  TestCard& c = card();
  if (c.graph_reserved < c.graph_nodes_bytes) {
    if (!c.take(c.graph_nodes_bytes - c.graph_reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
    c.graph_reserved = c.graph_nodes_bytes;
  }
  return CUDA_SUCCESS;
}
CUresult graph_attribute(CUdevice, CUgraphMem_attribute attribute, void* out) {
  *static_cast<cuuint64_t*>(out) =
      attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? card().graph_reserved : card().graph_used;
  return CUDA_SUCCESS;
}
CUresult graph_trim(CUdevice) {
  card().give(card().graph_reserved - card().graph_used);
  card().graph_reserved = card().graph_used;
  return CUDA_SUCCESS;
}

nvmlReturn_t nvml_init() {
  return NVML_SUCCESS;
}
nvmlReturn_t nvml_by_uuid(const char*, nvmlDevice_t* out) {
  *out = reinterpret_cast<nvmlDevice_t>(0x31);
  return NVML_SUCCESS;
}
nvmlReturn_t nvml_processes(nvmlDevice_t, unsigned int* count, nvmlProcessInfo_t* out) {
  const unsigned int room = *count;
  *count = 2;
  if (room < 2) return NVML_ERROR_INSUFFICIENT_SIZE;
  out[0] = {1, 7ull << 30, ~0u, ~0u};  // somebody else
  out[1] = {card().nvml_lists_us ? static_cast<unsigned int>(::getpid()) : 2u,
            card().shared->by_process[card().process_index].load(), ~0u, ~0u};
  return NVML_SUCCESS;
}
nvmlReturn_t nvml_uuid(nvmlDevice_t, char* out, unsigned int) {
  std::strcpy(out, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10");
  return NVML_SUCCESS;
}
nvmlReturn_t nvml_count(unsigned int* out) {
  *out = 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvml_by_index(unsigned int index, nvmlDevice_t* out) {
  *out = reinterpret_cast<nvmlDevice_t>(0x31);
  return index == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
nvmlReturn_t nvml_memory(nvmlDevice_t, nvmlMemory_t* out) {
  *out = {32ull << 30, 31ull << 30, 1ull << 30};
  return NVML_SUCCESS;
}
nvmlReturn_t nvml_memory_v2(nvmlDevice_t, nvmlMemory_v2_t* out) {
  out->total = 32ull << 30;
  out->used = 1ull << 30;
  out->free = 31ull << 30;
  out->reserved = 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvml_utilisation(nvmlDevice_t, nvmlUtilization_t* out) {
  *out = {91, 50};
  return NVML_SUCCESS;
}

CUresult proc_address_v2(const char* name, void** out, int version, cuuint64_t, CUdriverProcAddressQueryResult*) {
  const bool old = version < 3020;
  std::string symbol = name;
  for (const char* suffixed : {"cuMemAlloc", "cuMemFree", "cuCtxCreate", "cuMemGetInfo"}) {
    if (symbol == suffixed && !old) symbol += "_v2";
  }
  *out = card().symbol(symbol.c_str());
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

template <typename Function>
void* as_pointer(Function* function) {
  return reinterpret_cast<void*>(function);
}

const std::unordered_map<std::string, void*>& table() {
  static const std::unordered_map<std::string, void*> functions = {
      {"cuInit", as_pointer(initialise)},
      {"cuGetProcAddress_v2", as_pointer(proc_address_v2)},
      {"cuDeviceGetCount", as_pointer(device_count)},
      {"cuDeviceGet", as_pointer(device_get)},
      {"cuDeviceGetUuid", as_pointer(device_uuid)},
      {"cuDeviceGetAttribute", as_pointer(device_attribute)},
      {"cuDeviceTotalMem_v2", as_pointer(total_memory)},
      {"cuMemGetInfo_v2", as_pointer(memory_info)},
      {"cuCtxGetDevice", as_pointer(get_device)},
      {"cuCtxGetCurrent", as_pointer(get_current)},
      {"cuCtxSetCurrent", as_pointer(set_current)},
      {"cuCtxCreate_v2", as_pointer(context_create)},
      {"cuCtxDestroy_v2", as_pointer(context_destroy)},
      {"cuDevicePrimaryCtxRetain", as_pointer(primary_retain)},
      {"cuDevicePrimaryCtxRelease_v2", as_pointer(primary_release)},
      {"cuCtxGetLimit", as_pointer(get_limit)},
      {"cuCtxSetLimit", as_pointer(set_limit)},
      {"cuModuleLoadData", as_pointer(module_load)},
      {"cuModuleUnload", as_pointer(module_unload)},
      {"cuMemAlloc_v2", as_pointer(allocate)},
      {"cuMemAllocPitch_v2", as_pointer(pitch)},
      {"cuMemAllocManaged", as_pointer(managed)},
      {"cuMemFree_v2", as_pointer(release)},
      {"cuArrayCreate_v2", as_pointer(array_create)},
      {"cuArrayDestroy", as_pointer(array_destroy)},
      {"cuMemCreate", as_pointer(physical_create)},
      {"cuMemRelease", as_pointer(physical_release)},
      {"cuMemMap", as_pointer(physical_map)},
      {"cuMemUnmap", as_pointer(physical_unmap)},
      {"cuMemRetainAllocationHandle", as_pointer(physical_retain)},
      {"cuDeviceGetMemPool", as_pointer(default_pool)},
      {"cuDeviceGetDefaultMemPool", as_pointer(default_pool)},
      {"cuMemPoolCreate", as_pointer(pool_create)},
      {"cuMemAllocAsync", as_pointer(alloc_async)},
      {"cuMemAllocFromPoolAsync", as_pointer(from_pool)},
      {"cuMemFreeAsync", as_pointer(free_async)},
      {"cuMemPoolTrimTo", as_pointer(pool_trim)},
      {"cuMemPoolGetAttribute", as_pointer(pool_attribute)},
      {"cuStreamIsCapturing", as_pointer(is_capturing)},
      {"cuGraphGetNodes", as_pointer(graph_nodes)},
      {"cuGraphNodeGetType", as_pointer(node_type)},
      {"cuGraphMemAllocNodeGetParams", as_pointer(alloc_node_params)},
      {"cuGraphInstantiateWithFlags", as_pointer(instantiate)},
      {"cuGraphUpload", as_pointer(graph_upload)},
      {"cuDeviceGetGraphMemAttribute", as_pointer(graph_attribute)},
      {"cuDeviceGraphMemTrim", as_pointer(graph_trim)},
      {"nvmlInit_v2", as_pointer(nvml_init)},
      {"nvmlDeviceGetHandleByUUID", as_pointer(nvml_by_uuid)},
      {"nvmlDeviceGetUUID", as_pointer(nvml_uuid)},
      {"nvmlDeviceGetCount_v2", as_pointer(nvml_count)},
      {"nvmlDeviceGetHandleByIndex_v2", as_pointer(nvml_by_index)},
      {"nvmlDeviceGetMemoryInfo", as_pointer(nvml_memory)},
      {"nvmlDeviceGetMemoryInfo_v2", as_pointer(nvml_memory_v2)},
      {"nvmlDeviceGetUtilizationRates", as_pointer(nvml_utilisation)},
      {"nvmlDeviceGetComputeRunningProcesses_v3", as_pointer(nvml_processes)},
  };
  return functions;
}

}  // namespace

void* TestCard::symbol(const char* name) {
  if (std::find(missing.begin(), missing.end(), name) != missing.end()) return nullptr;
  auto entry = table().find(name);
  return entry == table().end() ? nullptr : entry->second;
}

}  // namespace sluice::guest
