/* A library whose constructor opens the two guest libraries and calls them, for programs of any C library: it is built the
 * way the guest is (unversioned imports, stub libraries), so one file runs in roots of every age as LD_PRELOAD of
 * /bin/true. Writes one line: what cuInit, nvmlInit_v2 and a name that is not hooked answered, or which step failed. */
typedef void *(*open_function)(const char *, int);
extern void *dlopen(const char *, int);
extern void *dlsym(void *, const char *);
extern char *dlerror(void);
extern char *getenv(const char *);
extern unsigned long strlen(const char *);
extern long write(int, const void *, unsigned long);

static void say(const char *text) {
  if (write(1, text, strlen(text)) < 0) return;
}

static void say_number(int value) {
  char digits[12];
  int at = 11;
  digits[at] = '\0';
  do {
    digits[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0);
  say(digits + at);
}

static void ask(void *library, const char *name) {
  int (*function)(unsigned long) = (int (*)(unsigned long))dlsym(library, name);
  say(name);
  say("=");
  if (function == 0) {
    say("missing ");
    return;
  }
  say_number(function(0));
  say(" ");
}

__attribute__((constructor)) static void probe(void) {
  const char *cuda = getenv("SLUICE_PROBE_CUDA");
  const char *nvml = getenv("SLUICE_PROBE_NVML");
  if (cuda == 0 || nvml == 0) return;
  void *first = dlopen(cuda, 2);
  void *second = dlopen(nvml, 2);
  if (first == 0 || second == 0) {
    say("cannot load: ");
    say(dlerror());
    say("\n");
    return;
  }
  ask(first, "cuInit");
  ask(first, "cuCtxSetCurrent");
  ask(second, "nvmlInit_v2");
  ask(second, "nvmlDeviceGetFanSpeed");
  say("\n");
}
