#include "binders/ways.h"

#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

namespace binders {
namespace {

constexpr char kDriver[] = "libcuda.so.1";
constexpr int kVersion = 12000;

void report(const char* name, const ProbeOutcome& outcome) {
  probe_print(name, &outcome);
}

ProbeOutcome failed(const char* call) {
  return {call, static_cast<int>(CUDA_ERROR_NOT_FOUND), 0, 0, -1, ""};
}

// Fills the calls by a look-up that takes the base name and the exported symbol.
template <typename Find>
ProbeCalls found(Find find) {
  return {reinterpret_cast<decltype(&cuInit)>(find("cuInit", "cuInit")),
          reinterpret_cast<decltype(&cuDeviceGet)>(find("cuDeviceGet", "cuDeviceGet")),
          reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(
              find("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain")),
          reinterpret_cast<decltype(&cuCtxSetCurrent)>(find("cuCtxSetCurrent", "cuCtxSetCurrent")),
          reinterpret_cast<decltype(&cuMemGetInfo_v2)>(find("cuMemGetInfo", "cuMemGetInfo_v2")),
          reinterpret_cast<decltype(&cuMemAlloc_v2)>(find("cuMemAlloc", "cuMemAlloc_v2")),
          reinterpret_cast<decltype(&cuMemFree_v2)>(find("cuMemFree", "cuMemFree_v2"))};
}

void by_dlsym(const char* name, void* handle, const Arguments& arguments) {
  if (handle == nullptr) return report(name, failed("dlopen"));
  const ProbeCalls calls = found([handle](const char*, const char* symbol) { return dlsym(handle, symbol); });
  report(name, probe(&calls, arguments.allocate_bytes));
}

void dlopen_local(const char* name, const Arguments& arguments) {
  by_dlsym(name, dlopen(kDriver, RTLD_NOW | RTLD_LOCAL), arguments);
}
void dlopen_lazy_global(const char* name, const Arguments& arguments) {
  if (dlopen(kDriver, RTLD_LAZY | RTLD_GLOBAL) == nullptr) return report(name, failed("dlopen"));
  const ProbeCalls calls = found([](const char*, const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); });
  report(name, probe(&calls, arguments.allocate_bytes));
}
void dlopen_noload(const char* name, const Arguments& arguments) {
  if (dlopen(kDriver, RTLD_NOW) == nullptr) return report(name, failed("dlopen"));
  by_dlsym(name, dlopen(kDriver, RTLD_NOW | RTLD_NOLOAD), arguments);
}
void deepbind(const char* name, const Arguments& arguments) {
  by_dlsym(name, dlopen(kDriver, RTLD_NOW | RTLD_DEEPBIND), arguments);
}
void namespaced(const char* name, const Arguments& arguments) {
  by_dlsym(name, dlmopen(LM_ID_NEWLM, kDriver, RTLD_NOW), arguments);
}
void unversioned(const char* name, const Arguments& arguments) {
  by_dlsym(name, dlopen("libcuda.so", RTLD_NOW), arguments);
}

// As programs do that look for the file themselves: LD_LIBRARY_PATH, then the usual library folders.
std::string search_driver() {
  std::vector<std::string> folders;
  const char* const path = getenv("LD_LIBRARY_PATH");
  std::string rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    folders.push_back(rest.substr(0, end));
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/compat", "/usr/lib"}) {
    folders.emplace_back(folder);
  }
  for (const std::string& folder : folders) {
    std::error_code error;
    const std::filesystem::path file = std::filesystem::path(folder) / kDriver;
    if (!folder.empty() && std::filesystem::exists(file, error)) return std::filesystem::absolute(file, error).string();
  }
  return "";
}
void absolute(const char* name, const Arguments& arguments) {
  const std::string path = arguments.driver_path.empty() ? search_driver() : arguments.driver_path;
  if (path.empty()) return report(name, failed("search"));
  by_dlsym(name, dlopen(path.c_str(), RTLD_NOW), arguments);
}

void by_get_proc_address_v2(const char* name, const Arguments& arguments, unsigned long long flags) {
  void* const handle = dlopen(kDriver, RTLD_NOW);
  auto* const get = handle == nullptr
                        ? nullptr
                        : reinterpret_cast<decltype(&cuGetProcAddress_v2)>(dlsym(handle, "cuGetProcAddress_v2"));
  if (get == nullptr) return report(name, failed("cuGetProcAddress_v2"));
  const ProbeCalls calls = found([&](const char* base, const char*) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    return get(base, &address, kVersion, flags, &status) == CUDA_SUCCESS ? address : nullptr;
  });
  report(name, probe(&calls, arguments.allocate_bytes));
}
void v2_default(const char* name, const Arguments& arguments) {
  by_get_proc_address_v2(name, arguments, 0);
}
void v2_legacy(const char* name, const Arguments& arguments) {
  by_get_proc_address_v2(name, arguments, 1);
}
void v2_per_thread(const char* name, const Arguments& arguments) {
  by_get_proc_address_v2(name, arguments, 2);
}

void by_get_proc_address_v1(const char* name, const Arguments& arguments, decltype(&cuGetProcAddress) get) {
  if (get == nullptr) return report(name, failed("cuGetProcAddress"));
  const ProbeCalls calls = found([&](const char* base, const char*) {
    void* address = nullptr;
    return get(base, &address, 11040, 0) == CUDA_SUCCESS ? address : nullptr;
  });
  report(name, probe(&calls, arguments.allocate_bytes));
}
void v1(const char* name, const Arguments& arguments) {
  void* const handle = dlopen(kDriver, RTLD_NOW);
  by_get_proc_address_v1(
      name, arguments,
      handle == nullptr ? nullptr : reinterpret_cast<decltype(&cuGetProcAddress)>(dlsym(handle, "cuGetProcAddress")));
}
// Asks the look-up for itself, in the form of CUDA 11.3, and looks everything up through what it gave.
void v2_gives_v1(const char* name, const Arguments& arguments) {
  void* const handle = dlopen(kDriver, RTLD_NOW);
  auto* const get = handle == nullptr
                        ? nullptr
                        : reinterpret_cast<decltype(&cuGetProcAddress_v2)>(dlsym(handle, "cuGetProcAddress_v2"));
  void* first = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (get == nullptr || get("cuGetProcAddress", &first, 11030, 0, &status) != CUDA_SUCCESS) first = nullptr;
  by_get_proc_address_v1(name, arguments, reinterpret_cast<decltype(&cuGetProcAddress)>(first));
}

using Plugin = void(ProbeOutcome*, unsigned long long);
void by_plugin(const char* name, const Arguments& arguments, void* handle) {
  auto* const plugin = handle == nullptr ? nullptr : reinterpret_cast<Plugin*>(dlsym(handle, "binder_plugin"));
  if (plugin == nullptr) return report(name, failed("dlopen"));
  ProbeOutcome outcome{};
  plugin(&outcome, arguments.allocate_bytes);
  report(name, outcome);
}
void plugin_deepbind(const char* name, const Arguments& arguments) {
  by_plugin(name, arguments, dlopen((arguments.folder + "/libbinder_plugin.so").c_str(), RTLD_NOW | RTLD_DEEPBIND));
}
void plugin_namespaced(const char* name, const Arguments& arguments) {
  by_plugin(name, arguments, dlmopen(LM_ID_NEWLM, (arguments.folder + "/libbinder_plugin.so").c_str(), RTLD_NOW));
}

void become(const char* name, const Arguments& arguments, const char* program) {
  const std::string path = arguments.folder + "/" + program;
  const std::string bytes = std::to_string(arguments.allocate_bytes);
  execl(path.c_str(), program, name, bytes.c_str(), static_cast<char*>(nullptr));
  report(name, failed("exec"));
}
void linked(const char* name, const Arguments& arguments) {
  become(name, arguments, "binder_linked");
}
void next(const char* name, const Arguments& arguments) {
  become(name, arguments, "binder_next");
}
void static_program(const char* name, const Arguments& arguments) {
  become(name, arguments, "binder_static");
}

// All of the environment gone but what stands for an installed driver and its card where those are simulated.
void cleared(const char* name, const Arguments& arguments) {
  std::vector<std::string> kept;
  for (const char* variable : {"LD_LIBRARY_PATH", "SLUICE_SIM_DIR"}) {
    const char* const value = getenv(variable);
    if (value != nullptr) kept.push_back(std::string(variable) + "=" + value);
  }
  clearenv();
  for (std::string& assignment : kept) putenv(assignment.data());
  become(name, arguments, "binder_linked");
}

// Runs the body in a forked child and waits for it.
template <typename Body>
void forked(Body body) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
}
void fork_before(const char* name, const Arguments& arguments) {
  forked([&] { dlopen_local(name, arguments); });
}
void fork_loaded(const char* name, const Arguments& arguments) {
  void* const handle = dlopen(kDriver, RTLD_NOW);
  forked([&] { by_dlsym(name, handle, arguments); });
}
// The parent has used the card: in the child the driver answers CUDA_ERROR_NOT_INITIALIZED, whatever it is asked.
void fork_after(const char* name, const Arguments& arguments) {
  void* const handle = dlopen(kDriver, RTLD_NOW);
  if (handle == nullptr) return report(name, failed("dlopen"));
  const ProbeCalls calls = found([handle](const char*, const char* symbol) { return dlsym(handle, symbol); });
  const ProbeOutcome parent = probe(&calls, 0);
  if (parent.code != 0) return report(name, parent);
  forked([&] { report(name, probe(&calls, arguments.allocate_bytes)); });
}

constexpr Way kWays[] = {
    {"linked", "DT_NEEDED libcuda.so.1", linked},
    {"dlopen", "dlopen and dlsym", dlopen_local},
    {"dlopen-lazy-global", "dlopen RTLD_LAZY | RTLD_GLOBAL, dlsym(RTLD_DEFAULT)", dlopen_lazy_global},
    {"dlopen-noload", "dlopen RTLD_NOLOAD of the loaded driver", dlopen_noload},
    {"dlopen-deepbind", "dlopen RTLD_DEEPBIND", deepbind},
    {"dlmopen", "a link-map list of its own", namespaced},
    {"unversioned", "dlopen of libcuda.so", unversioned},
    {"absolute", "dlopen by the path of the file", absolute},
    {"get-proc-address-v1", "cuGetProcAddress of CUDA 11.3", v1},
    {"get-proc-address-v2", "cuGetProcAddress_v2, flag 0", v2_default},
    {"get-proc-address-v2-legacy", "cuGetProcAddress_v2, flag 1: legacy stream", v2_legacy},
    {"get-proc-address-v2-per-thread", "cuGetProcAddress_v2, flag 2: per-thread stream", v2_per_thread},
    {"get-proc-address-itself", "cuGetProcAddress_v2 asked for cuGetProcAddress", v2_gives_v1},
    {"plugin-deepbind", "plug-in with DT_NEEDED, loaded RTLD_DEEPBIND", plugin_deepbind},
    {"plugin-dlmopen", "plug-in with DT_NEEDED, in a link-map list of its own", plugin_namespaced},
    {"rtld-next", "behind a library that wraps a call by RTLD_NEXT", next},
    {"cleared-environment", "executed with an empty environment", cleared},
    {"fork-before", "child of a process that has not loaded the driver", fork_before},
    {"fork-loaded", "child of a process that loaded, but did not use the driver", fork_loaded},
    {"fork-after", "child of a process that used the card: CUDA_ERROR_NOT_INITIALIZED (3) expected", fork_after},
    {"static", "a statically linked program that calls dlopen", static_program},
};

}  // namespace

std::span<const Way> ways() {
  return kWays;
}

}  // namespace binders
