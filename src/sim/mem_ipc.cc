// Memory that crosses processes by a name: IPC handles of plain allocations, and external memory (descriptors that
// another interface exported; here: those of cuMemExportToShareableHandle).

#include <cstring>

#include "sim/mem_state.h"

namespace sluice::sim {
namespace {

External* find_external(Call& call, CUexternalMemory handle) {
  return memory_state(call.process).externals.find(reinterpret_cast<void*>(handle));
}

}  // namespace

void close_imported(Process& process, uint64_t address) {
  MemoryState& state = memory_state(process);
  const auto at = state.imported.find(address);
  Physical& physical = *at->second;
  Memory& memory = *process.device(physical.card)->memory;
  memory.unmap(address, physical.bytes);
  memory.unreserve(address, round_up_to(physical.bytes, kMemBlock));
  physical.handles = 0;
  drop_physical(process, physical);
  state.imported.erase(at);
}

}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  SIM_ENTER(cuIpcGetMemHandle, kContext);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Mapping mapping;
  Memory* memory = memory_of(call.process, address, &mapping);
  // Pool, VMM, host and managed memory have ways of their own.
  const bool plain = memory != nullptr && mapping.block != kNone && mapping.context != nullptr && !mapping.managed;
  if (!plain || mapping.owner_serial != call.process.device(mapping.card)->serial) return CUDA_ERROR_INVALID_VALUE;
  const MemoryTicket ticket = make_ticket(call.process, mapping.card, mapping.block, mapping.owner_serial,
                                          mapping.contents_offset, mapping.bytes);
  std::memset(out, 0, sizeof *out);
  std::memcpy(out->reserved, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

CUresult sim_cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  SIM_ENTER(cuIpcOpenMemHandle_v2, kContext, Charge::kAllocate);
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  MemoryTicket ticket;
  std::memcpy(&ticket, handle.reserved, sizeof ticket);
  const MemoryLock lock(call.process);
  auto physical = redeem_ticket(call.process, ticket);
  if (physical == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Device& device = *call.process.device(physical->card);
  CUresult result = ticket.owner_serial == device.serial ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  const uint64_t size = round_up_to(physical->bytes, kMemBlock);
  uint64_t address = 0;
  if (result == CUDA_SUCCESS) {
    address = device.memory->reserve(size, kMemBlock, 0);
    if (address == 0 || !map_physical(call.process, *physical, address, physical->bytes, 0,
                                      reinterpret_cast<CUcontext>(call.context), true)) {
      result = CUDA_ERROR_MAP_FAILED;
    }
  }
  if (result != CUDA_SUCCESS) {
    physical->handles = 0;
    drop_physical(call.process, *physical);
    return result;
  }
  memory_state(call.process).imported[address] = physical;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult sim_cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  return sim_cuIpcOpenMemHandle_v2(out, handle, flags);
}

CUresult sim_cuIpcCloseMemHandle(CUdeviceptr address) {
  SIM_ENTER(cuIpcCloseMemHandle, kContext);
  const MemoryLock lock(call.process);
  const MemoryState& state = memory_state(call.process);
  if (state.imported.count(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  close_imported(call.process, address);
  return CUDA_SUCCESS;
}

CUresult sim_cuImportExternalMemory(CUexternalMemory* out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  SIM_ENTER(cuImportExternalMemory, kContext, Charge::kAllocate);
  if (out == nullptr || description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  MemoryTicket ticket;
  CUmemAllocationProp properties;
  if (!read_descriptor(description->handle.fd, &ticket, &properties)) return CUDA_ERROR_INVALID_HANDLE;
  const MemoryLock lock(call.process);
  auto memory = redeem_ticket(call.process, ticket);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  External* external = description->size <= memory->bytes ? memory_state(call.process).externals.make() : nullptr;
  if (external == nullptr) {
    memory->handles = 0;
    drop_physical(call.process, *memory);
    return CUDA_ERROR_INVALID_VALUE;
  }
  external->card = memory->card;
  external->memory = std::move(memory);
  *out = reinterpret_cast<CUexternalMemory>(external);
  return CUDA_SUCCESS;
}

CUresult sim_cuExternalMemoryGetMappedBuffer(CUdeviceptr* out, CUexternalMemory handle,
                                             const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* description) {
  SIM_ENTER(cuExternalMemoryGetMappedBuffer, kContext);
  if (out == nullptr || description == nullptr || description->flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(call.process);
  External* external = find_external(call, handle);
  if (external == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t bytes = description->size;
  if (bytes == 0 || description->offset + bytes > external->memory->bytes) return CUDA_ERROR_INVALID_VALUE;
  Memory& memory = *call.process.device(external->card)->memory;
  const uint64_t address = memory.reserve(round_up_to(bytes, kMemBlock), kMemBlock, 0);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!map_physical(call.process, *external->memory, address, bytes, description->offset,
                    reinterpret_cast<CUcontext>(call.context), true)) {
    return CUDA_ERROR_MAP_FAILED;
  }
  external->mapped.push_back(address);
  *out = address;
  return CUDA_SUCCESS;
}

CUresult sim_cuDestroyExternalMemory(CUexternalMemory handle) {
  SIM_ENTER(cuDestroyExternalMemory, kContext);
  const MemoryLock lock(call.process);
  External* external = find_external(call, handle);
  if (external == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Memory& memory = *call.process.device(external->card)->memory;
  for (const uint64_t address : external->mapped) {
    Mapping mapping;
    if (!memory.find(address, &mapping) || mapping.address != address) continue;
    memory.unmap(address, mapping.bytes);
    memory.unreserve(address, round_up_to(mapping.bytes, kMemBlock));
  }
  external->memory->handles = 0;
  drop_physical(call.process, *external->memory);
  memory_state(call.process).externals.free(external);
  return CUDA_SUCCESS;
}

}  // extern "C"
