// Property test of the ledger: processes race for a container's memory and are killed at every labelled step and at
// random instructions, some with a sleeping forked child, while the card frees a dead process's memory late. Judged by
// the card: its resident bytes never pass the limit, every label is hit, and at the end both card and ledger are at 0.
//
// Short by default; SLUICE_LEDGER_ROUNDS (allocations over all processes) and SLUICE_LEDGER_PROCESSES make it long:
// 16 processes and 10000 rounds are the acceptance run.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "guest/hooks.h"
#include "guest/testing_pages.h"

namespace sluice::guest {
namespace {

constexpr uint64_t kLimit = 1 * kGiB;
constexpr uint32_t kMaxWorkers = 48;

struct SharedState {
  TestCardShared card;
  std::atomic<uint64_t> hits[kPointCount];   // times a label was passed
  std::atomic<uint64_t> kills[kPointCount];  // times a process was killed there
  std::atomic<uint64_t> rounds;
  std::atomic<uint64_t> refused;
  std::atomic<uint64_t> granted;
  std::atomic<uint64_t> tokens[64];  // exec tokens of the workers, so that their slots can be told apart when dead
};

struct Plan {
  SharedState* shared;
  Point kill_at = kPointCount;
  uint64_t after = 0;  // how often the label is passed before
};

constexpr const char* kPointNames[] = {
#define SLUICE_POINT_NAME(name) #name,
    SLUICE_POINTS(SLUICE_POINT_NAME)
#undef SLUICE_POINT_NAME
};

void on_timer(int) {
  ::kill(::getpid(), SIGKILL);
}

void at_point(void* raw, Point point) {
  Plan* plan = static_cast<Plan*>(raw);
  plan->shared->hits[point].fetch_add(1);
  if (point != plan->kill_at) return;
  if (plan->after-- == 0) {
    plan->shared->kills[point].fetch_add(1);
    ::kill(::getpid(), SIGKILL);
  }
}

// Timer signals stay out while the model (TestCard) moves bytes, which has no place for a kill of its own.
class NoTimer {
 public:
  NoTimer() { change(SIG_BLOCK); }
  ~NoTimer() { change(SIG_UNBLOCK); }

 private:
  static void change(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    ::sigprocmask(how, &set, nullptr);
  }
};

CUresult (*model_alloc)(CUdeviceptr*, size_t);
CUresult (*model_free)(CUdeviceptr);
CUresult (*model_context)(CUcontext*, unsigned int, CUdevice);

CUresult guarded_alloc(CUdeviceptr* out, size_t bytes) {
  NoTimer guard;
  return model_alloc(out, bytes);
}
CUresult guarded_free(CUdeviceptr address) {
  NoTimer guard;
  return model_free(address);
}
CUresult guarded_context(CUcontext* out, unsigned int flags, CUdevice device) {
  NoTimer guard;
  return model_context(out, flags, device);
}

// The model with its three byte-moving functions guarded.
class KillSafeCard : public TestCard {
 public:
  void* symbol(const char* name) override {
    void* real = TestCard::symbol(name);
    const std::string wanted = name;
    if (wanted == "cuMemAlloc_v2") {
      model_alloc = reinterpret_cast<decltype(model_alloc)>(real);
      return reinterpret_cast<void*>(&guarded_alloc);
    }
    if (wanted == "cuMemFree_v2") {
      model_free = reinterpret_cast<decltype(model_free)>(real);
      return reinterpret_cast<void*>(&guarded_free);
    }
    if (wanted == "cuCtxCreate_v2") {
      model_context = reinterpret_cast<decltype(model_context)>(real);
      return reinterpret_cast<void*>(&guarded_context);
    }
    return real;
  }
};

[[noreturn]] void worker(TestPages& pages, SharedState* shared, uint32_t index, uint64_t seed) {
  std::mt19937_64 random(seed);
  KillSafeCard card;
  card.shared = &shared->card;
  card.process_index = index;
  card.context_bytes = 20 * kMiB;
  TestGuest process(pages, &card);
  Plan plan;
  plan.shared = shared;
  if (seed % 3 != 0) {
    plan.kill_at = static_cast<Point>(random() % kPointCount);
    plan.after = random() % 20;
  } else {
    ::signal(SIGALRM, on_timer);
    itimerval timer = {};
    timer.it_value.tv_usec = static_cast<long>(1000 + random() % 30000);
    ::setitimer(ITIMER_REAL, &timer, nullptr);
  }
  process.guest->points = {at_point, &plan};
  CUcontext context = nullptr;
  if (hook_cuInit(0) != CUDA_SUCCESS) ::_exit(3);
  shared->tokens[index].store(process.locks.exec_token());
  if (seed % 5 == 0) {
    const pid_t sleeper = ::fork();  // inherits every descriptor, lives on for a while
    if (sleeper == 0) {
      ::setpgid(0, 0);
      ::alarm(2);
      ::pause();
      ::_exit(0);
    }
  }
  const CUresult made = hook_cuCtxCreate_v2(&context, 0, 0);
  std::vector<CUdeviceptr> mine;
  for (int i = 0; made == CUDA_SUCCESS && i < 300; ++i) {
    shared->rounds.fetch_add(1);
    CUdeviceptr address = 0;
    const uint64_t bytes = random() % 4 == 0 ? 1 + random() % kMiB : kMiB + random() % (128 * kMiB);
    const CUresult result = hook_cuMemAlloc_v2(&address, bytes);
    if (result == CUDA_SUCCESS) {
      mine.push_back(address);
      shared->granted.fetch_add(1);
    } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      shared->refused.fetch_add(1);
    } else {
      ::_exit(4);
    }
    while (!mine.empty() && (result != CUDA_SUCCESS || mine.size() > 6)) {
      if (hook_cuMemFree_v2(mine.back()) != CUDA_SUCCESS) ::_exit(5);
      mine.pop_back();
      if (random() % 2 == 0) break;
    }
  }
  ::_exit(0);
}

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// What the agent does once the card has freed a dead process's memory: clear the slots that were its own. State first:
// a claimer leaves a slot with bytes alone whatever its state, so it cannot be taken before both are written.
void tear_down(TestPages& pages, SharedState* shared, uint32_t index) {
  const uint64_t bytes = shared->card.by_process[index].exchange(0);
  shared->card.resident.fetch_sub(bytes);
  const uint64_t token = shared->tokens[index].exchange(0);
  for (page::Slot& slot : pages.usage()->cards[0].slots) {
    if (slot.state.load() != page::kSlotLive || slot.exec_token.load() != token) continue;
    slot.state.store(page::kSlotFree);
    slot.reserved_bytes.store(0);
  }
}

struct Worker {
  pid_t pid = 0;
  uint64_t freed_at_ns = 0;  // dead: when the card frees its memory
};

TEST(LedgerKills, CardNeverHoldsMoreThanTheLimit) {
  const uint64_t rounds = setting("SLUICE_LEDGER_ROUNDS", 2500);
  const uint32_t processes = static_cast<uint32_t>(setting("SLUICE_LEDGER_PROCESSES", 8));
  const uint64_t latest_teardown_ms = setting("SLUICE_LEDGER_TEARDOWN_MS", 30);
  ASSERT_LE(processes, kMaxWorkers);
  TestPages pages(kLimit, 24 * kMiB);
  SharedState* shared = static_cast<SharedState*>(
      ::mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::mt19937_64 random(11);
  Worker workers[kMaxWorkers];
  uint64_t seed = 1;
  uint64_t killed = 0;
  const auto finished = [&] {
    for (const std::atomic<uint64_t>& kills : shared->kills) {
      if (kills.load() == 0) return false;
    }
    return shared->rounds.load() >= rounds;
  };
  const uint64_t give_up_ns = sys::monotonic_ns() + 600ull * 1000000000;
  bool in_time = true;
  for (bool running = true; running;) {
    in_time = in_time && sys::monotonic_ns() < give_up_ns;
    const bool last = finished() || !in_time;
    running = !last;
    for (uint32_t i = 0; i < processes; ++i) {
      Worker& one = workers[i];
      if (one.pid == 0 && !last) {
        const uint64_t its_seed = seed++;
        one.pid = ::fork();
        if (one.pid == 0) worker(pages, shared, i, its_seed);
      }
      if (one.pid == 0) continue;
      running = true;
      if (last) ::kill(one.pid, SIGKILL);
      int status = 0;
      if (one.freed_at_ns == 0 && ::waitpid(one.pid, &status, WNOHANG) == one.pid) {
        if (WIFEXITED(status)) {
          ASSERT_EQ(WEXITSTATUS(status), 0);
        } else {
          ASSERT_EQ(WTERMSIG(status), SIGKILL);
          ++killed;
        }
        one.freed_at_ns = sys::monotonic_ns() + random() % (latest_teardown_ms + 1) * 1000000;
      }
      if (one.freed_at_ns != 0 && sys::monotonic_ns() >= one.freed_at_ns) {
        tear_down(pages, shared, i);
        one = Worker{};
      }
    }
    ASSERT_LE(shared->card.peak.load(), kLimit);
    ::usleep(200);
  }
  EXPECT_TRUE(in_time) << "only " << shared->rounds.load() << " rounds in ten minutes";
  EXPECT_LE(shared->card.peak.load(), kLimit);
  EXPECT_EQ(shared->card.resident.load(), 0u);
  EXPECT_EQ(pages.charged_bytes(), 0u);
  EXPECT_GT(shared->refused.load(), 0u);
  for (uint32_t point = 0; point < kPointCount; ++point) {
    EXPECT_GT(shared->kills[point].load(), 0u) << "never killed at label " << kPointNames[point];
  }
  std::printf("%llu rounds, %llu processes, %llu killed; granted %llu, refused %llu; peak %llu of %llu MiB\n",
              static_cast<unsigned long long>(shared->rounds.load()), static_cast<unsigned long long>(seed - 1),
              static_cast<unsigned long long>(killed), static_cast<unsigned long long>(shared->granted.load()),
              static_cast<unsigned long long>(shared->refused.load()),
              static_cast<unsigned long long>(shared->card.peak.load() / kMiB),
              static_cast<unsigned long long>(kLimit / kMiB));
  ::munmap(shared, sizeof(SharedState));
}

}  // namespace
}  // namespace sluice::guest
