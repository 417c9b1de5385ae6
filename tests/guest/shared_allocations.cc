// Memory that processes of one container share: by IPC handle, by descriptor, by pool, as external memory. The owner is
// refused what is over the limit and given what is left; two others open it, write, and are charged nothing for it, and
// all see the same figure of free memory throughout.
//
//   shared_allocations LIMIT_MIB            prints one line per kind; exit status = number of kinds that misbehaved
//   shared_allocations LIMIT_MIB free|end   the memory outlives its owner, who frees it, or is a process that ends,
//   while
//                                           another has it open, three times half of what there is; then all is closed,
//                                           and all of it is there again. The card's log tells whether the limit held
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

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
  struct Held {
    Offer offer;
    Opened opened;
  };
  std::vector<Held> held;
  Offer offer;
  for (int file = -1; receive_offer(socket, &offer, &file);) {
    Answer answer = {};
    if (!offer.close) {
      held.push_back({offer, {}});
      answer.result = open_it(offer, file, &held.back().opened);
      if (answer.result != CUDA_SUCCESS) held.pop_back();
    }
    if (file >= 0) ::close(file);
    for (; offer.close && !held.empty(); held.pop_back()) {
      const CUresult closed = close_it(held.back().offer, held.back().opened);
      if (closed != CUDA_SUCCESS) answer.result = closed;
    }
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

bool check(Kind kind, const int (&sockets)[2], uint64_t limit) {
  const uint64_t before = free_bytes(), granule = 32 * kMiB;
  Owned owned;
  const CUresult too_much = take(kind, limit + kMiB * 2, &owned);
  if (too_much == CUDA_SUCCESS) give(kind, owned);
  const uint64_t bytes = before / granule * granule;
  const CUresult fits = take(kind, bytes, &owned);
  const uint64_t during = free_bytes();
  CUresult shared = fits, closed = CUDA_SUCCESS;
  uint64_t elsewhere = during;
  for (const int socket : sockets) {
    Offer offer = {};
    offer.kind = kind;
    offer.bytes = bytes;
    int file = -1;
    if (shared == CUDA_SUCCESS) shared = name_it(kind, owned, &offer, &file);
    const Answer open = shared == CUDA_SUCCESS ? ask(socket, offer, file) : Answer{shared, 0};
    if (file >= 0) ::close(file);
    if (shared == CUDA_SUCCESS) shared = open.result;
    if (open.free != during) elsewhere = open.free;
  }
  for (const int socket : sockets) {
    Offer offer = {};
    offer.close = true;
    const CUresult result = ask(socket, offer, -1).result;
    if (result != CUDA_SUCCESS) closed = result;
  }
  if (fits == CUDA_SUCCESS) give(kind, owned);
  const bool settled = settles_at(before);
  const bool good = too_much == CUDA_ERROR_OUT_OF_MEMORY && fits == CUDA_SUCCESS && shared == CUDA_SUCCESS &&
                    elsewhere == during && closed == CUDA_SUCCESS && settled;
  const auto mib = [](uint64_t value) { return static_cast<unsigned long long>(value / kMiB); };
  std::printf("%-34s limit+2MiB=%d left(%llu MiB)=%d shared=%d free %llu>%llu>%llu, elsewhere %llu %s\n",
              kNames[static_cast<int>(kind)], too_much, mib(bytes), fits, shared, mib(before), mib(during),
              mib(free_bytes()), mib(elsewhere), good ? "ok" : "WRONG");
  return good;
}

bool enter_cuda() {
  CUcontext context = nullptr;
  return CALL(cuInit)(0) == CUDA_SUCCESS && CALL(cuCtxCreate_v2)(&context, 0, 0) == CUDA_SUCCESS;
}

// Runs `body` in a process of its own; what it returns, 0 where there is no room for its context.
template <typename Body>
uint64_t apart(Body&& body) {
  int ends[2];
  uint64_t answer = 0;
  if (::pipe(ends) != 0) std::exit(97);
  const pid_t child = ::fork();
  if (child == 0) {
    if (enter_cuda()) answer = body();
    ::_exit(::write(ends[1], &answer, sizeof answer) == sizeof answer ? 0 : 95);
  }
  ::close(ends[1]);
  if (::read(ends[0], &answer, sizeof answer) != sizeof answer) std::exit(95);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return answer;
}

// Takes `bytes`, has the other open them, and keeps them: 1 when all that worked.
uint64_t hand_over(Kind kind, int socket, uint64_t bytes, Owned* owned) {
  Offer offer = {};
  offer.kind = kind;
  offer.bytes = bytes;
  int file = -1;
  if (take(kind, bytes, owned) != CUDA_SUCCESS) return 0;
  if (name_it(kind, *owned, &offer, &file) != CUDA_SUCCESS) std::exit(94);
  const Answer open = ask(socket, offer, file);
  if (file >= 0) ::close(file);
  if (open.result != CUDA_SUCCESS) {
    std::fprintf(stderr, "opening it elsewhere: %d\n", open.result);
    std::exit(93);
  }
  return 1;
}

bool outlive(Kind kind, int socket, bool ends) {
  constexpr int kRounds = 3;
  const uint64_t before = apart(free_bytes);
  const uint64_t half = before / 2 / (32 * kMiB) * (32 * kMiB);
  uint64_t rounds = 0;
  if (ends) {
    for (int round = 0; round < kRounds; ++round) {
      rounds += apart([&] {
        Owned owned;
        return hand_over(kind, socket, half, &owned);
      });
    }
  } else {
    rounds = apart([&] {
      uint64_t count = 0;
      for (int round = 0; round < kRounds; ++round) {
        Owned owned;
        if (hand_over(kind, socket, half, &owned) == 0) continue;
        give(kind, owned);
        ++count;
      }
      return count;
    });
  }
  Offer close = {};
  close.close = true;
  const CUresult closed = ask(socket, close, -1).result;
  // What ended processes had comes back when it is asked for.
  const uint64_t again = apart([&] {
    Owned owned;
    return take(Kind::kIpc, half * 2, &owned) == CUDA_SUCCESS ? uint64_t{1} : 0;
  });
  // The second half may be refused while the first owner lives: by its own figures the card holds that for it still.
  const bool good = rounds >= 1 && rounds <= 2 && closed == CUDA_SUCCESS && again == 1;
  std::printf("%-34s %llu times %llu MiB of %llu, closed=%d, all again: %s %s\n", kNames[static_cast<int>(kind)],
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(half / kMiB),
              static_cast<unsigned long long>(before / kMiB), closed, again == 1 ? "yes" : "no", good ? "ok" : "WRONG");
  return good;
}

pid_t start_other(int* socket) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) std::exit(97);
  const pid_t other = ::fork();
  if (other == 0) {
    ::close(ends[0]);
    serve(ends[1]);
  }
  ::close(ends[1]);
  *socket = ends[0];
  Answer ready = {};
  if (::read(ends[0], &ready, sizeof ready) != sizeof ready) std::exit(96);
  return other;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t limit = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0) * kMiB;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return 97;
  int sockets[2];
  pid_t others[2];
  for (int i = 0; i < 2; ++i) others[i] = start_other(&sockets[i]);
  if (argc < 3 && !enter_cuda()) return 96;
  int wrong = 0;
  for (int kind = 0; kind < static_cast<int>(Kind::kEnd); ++kind) {
    const bool good = argc < 3 ? check(static_cast<Kind>(kind), sockets, limit)
                               : outlive(static_cast<Kind>(kind), sockets[0], std::strcmp(argv[2], "end") == 0);
    if (!good) ++wrong;
  }
  for (const int socket : sockets) ::close(socket);
  for (const pid_t other : others) ::waitpid(other, nullptr, 0);
  std::printf("%d shared kinds, %d wrong\n", static_cast<int>(Kind::kEnd), wrong);
  return wrong;
}
