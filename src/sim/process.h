// One process that uses simulated cards: everything the driver library would keep in its data segment.
//
// In a real program there is one, made by cuInit. A harness makes many in one real process and says which of its
// fibres belongs to which: all state is reached from current_thread(), nothing is global. The API's bodies are plain C
// functions sim_cuXxx; libcuda.so.1 exports them under their real names.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/cuda.h"
#include "sim/card.h"
#include "sim/engine.h"
#include "sim/host.h"

namespace sluice::sim {

class Process;
class Memory;
struct Context;
struct Module;
struct Graph;
struct GraphExec;
struct Capture;

// State of one program thread (or fibre).
struct Thread {
  Process* process = nullptr;
  std::vector<Context*> stack;  // cuCtxPushCurrent; the last one is current
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUstream null_stream = nullptr;  // what a null handle means in the call being made: legacy or per-thread
  std::unordered_map<Context*, CUstream> per_thread_streams;
  bool in_host_function = false;  // API calls from there are not permitted
  uint64_t id = 0;
};

// Slots of fixed addresses for handles that programs hold: a freed slot is the next one given out, so values repeat as
// they do on hardware; anything that is not a live slot's address is recognised as no handle. Not thread-safe.
template <typename T>
class HandlePool {
 public:
  HandlePool() = default;
  HandlePool(const HandlePool&) = delete;
  HandlePool& operator=(const HandlePool&) = delete;
  ~HandlePool() {
    each([this](T& object) { free(&object); });
    if (slots_ != nullptr) munmap(slots_, kCapacity * sizeof(Slot));
  }

  // nullptr when the capacity is reached.
  T* make() {
    if (slots_ == nullptr) {
      void* at = mmap(nullptr, kCapacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) return nullptr;
      slots_ = static_cast<Slot*>(at);
    }
    Slot* slot = free_;
    if (slot != nullptr) {
      free_ = slot->next;
    } else {
      if (high_ == kCapacity) return nullptr;
      slot = slots_ + high_++;
    }
    slot->alive = true;
    ++live_;
    return new (slot->bytes) T();
  }

  void free(T* object) {
    auto* slot = reinterpret_cast<Slot*>(object);
    object->~T();
    slot->alive = false;
    slot->next = free_;
    free_ = slot;
    --live_;
  }

  // nullptr unless it is the handle of a live object.
  T* find(const void* handle) {
    const auto at = reinterpret_cast<uintptr_t>(handle), base = reinterpret_cast<uintptr_t>(slots_);
    if (slots_ == nullptr || at < base || at >= base + high_ * sizeof(Slot) || (at - base) % sizeof(Slot) != 0)
      return nullptr;
    Slot* slot = slots_ + (at - base) / sizeof(Slot);
    return slot->alive ? reinterpret_cast<T*>(slot->bytes) : nullptr;
  }

  template <typename F>
  void each(F f) {
    for (size_t i = 0; i < high_; ++i) {
      if (slots_[i].alive) f(*reinterpret_cast<T*>(slots_[i].bytes));
    }
  }
  size_t live() const { return live_; }

 private:
  static constexpr size_t kCapacity = 1u << 20;
  struct Slot {
    alignas(T) unsigned char bytes[sizeof(T)];  // first, so that an object's address is its slot's
    bool alive;
    Slot* next;
  };
  Slot* slots_ = nullptr;
  size_t high_ = 0, live_ = 0;
  Slot* free_ = nullptr;
};

struct Stream {
  Context* context = nullptr;
  Index record = kNone;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false, per_thread = false;
  uint64_t launches = 0;             // kernels ever: seeds their durations
  std::shared_ptr<Capture> capture;  // under way
  CUsynchronizationPolicy sync_policy = CU_SYNC_POLICY_AUTO;
};

struct Event {
  Context* context = nullptr;
  int card = 0;
  Index record = kNone;
  unsigned flags = 0;
  bool imported = false;
  std::shared_ptr<Capture> captured;  // last recorded into this capture
  std::vector<CUgraphNode> captured_nodes;
};

struct Context {
  Process* process = nullptr;
  int card = 0;  // index into the process's cards
  Index record = kNone;
  uint32_t serial = 0;
  unsigned flags = 0;
  bool primary = false;
  bool destroyed = false;
  unsigned api_version = 3020;
  uint64_t id = 0;
  HostLock lock;  // the driver's lock of a context: held while a launch waits for room in a queue
  std::atomic<uint64_t> lock_holder{0};  // thread: a holder may take it again
  Stream* legacy = nullptr;
  size_t limits[CU_LIMIT_MAX] = {};
  Index overhead_block = kNone, local_block = kNone, heap_block = kNone;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  std::vector<Context*> peers;
  std::unordered_map<uint64_t, uint32_t> collective_rounds;  // by id and rank: launches so far
};

// A card as this process has it open.
struct Device {
  std::unique_ptr<Card> card;
  Index record = kNone;  // of this process in the card's table
  uint32_t serial = 0;
  Context* primary = nullptr;
  unsigned primary_references = 0, primary_flags = 0;
  std::unique_ptr<Memory> memory;  // address space (memory.h)
};

class Process {
 public:
  // A simulated process of a harness, or the real one (host = real_host(), pid 0).
  Process(Host& host, std::string folder, int32_t pid, bool simulated, std::string name);
  ~Process();  // orderly exit

  // cuInit: opens the cards. CUDA_ERROR_NO_DEVICE when the folder has none.
  CUresult initialise();
  // Registers the process with a card; done by the first context there.
  CUresult attach(int ordinal);
  bool initialised() const { return initialised_; }
  bool forked() const { return forked_; }
  void set_forked();
  // What SIGKILL does to a simulated process; no API call may follow.
  void kill();

  Host& host() { return host_; }
  int device_count() const { return static_cast<int>(devices_.size()); }
  Device* device(int ordinal);
  int32_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }

  // Card time now, after letting the card come to it and doing what is due in this process (contents of copies).
  // Takes and drops the card's lock.
  uint64_t settle(int card);

  // What the process does when a command completes: registered before submit(), called once by settle().
  uint64_t add_effect(std::function<void()> effect);
  // A host function; runs on the service thread.
  uint64_t add_host_function(std::function<void()> function);

  // Waits until the predicate (called with the card locked and advanced) holds.
  // bound: lower bound of card time, asked anew after every look.
  CUresult wait(int card, const std::function<bool(Card&)>& done, const std::function<uint64_t(Card&)>& bound,
                WaitMode mode);

  // Appends to a stream; waits while it is full, holding whatever locks the caller holds.
  CUresult submit(Stream& stream, Submission what, CommandRef* made = nullptr, bool count_depth = true);
  // Words that wait-value commands of this process look at: told by their address (host-readable pointer).
  void watch_word(int card, uint64_t address, volatile void* bytes, bool wide);

  // Writes of values under way that the host may look for without calling.
  std::atomic<int> writes_under_way{0};

  // Makes sure that a thread looks after host functions and values while the program does not call.
  void need_service();

  HandlePool<Context> contexts;
  HandlePool<Stream> streams;
  HandlePool<Event> events;
  HostLock objects;  // guards the pools and maps; never held across a wait

  // Kept by the parts that own them (module.cc, graph.cc, ...): opaque here.
  std::shared_ptr<void> modules_state, graphs_state, memory_state, capture_state, nvml_state, library_state, link_state;

 private:
  friend class ProcessService;
  void run_due(int card);
  void look_at_words(int card);
  static void service_main(void* self);
  void service_loop();
  Host& host_;
  std::string folder_, name_;
  int32_t pid_;
  bool simulated_;
  bool initialised_ = false;
  bool killed_ = false;
  int owner_pid_ = 0;
  std::vector<Device> devices_;
  HostLock effects_lock_;   // the maps
  HostLock effects_order_;  // held while effects are applied
  uint64_t next_effect_ = 1;
  std::unordered_map<uint64_t, std::function<void()>> effects_;
  std::unordered_map<uint64_t, std::function<void()>> host_functions_;
  struct Word {
    int card;
    volatile void* bytes;
    bool wide;
  };
  std::unordered_map<uint64_t, Word> words_;
  std::vector<uint64_t> last_reap_ns_;
  std::atomic<int> applying_{0};  // threads that are doing what is due: others wait for them before they report it done
  std::atomic<bool> service_running_{false};
  bool forked_ = false;
  std::atomic<bool> stopping_{false};
};

// The calling thread's state. Threads of a real program get theirs on first use and share one process; a harness sets
// the pointer at each change of fibres.
Thread& current_thread();
inline Process& current_process() {
  return *current_thread().process;
}
void set_current_thread(Thread* thread);  // nullptr: the real process's own again

// The function that a name of the driver's export table stands for (cuXxx, all suffixes); nullptr when there is no
// such name or a fault takes it away. In libcuda.so.1 this is what dlsym finds.
const void* sim_symbol(const char* name);

}  // namespace sluice::sim
