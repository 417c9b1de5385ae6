/* What a container sees of its cards, asked of the driver and printed: one small program that any C library can link.
 *
 *   card_probe [--alloc MIB] [--fill] [--sleep SECONDS]
 *
 * Prints "init CODE", "devices N", one line "card INDEX UUID TOTAL_MIB FREE_MIB" each, with --alloc "alloc CODE", with
 * --fill "filled MIB CODE" (pieces of 64 MiB until one is refused). Exit status 0 unless options are wrong: the codes are
 * the answer. Declarations are our own, from the driver interface's documentation. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Init)(unsigned);
typedef int (*Count)(int *);
typedef int (*Get)(int *, int);
typedef int (*Uuid)(unsigned char *, int);
typedef int (*Create)(void **, unsigned, int);
typedef int (*Info)(size_t *, size_t *);
typedef int (*Alloc)(unsigned long long *, size_t);

static void *library;
static void *need(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    printf("missing %s\n", name);
    exit(0);
  }
  return found;
}

int main(int argc, char **argv) {
  long alloc_mib = 0, sleep_s = 0;
  int fill = 0;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--fill") == 0) fill = 1;
    else if (strcmp(argv[i], "--alloc") == 0 && i + 1 < argc) alloc_mib = atol(argv[++i]);
    else if (strcmp(argv[i], "--sleep") == 0 && i + 1 < argc) sleep_s = atol(argv[++i]);
    else return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    printf("no library: %s\n", dlerror());
    return 0;
  }
  int code = ((Init)need("cuInit"))(0), count = 0;
  printf("init %d\n", code);
  if (code != 0) return 0;
  ((Count)need("cuDeviceGetCount"))(&count);
  printf("devices %d\n", count);
  for (int i = 0; i < count; ++i) {
    int device = 0;
    unsigned char id[16] = {0};
    void *context = NULL;
    size_t free_bytes = 0, total_bytes = 0;
    ((Get)need("cuDeviceGet"))(&device, i);
    ((Uuid)need("cuDeviceGetUuid_v2"))(id, device);
    code = ((Create)need("cuCtxCreate_v2"))(&context, 0, device);
    if (code == 0) code = ((Info)need("cuMemGetInfo_v2"))(&free_bytes, &total_bytes);
    printf("card %d GPU-", i);
    for (int b = 0; b < 16; ++b) printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", id[b]);
    printf(" %zu %zu\n", total_bytes >> 20, free_bytes >> 20);
    if (code != 0) printf("context %d\n", code);
  }
  unsigned long long pointer = 0;
  Alloc allocate = (Alloc)need("cuMemAlloc_v2");
  if (alloc_mib > 0) printf("alloc %d\n", allocate(&pointer, (size_t)alloc_mib << 20));
  if (fill) {
    long filled = 0;
    while ((code = allocate(&pointer, (size_t)64 << 20)) == 0) filled += 64;
    printf("filled %ld %d\n", filled, code);
  }
  if (sleep_s > 0) sleep((unsigned)sleep_s);
  return 0;
}
