/* A library whose constructor does what a program under a grant of 10487 MiB does, for programs of any C library: built
 * the way probe.c is, loaded by LD_PRELOAD into /bin/true. Prints the card's size in MiB by two calls, the answers to
 * 11 GiB, 9 GiB, 9 GiB more, giving back, and 9 GiB again, and the most that the driver behind ever gave, or which step
 * failed. */
typedef unsigned long size;
typedef unsigned long long address;
extern void* dlopen(const char*, int);
extern void* dlsym(void*, const char*);
extern char* dlerror(void);
extern unsigned long strlen(const char*);
extern long write(int, const void*, unsigned long);
extern void _exit(int);

static void say(const char* text) {
  if (write(1, text, strlen(text)) < 0) return;
}

static void say_number(unsigned long value) {
  char digits[24];
  int at = 23;
  digits[at] = '\0';
  do {
    digits[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0);
  digits[--at] = ' ';
  say(digits + at);
}

static void* find(void* library, const char* name) {
  void* found = library != 0 ? dlsym(library, name) : 0;
  if (found == 0) {
    say("no ");
    say(name);
    say(": ");
    say(dlerror());
    _exit(3);
  }
  return found;
}

static void must(const char* step, int result) {
  if (result == 0) return;
  say(step);
  say_number((unsigned long)result);
  _exit(4);
}

__attribute__((constructor)) static void probe(void) {
  const size gib = 1ul << 30, mib = 1ul << 20;
  void* cuda = dlopen("libcuda.so.1", 2);
  int (*start)(unsigned) = (int (*)(unsigned))find(cuda, "cuInit");
  int (*size_of)(size*, int) = (int (*)(size*, int))find(cuda, "cuDeviceTotalMem_v2");
  int (*create)(void**, unsigned, int) = (int (*)(void**, unsigned, int))find(cuda, "cuCtxCreate_v2");
  int (*info)(size*, size*) = (int (*)(size*, size*))find(cuda, "cuMemGetInfo_v2");
  int (*take)(address*, size) = (int (*)(address*, size))find(cuda, "cuMemAlloc_v2");
  int (*give)(address) = (int (*)(address))find(cuda, "cuMemFree_v2");
  size total = 0, left = 0, in_all = 0;
  void* context = 0;
  address first = 0, other = 0;
  must("cuInit", start(0));
  must("cuDeviceTotalMem", size_of(&total, 0));
  must("cuCtxCreate", create(&context, 0, 0));
  must("cuMemGetInfo", info(&left, &in_all));
  say("limit");
  say_number(total / mib);
  say_number(in_all / mib);
  say_number((unsigned long)take(&other, 11 * gib));
  say_number((unsigned long)take(&first, 9 * gib));
  say_number((unsigned long)take(&other, 9 * gib));
  say_number((unsigned long)give(first));
  say_number((unsigned long)take(&first, 9 * gib));
  int (*most)(void) = (int (*)(void))find(dlopen("/run/sluice/container/driver/real-cuda", 2), "small_driver_most_mib");
  say_number((unsigned long)most());
  say("\n");
}
