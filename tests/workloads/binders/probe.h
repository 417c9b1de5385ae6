// What every way of binding the driver is asked: can the card be opened, how much memory does it show, and is an
// allocation of a given size served. Header-only and in C's subset of C++, since it is compiled into programs that link
// the driver, into plug-ins and into a static program alike.
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

struct ProbeCalls {
  decltype(&cuInit) init;
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuMemGetInfo_v2) get_info;
  decltype(&cuMemAlloc_v2) allocate;
  decltype(&cuMemFree_v2) release;
};

struct ProbeOutcome {
  const char* call;  // the call whose result `code` is: the first that failed, or "cuMemGetInfo_v2"
  int code;
  size_t total_bytes;
  size_t free_bytes;
  int allocate_code;   // result of allocating the asked bytes, -1 when not tried
  const char* driver;  // file that the bound cuMemGetInfo_v2 lies in, "" when unknown
};

static inline void probe_step(ProbeOutcome* outcome, const char* call, CUresult result) {
  if (outcome->code == 0) {
    outcome->call = call;
    outcome->code = static_cast<int>(result);
  }
}

static inline ProbeOutcome probe(const ProbeCalls* calls, unsigned long long allocate_bytes) {
  ProbeOutcome outcome = {"", 0, 0, 0, -1, ""};
  if (calls->init == nullptr || calls->device_get == nullptr || calls->retain == nullptr ||
      calls->set_current == nullptr || calls->get_info == nullptr || calls->allocate == nullptr ||
      calls->release == nullptr) {
    probe_step(&outcome, "look-up", CUDA_ERROR_NOT_FOUND);
    return outcome;
  }
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(calls->get_info), &where) != 0 && where.dli_fname != nullptr) {
    outcome.driver = where.dli_fname;
  }
  CUdevice device = 0;
  CUcontext context = nullptr;
  probe_step(&outcome, "cuInit", calls->init(0));
  if (outcome.code == 0) probe_step(&outcome, "cuDeviceGet", calls->device_get(&device, 0));
  if (outcome.code == 0) probe_step(&outcome, "cuDevicePrimaryCtxRetain", calls->retain(&context, device));
  if (outcome.code == 0) probe_step(&outcome, "cuCtxSetCurrent", calls->set_current(context));
  if (outcome.code == 0) {
    probe_step(&outcome, "cuMemGetInfo_v2", calls->get_info(&outcome.free_bytes, &outcome.total_bytes));
  }
  if (outcome.code == 0 && allocate_bytes > 0) {
    CUdeviceptr address = 0;
    outcome.allocate_code = static_cast<int>(calls->allocate(&address, allocate_bytes));
    if (outcome.allocate_code == 0) calls->release(address);
  }
  return outcome;
}

// One JSON object without a newline, for the zoo to collect.
static inline void probe_print(const char* way, const ProbeOutcome* outcome) {
  printf(
      "{\"way\":\"%s\",\"call\":\"%s\",\"code\":%d,\"total_mib\":%zu,\"free_mib\":%zu,\"allocate_code\":%d,"
      "\"driver\":\"%s\"}",
      way, outcome->call, outcome->code, outcome->total_bytes >> 20, outcome->free_bytes >> 20, outcome->allocate_code,
      outcome->driver);
  fflush(stdout);
}

// The calls as this program's own references bind them: through DT_NEEDED.
#define PROBE_LINKED_CALLS \
  {&cuInit, &cuDeviceGet, &cuDevicePrimaryCtxRetain, &cuCtxSetCurrent, &cuMemGetInfo_v2, &cuMemAlloc_v2, &cuMemFree_v2}
