// The calls of the null driver whose streams take time; see bodies.cc. Part of null_driver_timed alone.
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdlib>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

namespace {

constexpr int64_t kQueueDepth = 1024;
constexpr size_t kMostObjects = 1 << 16;

// One word per stream (its end) or event (its stamp), ns of CLOCK_MONOTONIC. Handles are their addresses.
struct alignas(64) Word {
  std::atomic<int64_t> ns{0};
};
Word g_words[kMostObjects];
std::atomic<size_t> g_next{1};
Word g_default;

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : atoll(text);
}
int64_t kernel_ns() {
  static const int64_t value = setting("SLUICE_NULL_KERNEL_NS", 5'000);
  return value;
}
int64_t launch_ns() {
  static const int64_t value = setting("SLUICE_NULL_LAUNCH_NS", 0);
  return value;
}
int64_t record_ns() {
  static const int64_t value = setting("SLUICE_NULL_RECORD_NS", 1'000);
  return value;
}

// From the launch of this number on the driver's time runs slower, by kSlower: the launches of a thread that is stepped
// instruction by instruction then follow each other as closely as those of one that runs.
constexpr int64_t kSlower = 10'000;
std::atomic<int64_t> g_launches{0};
std::atomic<int64_t> g_slow_from_ns{0};
int64_t slow_after() {
  static const int64_t value = setting("SLUICE_NULL_SLOW_AFTER", 0);
  return value;
}

int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t ns = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  const int64_t slow_from = g_slow_from_ns.load(std::memory_order_relaxed);
  return slow_from == 0 || ns < slow_from ? ns : slow_from + (ns - slow_from) / kSlower;
}

void count_launch() {
  if (slow_after() == 0) return;
  const int64_t launches = g_launches.fetch_add(1, std::memory_order_relaxed) + 1;
  if (launches == slow_after()) g_slow_from_ns.store(now_ns(), std::memory_order_relaxed);
}

Word& word_of(CUstream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= 2 ? g_default : *reinterpret_cast<Word*>(stream);
}

template <typename Handle>
CUresult make(Handle* out) {
  const size_t index = g_next.fetch_add(1, std::memory_order_relaxed);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (index >= kMostObjects) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<Handle>(&g_words[index]);
  return CUDA_SUCCESS;
}

void wait_until(int64_t ns) {
  while (now_ns() < ns) sched_yield();
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  return make(stream);
}
CUresult cuEventCreate(CUevent* event, unsigned int) {
  return make(event);
}

CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, CUstream stream, void**, void**) {
  count_launch();
  Word& word = word_of(stream);
  const int64_t now = now_ns();
  const int64_t end = word.ns.load(std::memory_order_relaxed);
  const int64_t length = kernel_ns();
  word.ns.store((end > now ? end : now) + length, std::memory_order_relaxed);
  if (end - now > kQueueDepth * length) wait_until(end - kQueueDepth * length);
  while (launch_ns() != 0 && now_ns() < now + launch_ns()) {
  }
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  const int64_t now = now_ns();
  const int64_t end = word_of(stream).ns.load(std::memory_order_relaxed);
  reinterpret_cast<Word*>(event)->ns.store(end > now ? end : now, std::memory_order_relaxed);
  while (now_ns() < now + record_ns()) {
  }
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  const int64_t stamp = reinterpret_cast<Word*>(event)->ns.load(std::memory_order_relaxed);
  return now_ns() < stamp ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  const int64_t first = reinterpret_cast<Word*>(start)->ns.load(std::memory_order_relaxed);
  const int64_t last = reinterpret_cast<Word*>(end)->ns.load(std::memory_order_relaxed);
  if (now_ns() < first || now_ns() < last) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(last - first) / 1e6);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  wait_until(word_of(stream).ns.load(std::memory_order_relaxed));
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
