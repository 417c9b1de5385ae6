// Contexts and their limits: the larger part of what a process costs the card besides its allocations (the rest is
// code, hooks_code.cc). A context is charged an estimate from the grant before it is made, measured right after, and
// refused when it cannot fit.
#include "guest/booking.h"
#include "guest/hooks.h"
#include "guest/notify.h"
#include "guest/share.h"

namespace sluice::guest {

namespace {

uint64_t context_key(CUcontext context) {
  return reinterpret_cast<uint64_t>(context);
}

void tell_created(Guest* guest, uint32_t card, CUcontext context) {
  if (card != kNoCard) compute_context_created(guest, card, context);
}

void tell_destroying(Guest* guest, uint32_t card, CUcontext context) {
  if (card != kNoCard) compute_context_destroying(guest, card, context);
}

// Shows the agent how many contexts the slot's process has.
void show_contexts(Guest* guest, uint32_t card) {
  const uint32_t slot = card_slot(guest, card);
  if (slot == kNoSlot) return;
  guest->cards[card].usage->slots[slot].contexts.store(
      guest->memory.cards[card].contexts.load(std::memory_order_relaxed), std::memory_order_release);
}

// Turns `bytes`, reserved as an allocation, into overhead of a context that exists now.
void keep_as_overhead(Guest* guest, uint32_t card, uint64_t bytes) {
  CardMemory& memory = guest->memory.cards[card];
  memory.overhead_bytes.fetch_add(bytes, std::memory_order_acq_rel);
  memory.tracked_bytes.fetch_sub(bytes, std::memory_order_acq_rel);
  memory.contexts.fetch_add(1, std::memory_order_acq_rel);
  show_contexts(guest, card);
}

// The overhead of one context less. The last one takes all of it along, others a fair part until the next measurement.
void drop_overhead(Guest* guest, uint32_t card) {
  CardMemory& memory = guest->memory.cards[card];
  const uint32_t before = memory.contexts.load(std::memory_order_acquire);
  if (before == 0) return;
  memory.contexts.fetch_sub(1, std::memory_order_acq_rel);
  const uint64_t overhead = memory.overhead_bytes.load(std::memory_order_acquire);
  const uint64_t part = overhead / before;
  memory.overhead_bytes.fetch_sub(part, std::memory_order_acq_rel);
  const uint32_t slot = card_slot(guest, card);
  if (slot != kNoSlot) ledger_of(guest, card).give_back(slot, part);
  show_contexts(guest, card);
  if (before > 1) measure_overhead(guest, card, true);
}

// A device that the grant does not name has no context to give.
bool forbidden(Guest* guest, uint32_t card) {
  return card == kNoCard && learn_devices(guest);
}

template <typename Call>
CUresult create(Guest* guest, CUcontext* context, CUdevice device, Call&& call) {
  const uint32_t card = card_of_device(guest, device);
  if (forbidden(guest, card)) return CUDA_ERROR_INVALID_DEVICE;
  const bool book = booked(guest, card) && context != nullptr;
  const uint64_t estimate = book ? guest->cards[card].grant->context_estimate_bytes : 0;
  if (book) {
    if (CUresult refused = reserve_memory(guest, card, estimate)) return refused;
  }
  CUresult result;
  if (book) {
    Operation operation(guest, card);
    result = retry_while_full(guest, call);
  } else {
    result = call();
  }
  if (result != CUDA_SUCCESS) {
    if (book) give_back_memory(guest, card, estimate);
    return result;
  }
  if (book) {
    keep_as_overhead(guest, card, estimate);
    {
      SpinGuard guard(guest->memory.lock, guest->seams.waiter);
      guest->memory.contexts.insert(context_key(*context), Context{card, 0, {0, 0, 0}, 0});
    }
    measure_overhead(guest, card, true);
  }
  if (context != nullptr) tell_created(guest, card, *context);
  return result;
}

// Card of a context, from the book or, unbooked, by making it current for a moment.
uint32_t card_of_context(Guest* guest, CUcontext context) {
  if (context == nullptr) return kNoCard;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (Context* entry = guest->memory.contexts.find(context_key(context))) return entry->card;
  }
  if (current_context(guest) == context) return current_card(guest);
  if (guest->cuda.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return kNoCard;
  const uint32_t card = current_card(guest);
  CUcontext popped = nullptr;
  guest->cuda.cuCtxPopCurrent_v2(&popped);
  return card;
}

template <typename Call>
CUresult destroy(Guest* guest, CUcontext context, Call&& call) {
  const uint32_t card = card_of_context(guest, context);
  tell_destroying(guest, card, context);
  bool known = false;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    known = guest->memory.contexts.find(context_key(context)) != nullptr;
  }
  if (!known) return call();
  CUresult result;
  {
    Operation operation(guest, card);
    result = call();
  }
  if (result != CUDA_SUCCESS) return result;
  forget_context(guest, card, context);
  drop_overhead(guest, card);
  return result;
}

// The driver's count of retains decides when a primary context comes and goes; ours follows it.
template <typename Call>
CUresult release_primary(Guest* guest, CUdevice device, bool reset, Call&& call) {
  const uint32_t card = card_of_device(guest, device);
  if (card == kNoCard) return call();
  Memory& memory = guest->memory;
  CUcontext context = nullptr;
  bool ends = false;
  {
    SpinGuard guard(memory.lock, guest->seams.waiter);
    Primary& primary = memory.cards[card].primary;
    ends = primary.active != 0 && (reset || primary.retains == 1);
    context = primary.context;
  }
  if (ends) tell_destroying(guest, card, context);
  CUresult result;
  {
    Operation operation(guest, card);
    result = call();
  }
  if (result != CUDA_SUCCESS) return result;
  bool was_booked = false;
  {
    SpinGuard guard(memory.lock, guest->seams.waiter);
    Primary& primary = memory.cards[card].primary;
    if (!reset && primary.retains > 0) --primary.retains;
    if (ends) {
      was_booked = primary.booked != 0;
      primary.active = 0;
      primary.booked = 0;
    }
  }
  if (was_booked) {
    forget_context(guest, card, context);
    drop_overhead(guest, card);
  }
  return result;
}

// Bytes that a limit of `value` makes the driver set aside on the card.
uint64_t limit_cost(Guest* guest, uint32_t card, CUlimit limit, uint64_t value) {
  if (limit != CU_LIMIT_STACK_SIZE) return value;
  int processors = 0;
  int threads = 0;
  const CUdevice device = guest->cards[card].device;
  guest->cuda.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  guest->cuda.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(value, static_cast<uint64_t>(processors) * static_cast<uint64_t>(threads), &bytes)) {
    return 1ull << 60;
  }
  return bytes;
}

// Index in Context::default_limits; -1: the limit costs no memory worth counting.
int limit_index(CUlimit limit) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      return 0;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return 2;
    default:
      return -1;
  }
}

}  // namespace

void forget_context(Guest* guest, uint32_t card, CUcontext context) {
  Memory& memory = guest->memory;
  share_forget_context(guest, card, context);
  uint64_t freed = 0;
  uint64_t managed = 0;
  uint64_t limits = 0;
  {
    SpinGuard guard(memory.lock, guest->seams.waiter);
    memory.allocations.erase_if([&](uint64_t address, const Allocation& entry) {
      if (entry.context != context || entry.card != card) return false;
      uint64_t bytes = entry.bytes;
      if (entry.small_block != 0) {
        uint32_t* count = memory.small_blocks.find(address / kBlockBytes);
        const bool last = count != nullptr && --*count == 0;
        if (last) memory.small_blocks.erase(address / kBlockBytes);
        bytes = last ? kBlockBytes : 0;
      }
      freed += bytes;
      if (entry.managed != 0) managed += bytes;
      return true;
    });
    memory.arrays.erase_if([&](uint64_t, const Allocation& entry) {
      if (entry.context != context || entry.card != card) return false;
      freed += entry.bytes;
      return true;
    });
    Context entry = {};
    if (memory.contexts.erase(context_key(context), &entry)) limits = entry.limits_bytes;
  }
  memory.cards[card].managed_bytes.fetch_sub(managed, std::memory_order_relaxed);
  memory.cards[card].limits_bytes.fetch_sub(limits, std::memory_order_relaxed);
  give_back_memory(guest, card, freed + limits);
}

}  // namespace sluice::guest

using namespace sluice::guest;

extern "C" {

CUresult hook_cuCtxCreate(CUcontext* context, unsigned int flags, CUdevice device) {
  Guest* guest = enter();
  return create(guest, context, device, [&] { return guest->cuda.cuCtxCreate(context, flags, device); });
}

CUresult hook_cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  Guest* guest = enter();
  return create(guest, context, device, [&] { return guest->cuda.cuCtxCreate_v2(context, flags, device); });
}

CUresult hook_cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int count, unsigned int flags,
                             CUdevice device) {
  Guest* guest = enter();
  return create(guest, context, device,
                [&] { return guest->cuda.cuCtxCreate_v3(context, params, count, flags, device); });
}

CUresult hook_cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned int flags, CUdevice device) {
  Guest* guest = enter();
  return create(guest, context, device, [&] { return guest->cuda.cuCtxCreate_v4(context, params, flags, device); });
}

CUresult hook_cuCtxDestroy(CUcontext context) {
  Guest* guest = enter();
  return destroy(guest, context, [&] { return guest->cuda.cuCtxDestroy(context); });
}

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
  Guest* guest = enter();
  return destroy(guest, context, [&] { return guest->cuda.cuCtxDestroy_v2(context); });
}

CUresult hook_cuCtxDetach(CUcontext context) {
  Guest* guest = enter();
  return destroy(guest, context, [&] { return guest->cuda.cuCtxDetach(context); });
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Guest* guest = enter();
  const uint32_t card = card_of_device(guest, device);
  if (forbidden(guest, card)) return CUDA_ERROR_INVALID_DEVICE;
  Memory& memory = guest->memory;
  bool active = false;
  if (card != kNoCard) {
    SpinGuard guard(memory.lock, guest->seams.waiter);
    active = memory.cards[card].primary.active != 0;
  }
  auto call = [&] { return guest->cuda.cuDevicePrimaryCtxRetain(context, device); };
  if (card == kNoCard || context == nullptr) return call();
  const bool book = !active && booked(guest, card);
  const uint64_t estimate = book ? guest->cards[card].grant->context_estimate_bytes : 0;
  if (book) {
    if (CUresult refused = reserve_memory(guest, card, estimate)) return refused;
  }
  CUresult result;
  {
    Operation operation(guest, card);
    result = book ? retry_while_full(guest, call) : call();
  }
  if (result != CUDA_SUCCESS) {
    if (book) give_back_memory(guest, card, estimate);
    return result;
  }
  bool first = false;
  {
    SpinGuard guard(memory.lock, guest->seams.waiter);
    Primary& primary = memory.cards[card].primary;
    ++primary.retains;
    first = primary.active == 0;
    if (first) {
      primary.active = 1;
      primary.booked = book ? 1 : 0;
      primary.context = *context;
    }
    if (first && book) memory.contexts.insert(context_key(*context), Context{card, 0, {0, 0, 0}, 0});
  }
  if (book && first) {
    keep_as_overhead(guest, card, estimate);
    measure_overhead(guest, card, true);
  } else if (book) {
    give_back_memory(guest, card, estimate);  // another thread was first
  }
  if (first) tell_created(guest, card, *context);
  return result;
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device) {
  Guest* guest = enter();
  return release_primary(guest, device, false, [&] { return guest->cuda.cuDevicePrimaryCtxRelease(device); });
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Guest* guest = enter();
  return release_primary(guest, device, false, [&] { return guest->cuda.cuDevicePrimaryCtxRelease_v2(device); });
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device) {
  Guest* guest = enter();
  return release_primary(guest, device, true, [&] { return guest->cuda.cuDevicePrimaryCtxReset(device); });
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  Guest* guest = enter();
  return release_primary(guest, device, true, [&] { return guest->cuda.cuDevicePrimaryCtxReset_v2(device); });
}

CUresult hook_cuCtxSetLimit(CUlimit limit, size_t value) {
  Guest* guest = enter();
  auto call = [&] { return guest->cuda.cuCtxSetLimit(limit, value); };
  const int index = limit_index(limit);
  const uint32_t card = index < 0 ? kNoCard : current_card(guest);
  size_t before = 0;
  if (!booked(guest, card) || guest->cuda.cuCtxGetLimit(&before, limit) != CUDA_SUCCESS) return call();
  const CUcontext context = current_context(guest);
  uint64_t base = before;
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    Context* entry = guest->memory.contexts.find(context_key(context));
    if (entry == nullptr) return call();
    if ((entry->defaults_known & (1u << index)) == 0) {
      entry->defaults_known |= 1u << index;
      entry->default_limits[index] = before;
    }
    base = entry->default_limits[index];
  }
  const auto above = [&](uint64_t bytes) {
    const uint64_t cost = limit_cost(guest, card, limit, bytes);
    const uint64_t free_part = limit_cost(guest, card, limit, base);
    return cost > free_part ? cost - free_part : 0;
  };
  const uint64_t old_charge = above(before);
  const uint64_t new_charge = above(value);
  if (new_charge > old_charge) {
    if (CUresult refused = reserve_memory(guest, card, new_charge - old_charge)) return refused;
  }
  const CUresult result = call();
  size_t after = before;
  guest->cuda.cuCtxGetLimit(&after, limit);
  const uint64_t final_charge = above(after);
  adjust_memory(guest, card, new_charge > old_charge ? new_charge : old_charge, final_charge);
  {
    SpinGuard guard(guest->memory.lock, guest->seams.waiter);
    if (Context* entry = guest->memory.contexts.find(context_key(context))) {
      entry->limits_bytes = entry->limits_bytes - old_charge + final_charge;
    }
  }
  guest->memory.cards[card].limits_bytes.fetch_add(final_charge - old_charge, std::memory_order_relaxed);
  return result;
}

}  // extern "C"
