// What the bodies of the API share: entering a call, finding handles, enqueueing on a stream.
#pragma once

#include "sim/card.h"
#include "sim/cuda_bodies.h"
#include "sim/engine.h"
#include "sim/memory.h"
#include "sim/process.h"

namespace sluice::sim {

enum CallNeeds : unsigned {
  kNothing = 0,    // works before cuInit
  kDriver = 1,     // cuInit was called
  kContext = 2,    // and a context is current and sound
  kNoCapture = 4,  // not permitted while a stream capture forbids unsafe calls
};

// The beginning of every call: who calls, may they, what was broken on purpose. `result` is CUDA_SUCCESS if the body
// is to run.
struct Call {
  Call(const char* name, unsigned needs, Charge charge = Charge::kTrivial, uint64_t nominal_ns = 0);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Thread& thread;
  Process& process;
  Context* context = nullptr;
  CUresult result = CUDA_SUCCESS;

  Host& host() { return process.host(); }
  Device& device() { return *process.device(context->card); }
  Card& card() { return *device().card; }
};
#define SIM_ENTER(name, ...)     \
  Call call(#name, __VA_ARGS__); \
  if (call.result != CUDA_SUCCESS) return call.result

// The driver's lock of a context; its holder may take it again.
class ContextLock {
 public:
  explicit ContextLock(Context& context) : context_(context) {
    const uint64_t self = current_thread().id;
    nested_ = context_.lock_holder.load(std::memory_order_relaxed) == self;
    if (nested_) return;
    context_.process->host().lock(context_.lock);
    context_.lock_holder.store(self, std::memory_order_relaxed);
  }
  ~ContextLock() {
    if (nested_) return;
    context_.lock_holder.store(0, std::memory_order_relaxed);
    context_.process->host().unlock(context_.lock);
  }
  ContextLock(const ContextLock&) = delete;
  ContextLock& operator=(const ContextLock&) = delete;

 private:
  Context& context_;
  bool nested_;
};

class ObjectsLock {
 public:
  explicit ObjectsLock(Process& process) : process_(process) { process_.host().lock(process_.objects); }
  ~ObjectsLock() { process_.host().unlock(process_.objects); }
  ObjectsLock(const ObjectsLock&) = delete;
  ObjectsLock& operator=(const ObjectsLock&) = delete;

 private:
  Process& process_;
};

// Handle to stream: null and the two special values included. CUDA_ERROR_INVALID_HANDLE otherwise.
CUresult find_stream(Call& call, CUstream handle, Stream** stream);
Event* find_event(Call& call, CUevent handle);

// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT when using this stream would tie an ongoing capture to the legacy stream.
CUresult check_implicit_capture(Call& call, Stream& stream);

// Appends under the context's lock and charges the call.
CUresult enqueue(Call& call, Stream& stream, const Submission& what, Charge charge, CommandRef* made = nullptr);

WaitMode wait_mode(const Context& context);
CUresult wait_stream(Call& call, Stream& stream);
CUresult wait_context(Context& context);
CUresult wait_command(Context& context, CommandRef command);

// The state of the context on the card: its sticky error, or CUDA_SUCCESS.
CUresult context_error(Context& context);

// Contexts.
CUresult create_context(Process& process, int card, unsigned flags, unsigned api_version, bool primary, Context** made);
void destroy_context_object(Context& context);
Stream* legacy_stream(Context& context);
CUresult make_stream_object(Context& context, unsigned flags, int priority, Stream** made);

}  // namespace sluice::sim
