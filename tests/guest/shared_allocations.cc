// Memory that two processes of one container share: by IPC handle, by descriptor, by pool, as external memory. The
// owner is refused what is over the limit and given what is left; the other process opens it, writes, and is charged
// nothing for it, and both see the same figure of free memory throughout. Where the owner gives its memory back while
// the other still has it open, the card goes on holding it, and so the limit has to.
//
//   shared_allocations LIMIT_MIB   prints one line per kind; exit status = number of kinds that misbehaved
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/cuda.h"
#include "abi/cuda_prototypes.h"

namespace {

void* library = nullptr;
#define CALL(name) (reinterpret_cast<decltype(&::name)>(dlsym(library, #name)))

constexpr uint64_t kMiB = 1ull << 20;
constexpr int kSettleTries = 60;  // of 50 ms

enum class Kind : int { kIpc, kDescriptor, kPool, kExternal, kEnd };
constexpr const char* kNames[] = {"cuIpcOpenMemHandle", "cuMemImportFromShareableHandle", "cuMemPoolImportPointer",
                                  "cuImportExternalMemory"};

// What the owner sends beside a descriptor, and what the other answers.
struct Offer {
  Kind kind;
  bool close;  // close what is open instead
  uint64_t bytes;
  CUipcMemHandle ipc;
  CUmemPoolPtrExportData pointer;
};
struct Answer {
  CUresult result;
  uint64_t free;
};

uint64_t free_bytes() {
  size_t left = 0, total = 0;
  CALL(cuMemGetInfo_v2)(&left, &total);
  return left;
}

bool send_offer(int socket, Offer offer, int file) {
  iovec part = {&offer, sizeof offer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  return ::sendmsg(socket, &message, 0) == static_cast<ssize_t>(sizeof offer);
}

bool receive_offer(int socket, Offer* offer, int* file) {
  iovec part = {offer, sizeof *offer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  *file = -1;
  if (::recvmsg(socket, &message, 0) != static_cast<ssize_t>(sizeof *offer)) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) std::memcpy(file, CMSG_DATA(header), sizeof *file);
  return true;
}

// The second process: opens what it is offered, writes its first byte, closes it when told.
struct Opened {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemoryPool pool = nullptr;
  CUexternalMemory external = nullptr;
};

CUresult open_it(const Offer& offer, int file, Opened* opened) {
  void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(file));
  constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUresult result = CUDA_SUCCESS;
  switch (offer.kind) {
    case Kind::kIpc:
      result = CALL(cuIpcOpenMemHandle_v2)(&opened->address, offer.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      break;
    case Kind::kDescriptor: {
      result = CALL(cuMemImportFromShareableHandle)(&opened->handle, shareable, kFile);
      if (result == CUDA_SUCCESS) result = CALL(cuMemAddressReserve)(&opened->address, offer.bytes, 0, 0, 0);
      if (result == CUDA_SUCCESS) result = CALL(cuMemMap)(opened->address, offer.bytes, 0, opened->handle, 0);
      CUmemAccessDesc access = {};
      access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      if (result == CUDA_SUCCESS) result = CALL(cuMemSetAccess)(opened->address, offer.bytes, &access, 1);
      break;
    }
    case Kind::kPool: {
      result = CALL(cuMemPoolImportFromShareableHandle)(&opened->pool, shareable, kFile, 0);
      CUmemPoolPtrExportData pointer = offer.pointer;
      if (result == CUDA_SUCCESS) result = CALL(cuMemPoolImportPointer)(&opened->address, opened->pool, &pointer);
      break;
    }
    default: {
      CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {};
      from.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
      from.handle.fd = file;
      from.size = offer.bytes;
      CUDA_EXTERNAL_MEMORY_BUFFER_DESC all = {};
      all.size = offer.bytes;
      result = CALL(cuImportExternalMemory)(&opened->external, &from);
      if (result == CUDA_SUCCESS) {
        result = CALL(cuExternalMemoryGetMappedBuffer)(&opened->address, opened->external, &all);
      }
    }
  }
  if (result == CUDA_SUCCESS) result = CALL(cuMemsetD8_v2)(opened->address, 1, 1);
  return result == CUDA_SUCCESS ? CALL(cuCtxSynchronize)() : result;
}

CUresult close_it(const Offer& offer, const Opened& opened) {
  switch (offer.kind) {
    case Kind::kIpc:
      return CALL(cuIpcCloseMemHandle)(opened.address);
    case Kind::kDescriptor:
      CALL(cuMemUnmap)(opened.address, offer.bytes);
      CALL(cuMemAddressFree)(opened.address, offer.bytes);
      return CALL(cuMemRelease)(opened.handle);
    case Kind::kPool:
      CALL(cuMemFree_v2)(opened.address);
      return CALL(cuMemPoolDestroy)(opened.pool);
    default:
      return CALL(cuDestroyExternalMemory)(opened.external);
  }
}

[[noreturn]] void serve(int socket) {
  CUcontext context = nullptr;
  if (CALL(cuInit)(0) != CUDA_SUCCESS || CALL(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS) ::_exit(1);
  Answer ready = {CUDA_SUCCESS, free_bytes()};
  if (::write(socket, &ready, sizeof ready) != sizeof ready) ::_exit(1);
  Offer offer;
  Opened opened;
  for (int file = -1; receive_offer(socket, &offer, &file);) {
    Answer answer = {};
    answer.result = offer.close ? close_it(offer, opened) : open_it(offer, file, &opened);
    if (file >= 0) ::close(file);
    if (offer.close) opened = {};
    answer.free = free_bytes();
    if (::write(socket, &answer, sizeof answer) != sizeof answer) break;
  }
  ::_exit(0);
}

// The owner's side.
struct Owned {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemoryPool pool = nullptr;
};

CUresult take(Kind kind, uint64_t bytes, Owned* owned) {
  CUmemAllocationProp physical = {};
  physical.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  physical.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  if (kind == Kind::kIpc) return CALL(cuMemAlloc_v2)(&owned->address, bytes);
  if (kind != Kind::kPool) return CALL(cuMemCreate)(&owned->handle, bytes, &physical, 0);
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = physical.location;
  const CUresult made = CALL(cuMemPoolCreate)(&owned->pool, &properties);
  if (made != CUDA_SUCCESS) return made;
  const CUresult taken = CALL(cuMemAllocFromPoolAsync)(&owned->address, bytes, owned->pool, nullptr);
  CALL(cuStreamSynchronize)(nullptr);
  if (taken != CUDA_SUCCESS) CALL(cuMemPoolDestroy)(owned->pool);
  return taken;
}

void give(Kind kind, const Owned& owned) {
  if (kind == Kind::kDescriptor || kind == Kind::kExternal) {
    CALL(cuMemRelease)(owned.handle);
    return;
  }
  CALL(cuMemFree_v2)(owned.address);
  if (kind == Kind::kPool) CALL(cuMemPoolDestroy)(owned.pool);
}

CUresult name_it(Kind kind, const Owned& owned, Offer* offer, int* file) {
  constexpr CUmemAllocationHandleType kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (kind == Kind::kIpc) return CALL(cuIpcGetMemHandle)(&offer->ipc, owned.address);
  if (kind != Kind::kPool) return CALL(cuMemExportToShareableHandle)(file, owned.handle, kFile, 0);
  const CUresult exported = CALL(cuMemPoolExportToShareableHandle)(file, owned.pool, kFile, 0);
  return exported == CUDA_SUCCESS ? CALL(cuMemPoolExportPointer)(&offer->pointer, owned.address) : exported;
}

Answer ask(int socket, const Offer& offer, int file) {
  Answer answer = {CUDA_ERROR_UNKNOWN, 0};
  if (!send_offer(socket, offer, file) || ::read(socket, &answer, sizeof answer) != sizeof answer) std::exit(95);
  return answer;
}

bool settles_at(uint64_t wanted) {
  for (int i = 0; i < kSettleTries; ++i) {
    if (free_bytes() == wanted) return true;
    ::usleep(50000);
  }
  return false;
}

bool check(Kind kind, int socket, uint64_t limit) {
  const uint64_t before = free_bytes(), granule = 32 * kMiB;
  Owned owned;
  const CUresult too_much = take(kind, limit + kMiB * 2, &owned);
  if (too_much == CUDA_SUCCESS) give(kind, owned);
  const uint64_t bytes = before / granule * granule;
  const CUresult fits = take(kind, bytes, &owned);
  Offer offer = {};
  offer.kind = kind;
  offer.bytes = bytes;
  int file = -1;
  const CUresult named = fits == CUDA_SUCCESS ? name_it(kind, owned, &offer, &file) : fits;
  const uint64_t during = free_bytes();
  const Answer open = named == CUDA_SUCCESS ? ask(socket, offer, file) : Answer{named, 0};
  if (file >= 0) ::close(file);
  offer.close = true;
  const Answer closed = open.result == CUDA_SUCCESS ? ask(socket, offer, -1) : Answer{open.result, 0};
  if (fits == CUDA_SUCCESS) give(kind, owned);
  const bool settled = settles_at(before);
  const bool good = too_much == CUDA_ERROR_OUT_OF_MEMORY && fits == CUDA_SUCCESS && open.result == CUDA_SUCCESS &&
                    open.free == during && closed.result == CUDA_SUCCESS && settled;
  const auto mib = [](uint64_t value) { return static_cast<unsigned long long>(value / kMiB); };
  std::printf("%-34s limit+2MiB=%d left(%llu MiB)=%d shared=%d free %llu>%llu>%llu, elsewhere %llu %s\n",
              kNames[static_cast<int>(kind)], too_much, mib(bytes), fits, open.result, mib(before), mib(during),
              mib(free_bytes()), mib(open.free), good ? "ok" : "WRONG");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t limit = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0) * kMiB;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  int ends[2];
  if (library == nullptr || ::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 97;
  const pid_t other = ::fork();
  if (other == 0) {
    ::close(ends[0]);
    serve(ends[1]);
  }
  ::close(ends[1]);
  CUcontext context = nullptr;
  Answer ready = {};
  if (::read(ends[0], &ready, sizeof ready) != sizeof ready || CALL(cuInit)(0) != CUDA_SUCCESS ||
      CALL(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS) {
    return 96;
  }
  int wrong = 0;
  for (int kind = 0; kind < static_cast<int>(Kind::kEnd); ++kind) {
    if (!check(static_cast<Kind>(kind), ends[0], limit)) ++wrong;
  }
  ::close(ends[0]);
  ::waitpid(other, nullptr, 0);
  std::printf("%d shared kinds, %d wrong\n", static_cast<int>(Kind::kEnd), wrong);
  return wrong;
}
