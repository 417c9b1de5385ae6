// Processes of one container that race for the last GiB of its memory and are killed while they do, over whatever
// driver they find: by a timer at a random microsecond, by their own hand between two calls, some with a forked child
// that sleeps on. Who judges is outside (the card's log); this program says what happened, and checks the one thing
// that only a program can: that afterwards a new process is given as much as the first one was.
//
//   race PROCESSES LIVES SEED BALLAST_MIB   PROCESSES at a time, LIVES in all, beside one that holds BALLAST_MIB
//
// Prints one line of JSON; exit status 1 when a process ended as none should, a call gave another error than "out of
// memory", or memory is missing afterwards.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr int kLongestLifeMs = 1000;
constexpr int kSleeperMs = 900;  // longer than the card takes to free what its parent had
constexpr int kSettledMs = 5000;
constexpr int kContextTries = 100;

struct Counts {
  std::atomic<uint64_t> given, refused, freed, contexts, contexts_refused, odd;
  std::atomic<uint64_t> steps_killed, sleepers;
  std::atomic<uint64_t> left_bytes;  // what one process alone is told to be free
};
Counts* counts = nullptr;
void* library = nullptr;

#define CALL(name) (reinterpret_cast<decltype(&::name)>(dlsym(library, #name)))

void sleep_ms(int milliseconds) {
  const timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000l};
  ::nanosleep(&time, nullptr);
}

uint64_t now_ms() {
  timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000 + static_cast<uint64_t>(time.tv_nsec) / 1000000;
}

void count_result(CUresult result) {
  if (result == CUDA_SUCCESS) {
    ++counts->given;
  } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    ++counts->refused;
  } else {
    ++counts->odd;
  }
}

struct Piece {
  CUdeviceptr address;
  CUmemGenericAllocationHandle handle;
};

bool take(uint64_t bytes, bool physical, std::vector<Piece>& pieces) {
  Piece piece = {};
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  const CUresult result =
      physical ? CALL(cuMemCreate)(&piece.handle, bytes, &properties, 0) : CALL(cuMemAlloc_v2)(&piece.address, bytes);
  count_result(result);
  if (result == CUDA_SUCCESS) pieces.push_back(piece);
  return result == CUDA_SUCCESS;
}

void give(std::vector<Piece>& pieces, size_t index) {
  const Piece piece = pieces[index];
  pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(index));
  const CUresult result = piece.address != 0 ? CALL(cuMemFree_v2)(piece.address) : CALL(cuMemRelease)(piece.handle);
  if (result == CUDA_SUCCESS) {
    ++counts->freed;
  } else {
    ++counts->odd;
  }
}

void kill_me_after_us(uint64_t microseconds) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer = {};
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(microseconds / 1000000);
  when.it_value.tv_nsec = static_cast<long>(microseconds % 1000000 * 1000 + 1);
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &when, nullptr) != 0) {
    ::_exit(3);
  }
}

// One life. Ends by SIGKILL, or in order: exit status 0.
[[noreturn]] void live(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&random](uint64_t bound) { return random() % bound; };
  const uint64_t end = below(100);  // 0..69: timer, 70..84: at a step, 85..99: in order
  const uint64_t steps = 1 + below(60);
  if (end < 70) kill_me_after_us(1000 + below(kLongestLifeMs * 1000ull));
  CUcontext context = nullptr;
  if (CALL(cuInit)(0) != CUDA_SUCCESS) ::_exit(4);
  CUresult made = CALL(cuCtxCreate_v2)(&context, 0, 0);
  for (int tries = 1; made == CUDA_ERROR_OUT_OF_MEMORY && tries < kContextTries; ++tries) {
    ++counts->contexts_refused;
    sleep_ms(5);
    made = CALL(cuCtxCreate_v2)(&context, 0, 0);
  }
  if (made != CUDA_SUCCESS) {
    if (made != CUDA_ERROR_OUT_OF_MEMORY) ++counts->odd;
    ::_exit(0);
  }
  ++counts->contexts;
  if (below(4) == 0 && ::fork() == 0) {
    ++counts->sleepers;
    sleep_ms(kSleeperMs);
    ::_exit(0);
  }
  std::vector<Piece> pieces;
  for (uint64_t step = 0; end < 70 || step < steps; ++step) {
    const uint64_t bytes = (1 + below(48)) * 2 * kMiB;
    const bool taken = take(bytes, below(3) == 0, pieces);
    if (!pieces.empty() && (!taken || below(3) == 0)) give(pieces, below(pieces.size()));
    if (!taken) sleep_ms(static_cast<int>(below(10)));
    if (step > 5000) ::_exit(5);
  }
  if (end < 85) {
    ++counts->steps_killed;
    ::raise(SIGKILL);
  }
  ::_exit(0);
}

// What a process that is alone is told to be left for it, in a child of its own; 0: it did not get that far.
uint64_t left_for_one() {
  counts->left_bytes = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    CUcontext context = nullptr;
    size_t left = 0, total = 0;
    if (CALL(cuInit)(0) == CUDA_SUCCESS && CALL(cuCtxCreate_v2)(&context, 0, 0) == CUDA_SUCCESS &&
        CALL(cuMemGetInfo_v2)(&left, &total) == CUDA_SUCCESS) {
      counts->left_bytes = left;
      CALL(cuCtxDestroy_v2)(context);
    }
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  return counts->left_bytes;
}

struct Ends {
  uint64_t lives = 0, killed = 0, in_order = 0, failed = 0;
};

// A process that takes the ballast and keeps it until it is killed.
pid_t hold(uint64_t bytes) {
  counts->left_bytes = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
    if (CALL(cuInit)(0) == CUDA_SUCCESS && CALL(cuCtxCreate_v2)(&context, 0, 0) == CUDA_SUCCESS &&
        CALL(cuMemAlloc_v2)(&address, bytes) == CUDA_SUCCESS) {
      counts->left_bytes = 1;
      for (;;) ::pause();
    }
    ::_exit(7);
  }
  while (counts->left_bytes == 0 && ::waitpid(child, nullptr, WNOHANG) == 0) sleep_ms(1);
  if (counts->left_bytes == 0) std::exit(7);
  return child;
}

Ends race(size_t processes, uint64_t lives, uint64_t seed, pid_t ballast) {
  Ends ends;
  std::set<pid_t> living;
  uint64_t begun = 0;
  while (begun < lives || !living.empty()) {
    while (begun < lives && living.size() < processes) {
      const pid_t child = ::fork();
      if (child == 0) live(seed * 1000003 + begun);
      if (child < 0) std::exit(6);
      living.insert(child);
      ++begun;
    }
    int status = 0;
    const pid_t ended = ::wait(&status);
    if (living.erase(ended) == 0) continue;  // a sleeper of somebody who is dead
    ++ends.lives;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      ++ends.killed;
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      ++ends.in_order;
    } else {
      ++ends.failed;
    }
  }
  ::kill(ballast, SIGKILL);
  while (::wait(nullptr) > 0) {
  }
  return ends;
}

unsigned long long number(uint64_t value) {
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: race PROCESSES LIVES SEED BALLAST_MIB\n");
    return 2;
  }
  counts =
      static_cast<Counts*>(::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (counts == MAP_FAILED || library == nullptr) return 97;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // sleepers come back here
  const uint64_t first = left_for_one();
  const pid_t ballast = hold(std::strtoull(argv[4], nullptr, 10) * kMiB);
  const Ends ends = race(std::strtoull(argv[1], nullptr, 10), std::strtoull(argv[2], nullptr, 10),
                         std::strtoull(argv[3], nullptr, 10), ballast);
  uint64_t last = 0;
  const uint64_t began = now_ms();
  while ((last = left_for_one()) != first && now_ms() - began < kSettledMs) sleep_ms(50);
  std::printf(
      "{\"lives\": %llu, \"killed\": %llu, \"killed_at_steps\": %llu, \"in_order\": %llu, \"failed\": %llu, "
      "\"contexts\": %llu, \"contexts_refused\": %llu, \"sleepers\": %llu, \"given\": %llu, \"refused\": %llu, "
      "\"freed\": %llu, \"odd\": %llu, \"left_first\": %llu, \"left_last\": %llu, \"settled_ms\": %llu}\n",
      number(ends.lives), number(ends.killed), number(counts->steps_killed), number(ends.in_order), number(ends.failed),
      number(counts->contexts), number(counts->contexts_refused), number(counts->sleepers), number(counts->given),
      number(counts->refused), number(counts->freed), number(counts->odd), number(first), number(last),
      number(now_ms() - began));
  return ends.failed == 0 && counts->odd == 0 && first != 0 && last == first ? 0 : 1;
}
