#include "guest/share.h"

#include "guest/booking.h"
#include "guest/sys.h"

namespace sluice::guest {

namespace {

constexpr uint64_t kMostLocks = 8192;  // exports and claims of one process
constexpr uint32_t kAtOnce = 32;

// Under share_lock. The lock at `byte` for one holder more and at least `units` long.
bool hold(Guest* guest, uint64_t byte, uint64_t units) {
  Memory& memory = guest->memory;
  if (memory.share_locks.find(byte) == nullptr) {
    if (memory.share_locks.size() >= kMostLocks || memory.share_locks.insert(byte, ShareLock{}) == nullptr)
      return false;
    memory.shares.fetch_add(1, std::memory_order_relaxed);
  }
  ShareLock* lock = memory.share_locks.find(byte);
  ++lock->holds;
  if (units <= lock->units) return true;
  if (!guest->seams.identity->hold_shared(byte + lock->units, units - lock->units)) return false;
  lock->units = units;
  return true;
}

// Under share_lock. One holder less.
void leave(Guest* guest, uint64_t byte) {
  Memory& memory = guest->memory;
  ShareLock* lock = memory.share_locks.find(byte);
  if (lock == nullptr || --lock->holds != 0) return;
  if (lock->units != 0) guest->seams.identity->leave_shared(byte, lock->units);
  memory.share_locks.erase(byte);
  memory.shares.fetch_sub(1, std::memory_order_relaxed);
}

bool nothing_shared(Guest* guest) {
  return guest->memory.shares.load(std::memory_order_relaxed) == 0;
}

}  // namespace

uint64_t name_of_bytes(const void* bytes, uint64_t count) {
  uint64_t name = 0x9e3779b97f4a7c15ull;
  for (uint64_t at = 0; at + sizeof(uint64_t) <= count; at += sizeof(uint64_t)) {
    uint64_t word;
    __builtin_memcpy(&word, static_cast<const char*>(bytes) + at, sizeof word);
    name = mix64(name ^ mix64(word + at + 1));
  }
  return name | 1;
}

uint64_t name_of_file(int descriptor) {
  sys::FileId file;
  if (!sys::file_id(descriptor, file) || !file.regular) return 0;
  const uint64_t words[2] = {file.device, file.inode};
  return name_of_bytes(words, sizeof words);
}

void share_export(Guest* guest, uint32_t card, uint64_t key, uint64_t name, uint64_t bytes) {
  if (name == 0 || bytes == 0 || !booked(guest, card)) return;
  const uint64_t byte = page::share_byte(card, page::ShareSide::kExport, name);
  Memory& memory = guest->memory;
  SpinGuard guard(memory.share_lock, guest->seams.waiter);
  if (memory.share_locks.find(byte) != nullptr) return;  // the same name again
  if (!hold(guest, byte, page::share_units(bytes))) {
    leave(guest, byte);
    return;
  }
  uint64_t* first = memory.exported.insert(key, 0);
  if (first == nullptr) {
    leave(guest, byte);
    return;
  }
  memory.share_locks.find(byte)->next = *first;
  *first = byte;
}

uint64_t share_take(Guest* guest, uint64_t key) {
  if (nothing_shared(guest)) return 0;
  SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
  uint64_t first = 0;
  guest->memory.exported.erase(key, &first);
  return first;
}

void share_put_back(Guest* guest, uint64_t key, uint64_t exports) {
  if (exports == 0) return;
  SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
  guest->memory.exported.insert(key, exports);
}

void share_drop(Guest* guest, uint64_t exports) {
  if (exports == 0) return;
  SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
  while (exports != 0) {
    const ShareLock* lock = guest->memory.share_locks.find(exports);
    const uint64_t next = lock != nullptr ? lock->next : 0;
    leave(guest, exports);
    exports = next;
  }
}

CUresult raise_claim(Guest* guest, const Claim& claim, uint64_t bytes) {
  if (claim.byte == 0) return CUDA_SUCCESS;
  const uint64_t units = page::share_units(bytes);
  {
    SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
    ShareLock* lock = guest->memory.share_locks.find(claim.byte);
    if (lock == nullptr || units <= lock->units) return CUDA_SUCCESS;
    if (!guest->seams.identity->hold_shared(claim.byte + lock->units, units - lock->units)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    lock->units = units;
  }
  Ledger ledger = ledger_of(guest, claim.card);
  const uint64_t limit = guest->cards[claim.card].grant->memory_limit_bytes.load(std::memory_order_relaxed);
  const uint64_t name = (claim.byte / page::kShareNameUnits) & ((1ull << page::kShareNameBits) - 1);
  if (limit == 0 || ledger.exported_bytes(name) >= units * page::kShareUnitBytes) return CUDA_SUCCESS;
  if (ledger.charged_bytes() <= limit) return CUDA_SUCCESS;
  guest->cards[claim.card].usage->account.refused_allocations.fetch_add(1, std::memory_order_relaxed);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult claim_bytes(Guest* guest, uint32_t card, uint64_t name, uint64_t bytes, Claim* claim) {
  *claim = Claim{};
  if (name == 0 || !booked(guest, card)) return CUDA_SUCCESS;
  if (claim_slot(guest, card) == kNoSlot) return CUDA_ERROR_OUT_OF_MEMORY;
  *claim = Claim{page::share_byte(card, page::ShareSide::kClaim, name), card};
  bool held = false;
  {
    SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
    held = hold(guest, claim->byte, 0);
  }
  if (held && raise_claim(guest, *claim, bytes) == CUDA_SUCCESS) return CUDA_SUCCESS;
  drop_claim(guest, *claim);
  *claim = Claim{};
  return CUDA_ERROR_OUT_OF_MEMORY;
}

Claim claim_export(Guest* guest, uint64_t name, bool* refused) {
  Claim claim;
  *refused = false;
  for (uint32_t card = 0; name != 0 && card < guest->card_count; ++card) {
    if (!booked(guest, card)) continue;
    if (claim_slot(guest, card) == kNoSlot) continue;
    const uint64_t bytes = ledger_of(guest, card).exported_bytes(name);
    if (bytes == 0) continue;
    *refused = claim_bytes(guest, card, name, bytes, &claim) != CUDA_SUCCESS;
    break;
  }
  return claim;
}

void drop_claim(Guest* guest, const Claim& claim) {
  if (claim.byte == 0) return;
  SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
  leave(guest, claim.byte);
}

bool book_import(Guest* guest, uint64_t key, const Claim& claim, CUcontext context) {
  if (claim.byte == 0) return true;
  SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
  Import* import = guest->memory.imports.insert(key, Import{claim.byte, claim.card, 0, context});
  if (import == nullptr) return false;
  ++import->opens;
  return true;
}

Claim unbook_import(Guest* guest, uint64_t key, CUcontext* context) {
  Claim claim;
  if (nothing_shared(guest)) return claim;
  SpinGuard guard(guest->memory.share_lock, guest->seams.waiter);
  Import* import = guest->memory.imports.find(key);
  if (import == nullptr) return claim;
  claim = Claim{import->claim, import->card};
  *context = import->context;
  if (--import->opens == 0) guest->memory.imports.erase(key);
  return claim;
}

void share_forget_context(Guest* guest, uint32_t card, CUcontext context) {
  Memory& memory = guest->memory;
  for (uint32_t count = kAtOnce; count == kAtOnce && !nothing_shared(guest);) {
    uint64_t keys[kAtOnce];
    count = 0;
    {
      SpinGuard guard(memory.lock, guest->seams.waiter);
      SpinGuard shared(memory.share_lock, guest->seams.waiter);
      memory.exported.for_each([&](uint64_t key, uint64_t) {
        const Allocation* entry = memory.allocations.find(key);
        if (entry != nullptr && entry->context == context && entry->card == card && count < kAtOnce)
          keys[count++] = key;
      });
    }
    for (uint32_t i = 0; i < count; ++i) share_drop(guest, share_take(guest, keys[i]));
  }
  for (uint32_t count = kAtOnce; count == kAtOnce && !nothing_shared(guest);) {
    Import gone[kAtOnce];
    count = 0;
    SpinGuard guard(memory.share_lock, guest->seams.waiter);
    memory.imports.erase_if([&](uint64_t, const Import& import) {
      if (import.context != context || import.card != card || count == kAtOnce) return false;
      gone[count++] = import;
      return true;
    });
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t opening = 0; opening < gone[i].opens; ++opening) leave(guest, gone[i].claim);
    }
  }
}

}  // namespace sluice::guest
