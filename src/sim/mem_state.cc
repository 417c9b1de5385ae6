#include "sim/mem_state.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "sim/engine.h"
#include "sim/mem_pool.h"

namespace sluice::sim {
namespace {

constexpr char kMagicText[8] = {'S', 'l', 'u', 'i', 'c', 'e', 'M', '1'};

}  // namespace

MemoryState& memory_state(Process& process) {
  static std::mutex creation;
  const std::lock_guard guard(creation);
  if (process.memory_state == nullptr) process.memory_state = std::make_shared<MemoryState>();
  return *static_cast<MemoryState*>(process.memory_state.get());
}

std::shared_ptr<Physical> make_physical(Process& process, int ordinal, uint64_t bytes, BlockKind kind) {
  if (process.attach(ordinal) != CUDA_SUCCESS) return nullptr;
  Device& device = *process.device(ordinal);
  auto memory = std::make_shared<Physical>();
  memory->card = ordinal;
  memory->bytes = round_up_to(bytes, kMemBlock);
  memory->owner_serial = device.serial;
  memory->contents_offset = device.memory->reserve_contents(memory->bytes);
  if (memory->contents_offset == 0) return nullptr;
  memory->own_contents = true;
  Card& card = *device.card;
  {
    Card::Guard guard(card);
    advance(card, card.card_time(process.host().now_ns()));
    memory->block = card.allocate_block(device.record, kNone, memory->bytes, kind);
  }
  if (memory->block != kNone) return memory;
  device.memory->release_contents(memory->contents_offset, memory->bytes);
  return nullptr;
}

void drop_physical(Process& process, Physical& memory) {
  if (memory.handles != 0 || memory.mappings != 0) return;
  Device& device = *process.device(memory.card);
  if (memory.host != nullptr) munmap(memory.host, memory.bytes);
  memory.host = nullptr;
  if (memory.block != kNone) {
    Card& card = *device.card;
    Card::Guard guard(card);
    advance(card, card.card_time(process.host().now_ns()));
    card.release_block(memory.block);
  }
  memory.block = kNone;
  if (memory.own_contents) device.memory->release_contents(memory.contents_offset, memory.bytes);
  memory.own_contents = false;
}

bool map_physical(Process& process, const Physical& memory, uint64_t address, uint64_t bytes, uint64_t offset,
                  CUcontext context, bool accessible) {
  Mapping mapping;
  mapping.address = mapping.allocation = address;
  mapping.bytes = mapping.allocation_bytes = bytes;
  mapping.block = memory.block;
  mapping.owner_serial = memory.owner_serial;
  mapping.contents_offset = memory.contents_offset + offset;
  if (memory.host != nullptr) mapping.host = static_cast<char*>(memory.host) + offset;
  mapping.context = context;
  mapping.readable = mapping.writable = accessible;
  return process.device(memory.card)->memory->map(mapping);
}

MemoryTicket make_ticket(Process& process, int ordinal, Index block, uint32_t owner_serial, uint64_t contents_offset,
                         uint64_t bytes) {
  MemoryTicket ticket{};
  Card& card = *process.device(ordinal)->card;
  std::memcpy(ticket.magic, kMagicText, sizeof ticket.magic);
  std::memcpy(ticket.uuid, card.file().uuid_bytes, sizeof ticket.uuid);
  ticket.exporter_pid = process.pid();
  ticket.block = block;
  ticket.owner_serial = owner_serial;
  ticket.bytes = bytes;
  ticket.contents_offset = contents_offset;
  Card::Guard guard(card);
  ticket.block_serial = card.block(block).serial;
  return ticket;
}

std::shared_ptr<Physical> redeem_ticket(Process& process, const MemoryTicket& ticket) {
  if (std::memcmp(ticket.magic, kMagicText, sizeof ticket.magic) != 0) return nullptr;
  for (int i = 0; i < process.device_count(); ++i) {
    Device& device = *process.device(i);
    Card& card = *device.card;
    if (std::memcmp(card.file().uuid_bytes, ticket.uuid, sizeof ticket.uuid) != 0) continue;
    if (process.attach(i) != CUDA_SUCCESS) return nullptr;
    Card::Guard guard(card);
    advance(card, card.card_time(process.host().now_ns()));
    if (ticket.block == kNone || ticket.block > card.header().tables.blocks.high) return nullptr;
    const BlockRecord& named = card.block(ticket.block);
    if (named.state != LiveState::kLive || named.serial != ticket.block_serial) return nullptr;
    // What was imported may be exported again.
    const Index shared = named.target != kNone ? named.target : ticket.block;
    if (card.block(shared).bytes < ticket.bytes) return nullptr;
    const Index block = card.alias_block(device.record, shared);
    if (block == kNone) return nullptr;
    auto memory = std::make_shared<Physical>();
    memory->card = i;
    memory->block = block;
    memory->bytes = ticket.bytes;
    memory->owner_serial = ticket.owner_serial;
    memory->contents_offset = ticket.contents_offset;
    return memory;
  }
  return nullptr;
}

int export_descriptor(const MemoryTicket& ticket, const CUmemAllocationProp& properties) {
  const int fd = memfd_create("sluice-sim-memory", MFD_CLOEXEC);
  if (fd < 0) return -1;
  char content[sizeof ticket + sizeof properties];
  std::memcpy(content, &ticket, sizeof ticket);
  std::memcpy(content + sizeof ticket, &properties, sizeof properties);
  if (pwrite(fd, content, sizeof content, 0) == static_cast<ssize_t>(sizeof content)) return fd;
  close(fd);
  return -1;
}

bool read_descriptor(int fd, MemoryTicket* ticket, CUmemAllocationProp* properties) {
  char content[sizeof *ticket + sizeof *properties];
  if (pread(fd, content, sizeof content, 0) != static_cast<ssize_t>(sizeof content)) return false;
  std::memcpy(ticket, content, sizeof *ticket);
  std::memcpy(properties, content + sizeof *ticket, sizeof *properties);
  return std::memcmp(ticket->magic, kMagicText, sizeof ticket->magic) == 0;
}

}  // namespace sluice::sim
