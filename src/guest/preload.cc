// libsluice-preload.so: in preload delivery, sends the ways of opening the driver that go round its SONAME to our
// libraries. A program that names the driver by SONAME (dlopen("libcuda.so.1"), DT_NEEDED) meets the preloaded ones by
// itself; one that says "libcuda.so" or an absolute path would get the real file.
//
// The shim is not a wrapper: it changes the file name and jumps, so that the C library sees the program as the caller.
// RTLD_NEXT look-ups and the RUNPATH of the caller depend on that. With a bind mount over the driver this library is
// not needed and not loaded.
#include <dlfcn.h>

#include <cstdint>

#include "guest/text.h"
#include "page/grant.h"

namespace {

using sluice::guest::starts_with;
using sluice::guest::text_equal;
using sluice::guest::text_length;

constexpr char kCuda[] = "libcuda.so.1";
constexpr char kNvml[] = "libnvidia-ml.so.1";

// Full paths of our libraries, which lie beside this one: in a new namespace their SONAMEs are not loaded yet, and the
// search path would lead to the real driver.
constexpr size_t kPathBytes = 512;
char cuda_path[kPathBytes];
char nvml_path[kPathBytes];

void put_beside(const char* own, const char* name, char* out) {
  size_t directory = 0;
  for (size_t i = 0; own[i] != '\0'; ++i) {
    if (own[i] == '/') directory = i + 1;
  }
  if (directory + text_length(name) + 1 > kPathBytes) return;
  for (size_t i = 0; i < text_length(name); ++i) out[directory + i] = name[i];
  for (size_t i = directory; i-- > 0;) out[i] = own[i];  // the first byte last: a reader sees nothing or all
}

// True for NAME, NAME.1, NAME.580.65.06 and so on.
bool is_library(const char* file, const char* name) {
  if (!starts_with(file, name)) return false;
  for (const char* rest = file + text_length(name); *rest != '\0'; ++rest) {
    if (*rest != '.' && (*rest < '0' || *rest > '9')) return false;
  }
  return true;
}

}  // namespace

extern "C" {

// The name to open instead. Our own library reads the real driver's directory, which is left alone.
__attribute__((visibility("hidden"))) const char* sluice_preload_name(const char* path, uint64_t new_namespace) {
  if (path == nullptr || starts_with(path, sluice::page::kDriverDirectory)) return path;
  const char* file = path;
  for (const char* at = path; *at != '\0'; ++at) {
    if (*at == '/') file = at + 1;
  }
  const bool cuda = is_library(file, "libcuda.so");
  if (!cuda && !is_library(file, "libnvidia-ml.so")) return path;
  if (new_namespace == 0) return cuda ? kCuda : kNvml;
  Dl_info own = {};
  if (cuda_path[0] == '\0' && dladdr(reinterpret_cast<void*>(&sluice_preload_name), &own) != 0 &&
      own.dli_fname != nullptr) {
    put_beside(own.dli_fname, kCuda, cuda_path);
    put_beside(own.dli_fname, kNvml, nvml_path);
  }
  const char* beside = cuda ? cuda_path : nvml_path;
  return beside[0] != '\0' ? beside : (cuda ? kCuda : kNvml);
}

__attribute__((visibility("hidden"))) void* sluice_preload_real[2] = {nullptr, nullptr};

// 0: dlopen, 1: dlmopen. The next definition after this library, which is the C library's or another shim's.
__attribute__((visibility("hidden"))) void* sluice_preload_find(uint64_t which) {
  void* real = dlsym(RTLD_NEXT, which == 0 ? "dlopen" : "dlmopen");
  __atomic_store_n(&sluice_preload_real[which], real, __ATOMIC_RELEASE);
  return real;
}

// dlopen(file, mode): the name is the first argument. dlmopen(namespace, file, mode): the second.
__asm__(
    ".text\n"
    ".globl dlopen\n.type dlopen, @function\n.p2align 4\n"
    "dlopen:\n"
    "  endbr64\n"
    "  pushq %rsi\n"
    "  xorl %esi, %esi\n"
    "  call sluice_preload_name\n"
    "  movq %rax, %rdi\n"
    "  movq sluice_preload_real(%rip), %rax\n"
    "  testq %rax, %rax\n"
    "  jne 1f\n"
    "  pushq %rdi\n"
    "  subq $8, %rsp\n"
    "  xorl %edi, %edi\n"
    "  call sluice_preload_find\n"
    "  addq $8, %rsp\n"
    "  popq %rdi\n"
    "1: popq %rsi\n"
    "  jmp *%rax\n"
    ".size dlopen, .-dlopen\n"
    ".globl dlmopen\n.type dlmopen, @function\n.p2align 4\n"
    "dlmopen:\n"
    "  endbr64\n"
    "  pushq %rdi\n"
    "  pushq %rdx\n"
    "  subq $8, %rsp\n"
    "  movq %rdi, %rax\n"
    "  movq %rsi, %rdi\n"
    "  movq %rax, %rsi\n"  // LM_ID_BASE is 0
    "  call sluice_preload_name\n"
    "  addq $8, %rsp\n"
    "  movq %rax, %rsi\n"
    "  movq sluice_preload_real+8(%rip), %rax\n"
    "  testq %rax, %rax\n"
    "  jne 1f\n"
    "  pushq %rsi\n"
    "  movl $1, %edi\n"
    "  call sluice_preload_find\n"
    "  popq %rsi\n"
    "1: popq %rdx\n"
    "  popq %rdi\n"
    "  jmp *%rax\n"
    ".size dlmopen, .-dlmopen\n");

}  // extern "C"
