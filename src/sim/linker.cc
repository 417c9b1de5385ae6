// The linker interface: pieces of code go in, one image comes out. The simulated card reads images only for the names
// and costs of kernels, so linking is putting texts one after the other; a single piece comes out as it went in.

#include <cstring>
#include <fstream>
#include <sstream>

#include "sim/api.h"
#include "sim/image.h"

namespace sluice::sim {
namespace {

struct Link {
  std::string text;    // PTX so far
  std::string binary;  // the last piece that is no text
  std::string output;
  bool complete = false;
  void** info_log_bytes = nullptr;  // places in the caller's option list that get the lengths of logs
  void** error_log_bytes = nullptr;
};

struct LinkState {
  HandlePool<Link> links;
};

LinkState& link_state(Process& process) {
  if (process.link_state == nullptr) process.link_state = std::make_shared<LinkState>();
  return *static_cast<LinkState*>(process.link_state.get());
}

Link* find_link(Call& call, CUlinkState handle) {
  ObjectsLock lock(call.process);
  return link_state(call.process).links.find(reinterpret_cast<void*>(handle));
}

CUresult add(Link& link, CUjitInputType type, std::string_view piece) {
  if (link.complete) return CUDA_ERROR_INVALID_HANDLE;
  if (piece.empty()) return CUDA_ERROR_INVALID_IMAGE;
  if (type < CU_JIT_INPUT_CUBIN || type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_JIT_INPUT_PTX) {
    // The terminating zero, if any, would end the whole.
    link.text.append(piece.substr(0, piece.find('\0'))).append("\n");
  } else {
    link.binary.assign(piece);
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::sim

using namespace sluice::sim;

extern "C" {

CUresult sim_cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values, CUlinkState* out) {
  SIM_ENTER(cuLinkCreate_v2, kContext, Charge::kCreate);
  if (out == nullptr || (count != 0 && (options == nullptr || values == nullptr))) return CUDA_ERROR_INVALID_VALUE;
  ObjectsLock lock(call.process);
  Link* link = link_state(call.process).links.make();
  if (link == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) link->info_log_bytes = &values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) link->error_log_bytes = &values[i];
  }
  *out = reinterpret_cast<CUlinkState>(link);
  return CUDA_SUCCESS;
}

CUresult sim_cuLinkCreate(unsigned count, CUjit_option* options, void** values, CUlinkState* out) {
  return sim_cuLinkCreate_v2(count, options, values, out);
}

CUresult sim_cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void* data, size_t size, const char*, unsigned,
                              CUjit_option*, void**) {
  SIM_ENTER(cuLinkAddData_v2, kContext);
  Link* link = find_link(call, handle);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(*link, type, {static_cast<const char*>(data), size});
}

CUresult sim_cuLinkAddData(CUlinkState handle, CUjitInputType type, void* data, size_t size, const char* name,
                           unsigned count, CUjit_option* options, void** values) {
  return sim_cuLinkAddData_v2(handle, type, data, size, name, count, options, values);
}

CUresult sim_cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char* path, unsigned, CUjit_option*,
                              void**) {
  SIM_ENTER(cuLinkAddFile_v2, kContext);
  Link* link = find_link(call, handle);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::ostringstream content;
  content << file.rdbuf();
  return add(*link, type, content.str());
}

CUresult sim_cuLinkAddFile(CUlinkState handle, CUjitInputType type, const char* path, unsigned count,
                           CUjit_option* options, void** values) {
  return sim_cuLinkAddFile_v2(handle, type, path, count, options, values);
}

CUresult sim_cuLinkComplete(CUlinkState handle, void** image, size_t* size) {
  SIM_ENTER(cuLinkComplete, kContext, Charge::kLoad);
  Link* link = find_link(call, handle);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (link->text.empty() && link->binary.empty()) return CUDA_ERROR_INVALID_IMAGE;
  link->complete = true;
  link->output = link->text.empty() ? link->binary : link->text;
  if (link->info_log_bytes != nullptr) *link->info_log_bytes = nullptr;
  if (link->error_log_bytes != nullptr) *link->error_log_bytes = nullptr;
  *image = link->output.data();
  if (size != nullptr) *size = link->output.size() + 1;
  return CUDA_SUCCESS;
}

CUresult sim_cuLinkDestroy(CUlinkState handle) {
  SIM_ENTER(cuLinkDestroy, kDriver);
  Link* link = find_link(call, handle);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ObjectsLock lock(call.process);
  link_state(call.process).links.free(link);
  return CUDA_SUCCESS;
}

}  // extern "C"
