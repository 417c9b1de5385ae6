#include "sim/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "sim/process.h"

namespace sluice::sim {

namespace {

constexpr uint64_t kBlock = 2 << 20;
constexpr uint64_t kSmall = 1 << 20;     // up to this, allocations share blocks
constexpr uint64_t kUnit = 512;          // alignment of allocations
constexpr uint64_t kGranule = 64 << 10;  // contents are kept in pieces of this
constexpr uint64_t kRangePerCard = 4;    // addresses, in sizes of the card

uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

// First fit in a map of free ranges; 0 bytes never fit. UINT64_MAX when nothing does.
uint64_t take(std::map<uint64_t, uint64_t>& ranges, uint64_t bytes, uint64_t alignment, uint64_t wanted) {
  for (auto at = ranges.begin(); at != ranges.end(); ++at) {
    const auto [start, size] = *at;
    uint64_t from = round_up(start, alignment);
    if (wanted != 0 && wanted >= start && wanted + bytes <= start + size) from = wanted;
    if (from + bytes > start + size || from + bytes < from) continue;
    if (wanted != 0 && from != wanted) continue;
    ranges.erase(at);
    if (from > start) ranges[start] = from - start;
    if (from + bytes < start + size) ranges[from + bytes] = start + size - from - bytes;
    return from;
  }
  return wanted != 0 ? take(ranges, bytes, alignment, 0) : UINT64_MAX;
}

void give(std::map<uint64_t, uint64_t>& ranges, uint64_t start, uint64_t bytes) {
  auto next = ranges.lower_bound(start);
  if (next != ranges.end() && next->first == start + bytes) {
    bytes += next->second;
    next = ranges.erase(next);
  }
  if (next != ranges.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == start) {
      before->second += bytes;
      return;
    }
  }
  ranges[start] = bytes;
}

}  // namespace

// A contents file, mapped whole; only touched pages take space.
struct Memory::File {
  int fd = -1;
  char* bytes = nullptr;
  uint64_t length = 0;
  bool own = false;
  std::vector<uint64_t> kept;  // bitmap of granules with contents, of the own file
  ~File() {
    if (bytes != nullptr) munmap(bytes, length);
    if (fd >= 0) close(fd);
  }
};

// A block that small allocations share.
struct Memory::Chunk {
  CUcontext context = nullptr;
  uint64_t address = 0;
  Index block = kNone;
  uint64_t used = 0;
  std::map<uint64_t, uint64_t> free;
};

Memory::Memory(Process& process, int card) : process_(process), card_(card) {}

Memory::~Memory() {
  files_.clear();
  if (base_ != 0) munmap(reinterpret_cast<void*>(base_), range_);
}

// Address space is taken with the first allocation: some processes only look at cards.
bool Memory::open_range() {
  if (base_ != 0) return true;
  range_ = round_up(process_.device(card_)->card->capacity_bytes() * kRangePerCard, kBlock);
  void* at = mmap(nullptr, range_ + kBlock, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  const uint64_t start = reinterpret_cast<uint64_t>(at);
  base_ = round_up(start, kBlock);
  if (base_ > start) munmap(at, base_ - start);
  munmap(reinterpret_cast<void*>(base_ + range_), kBlock - (base_ - start));
  free_addresses_[base_] = range_;
  // The file's first half belongs to addresses one to one; the second is for memory that has no address of its own.
  free_contents_[range_] = range_;
  return true;
}

uint64_t Memory::reserve(uint64_t bytes, uint64_t alignment, uint64_t wanted) {
  const std::lock_guard guard(lock_);
  if (!open_range() || bytes == 0 || bytes > range_) return 0;
  const uint64_t at = take(free_addresses_, round_up(bytes, kUnit), alignment == 0 ? kBlock : alignment, wanted);
  return at == UINT64_MAX ? 0 : at;
}

void Memory::unreserve(uint64_t address, uint64_t bytes) {
  const std::lock_guard guard(lock_);
  give(free_addresses_, address, round_up(bytes, kUnit));
}

uint64_t Memory::reserve_contents(uint64_t bytes) {
  const std::lock_guard guard(lock_);
  if (!open_range()) return 0;
  const uint64_t at = take(free_contents_, round_up(bytes, kGranule), kGranule, 0);
  return at == UINT64_MAX ? 0 : at;
}

void Memory::release_contents(uint64_t offset, uint64_t bytes) {
  const std::lock_guard guard(lock_);
  drop_contents(offset, bytes);
  if (offset >= range_) give(free_contents_, offset, round_up(bytes, kGranule));
}

bool Memory::map(const Mapping& mapping) {
  const std::lock_guard guard(lock_);
  if (mapping.bytes == 0) return false;
  const auto next = mappings_.lower_bound(mapping.address);
  if (next != mappings_.end() && next->first < mapping.address + mapping.bytes) return false;
  if (next != mappings_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes > mapping.address) return false;
  }
  Mapping& made = mappings_[mapping.address] = mapping;
  made.card = card_;
  if (made.buffer_id == 0) made.buffer_id = static_cast<uint64_t>(card_ + 1) << 40 | next_buffer_id_++;
  return true;
}

bool Memory::unmap(uint64_t address, uint64_t bytes) {
  const std::lock_guard guard(lock_);
  const auto at = mappings_.find(address);
  if (at == mappings_.end() || at->second.bytes != bytes) return false;
  mappings_.erase(at);
  return true;
}

bool Memory::find(uint64_t address, Mapping* out) {
  const std::lock_guard guard(lock_);
  auto at = mappings_.upper_bound(address);
  if (at == mappings_.begin()) return false;
  --at;
  if (address >= at->first + at->second.bytes) return false;
  *out = at->second;
  return true;
}

std::vector<Mapping> Memory::managed_of(const void* context) {
  const std::lock_guard guard(lock_);
  std::vector<Mapping> found;
  for (const auto& [address, m] : mappings_) {
    if (m.managed && static_cast<const void*>(m.context) == context) found.push_back(m);
  }
  return found;
}

uint64_t Memory::mappings() {
  const std::lock_guard guard(lock_);
  return mappings_.size();
}

CUresult Memory::allocate_block(Index context_record, uint64_t bytes, BlockKind kind, Index* block) {
  Device& device = *process_.device(card_);
  Card& card = *device.card;
  Card::Guard guard(card);
  advance(card, card.card_time(process_.host().now_ns()));
  *block = card.allocate_block(device.record, context_record, bytes, kind);
  return *block == kNone ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult Memory::allocate(CUcontext context, Index context_record, uint64_t bytes, BlockKind kind,
                          CUdeviceptr* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard guard(lock_);
  if (!open_range()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes <= kSmall) return allocate_small(context, context_record, bytes, kind, address);
  Index block = kNone;
  if (const CUresult result = allocate_block(context_record, bytes, kind, &block); result != CUDA_SUCCESS)
    return result;
  const uint64_t at = reserve(round_up(bytes, kBlock), kBlock, 0);
  if (at == 0) {
    Card::Guard card_guard(*process_.device(card_)->card);
    process_.device(card_)->card->release_block(block);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Mapping m;
  m.address = m.allocation = at;
  m.bytes = m.allocation_bytes = bytes;
  m.block = block;
  m.owner_serial = process_.device(card_)->serial;
  m.contents_offset = at - base_;
  m.context = context;
  map(m);
  *address = at;
  return CUDA_SUCCESS;
}

CUresult Memory::allocate_small(CUcontext context, Index context_record, uint64_t bytes, BlockKind kind,
                                CUdeviceptr* out) {
  const uint64_t size = round_up(bytes, kUnit);
  uint64_t at = UINT64_MAX;
  Chunk* chunk = roomy_[context];
  if (chunk != nullptr) at = take(chunk->free, size, kUnit, 0);
  for (auto i = chunks_.begin(); at == UINT64_MAX && i != chunks_.end(); ++i) {
    chunk = i->second.get();
    if (chunk->context != context || chunk->used + size > kBlock) continue;
    at = take(chunk->free, size, kUnit, 0);
  }
  if (at == UINT64_MAX) {
    Index block = kNone;
    if (const CUresult result = allocate_block(context_record, kBlock, kind, &block); result != CUDA_SUCCESS)
      return result;
    const uint64_t address = reserve(kBlock, kBlock, 0);
    if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    auto made = std::make_unique<Chunk>();
    made->context = context;
    made->address = address;
    made->block = block;
    made->free[address] = kBlock;
    chunk = made.get();
    chunks_[address] = std::move(made);
    at = take(chunk->free, size, kUnit, 0);
  }
  chunk->used += size;
  roomy_[context] = chunk;
  Mapping m;
  m.address = m.allocation = at;
  m.bytes = m.allocation_bytes = bytes;
  m.block = chunk->block;
  m.owner_serial = process_.device(card_)->serial;
  m.contents_offset = at - base_;
  m.context = context;
  map(m);
  *out = at;
  return CUDA_SUCCESS;
}

void Memory::free_small(Chunk& chunk, uint64_t address, uint64_t bytes) {
  const uint64_t size = round_up(bytes, kUnit);
  give(chunk.free, address, size);
  chunk.used -= size;
  if (chunk.used != 0) return;
  {
    Card& card = *process_.device(card_)->card;
    Card::Guard guard(card);
    advance(card, card.card_time(process_.host().now_ns()));
    card.release_block(chunk.block);
  }
  drop_contents(chunk.address - base_, kBlock);
  if (roomy_[chunk.context] == &chunk) roomy_.erase(chunk.context);
  give(free_addresses_, chunk.address, kBlock);
  chunks_.erase(chunk.address);
}

CUresult Memory::free(CUdeviceptr address) {
  const std::lock_guard guard(lock_);
  const auto at = mappings_.find(address);
  if (at == mappings_.end() || at->second.allocation != address || at->second.block == kNone || at->second.managed) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Mapping m = at->second;
  if (m.contents_offset != address - base_) return CUDA_ERROR_INVALID_VALUE;  // mapped by other means
  mappings_.erase(at);
  auto chunk = chunks_.upper_bound(address);
  if (chunk != chunks_.begin() && m.bytes <= kSmall) {
    --chunk;
    if (address < chunk->first + kBlock) {
      free_small(*chunk->second, address, m.bytes);
      return CUDA_SUCCESS;
    }
  }
  {
    Card& card = *process_.device(card_)->card;
    Card::Guard card_guard(card);
    advance(card, card.card_time(process_.host().now_ns()));
    card.release_block(m.block);
  }
  drop_contents(m.contents_offset, round_up(m.bytes, kBlock));
  give(free_addresses_, address, round_up(m.bytes, kBlock));
  return CUDA_SUCCESS;
}

void Memory::release_context(CUcontext context) {
  const std::lock_guard guard(lock_);
  std::vector<CUdeviceptr> mine;
  for (const auto& [address, m] : mappings_) {
    if (m.context == context && m.allocation == address && m.block != kNone) mine.push_back(address);
  }
  for (const CUdeviceptr address : mine) free(address);
}

Memory::File* Memory::file_of(uint32_t serial) {
  auto& file = files_[serial];
  if (file != nullptr) return file->bytes != nullptr ? file.get() : nullptr;
  file = std::make_unique<File>();
  Device& device = *process_.device(card_);
  file->own = serial == device.serial;
  const std::string path = device.card->contents_path(serial);
  file->fd = open(path.c_str(), O_RDWR | O_CLOEXEC | (file->own ? O_CREAT : 0), 0666);
  if (file->fd < 0) return nullptr;
  if (file->own) {
    fchmod(file->fd, 0666);
    if (ftruncate(file->fd, static_cast<off_t>(2 * range_)) != 0) return nullptr;
  }
  struct stat status{};
  if (fstat(file->fd, &status) != 0 || status.st_size == 0) return nullptr;
  file->length = static_cast<uint64_t>(status.st_size);
  void* at = mmap(nullptr, file->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file->fd, 0);
  if (at == MAP_FAILED) return nullptr;
  file->bytes = static_cast<char*>(at);
  return file.get();
}

bool Memory::keep_granule(File& file, uint64_t granule) {
  Device& device = *process_.device(card_);
  Card& card = *device.card;
  Card::Guard guard(card);
  if (card.header().contents_bytes + kGranule > card.knob_ns(Knob::contents_bytes)) return false;
  card.edit_header().contents_bytes += kGranule;
  card.edit(card.process(device.record)).contents_bytes += kGranule;
  if (file.kept.size() <= granule / 64) file.kept.resize(granule / 64 + 1);
  file.kept[granule / 64] |= uint64_t{1} << granule % 64;
  return true;
}

// The longest start of the range that is kept, or not kept, throughout.
uint64_t Memory::kept_prefix(File& file, uint64_t offset, uint64_t length, bool for_writing, bool* kept) {
  uint64_t done = 0;
  for (uint64_t granule = offset / kGranule; done < length; ++granule) {
    bool have = !file.own || (file.kept.size() > granule / 64 && (file.kept[granule / 64] >> granule % 64 & 1) != 0);
    if (!have && for_writing) have = keep_granule(file, granule);
    if (done == 0) *kept = have;
    if (have != *kept) break;
    done = std::min(length, (granule + 1) * kGranule - offset);
  }
  return done;
}

void Memory::drop_contents(uint64_t offset, uint64_t bytes) {
  Device& device = *process_.device(card_);
  const auto at = files_.find(device.serial);
  if (at == files_.end() || at->second->bytes == nullptr) return;
  File& file = *at->second;
  uint64_t dropped = 0;
  for (uint64_t g = offset / kGranule; g < (offset + bytes) / kGranule && g / 64 < file.kept.size(); ++g) {
    if ((file.kept[g / 64] >> g % 64 & 1) == 0) continue;
    file.kept[g / 64] &= ~(uint64_t{1} << g % 64);
    ++dropped;
  }
  if (dropped == 0) return;
  fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  Card::Guard guard(*device.card);
  device.card->edit_header().contents_bytes -= dropped * kGranule;
  device.card->edit(device.card->process(device.record)).contents_bytes -= dropped * kGranule;
}

bool Memory::spans(uint64_t address, uint64_t length, bool for_writing, std::vector<Span>* out) {
  const std::lock_guard guard(lock_);
  while (length > 0) {
    Mapping m;
    if (!find(address, &m)) return false;
    if (for_writing ? !m.writable : !m.readable) return false;
    const uint64_t inside = address - m.address;
    uint64_t part = std::min(length, m.bytes - inside);
    if (m.host != nullptr) {
      out->push_back({static_cast<char*>(m.host) + inside, part});
    } else {
      File* file = file_of(m.owner_serial);
      bool kept = false;
      if (file != nullptr) {
        part = kept_prefix(*file, m.contents_offset + inside, part, for_writing, &kept);
      }
      out->push_back({kept ? file->bytes + m.contents_offset + inside : nullptr, part});
    }
    address += part;
    length -= part;
  }
  return true;
}

Memory* memory_of(Process& process, uint64_t address, Mapping* mapping) {
  for (int i = 0; i < process.device_count(); ++i) {
    Memory* memory = process.device(i)->memory.get();
    if (memory->find(address, mapping)) return memory;
  }
  return nullptr;
}

}  // namespace sluice::sim
