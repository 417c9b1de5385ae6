// The CUDA driver interface as compiled programs see it: result codes, handles, structures and the numbers that the
// published header defines as macros. What Sluice puts in front of a driver, and the simulated card behind it, must
// agree with such programs to the byte, but the vendor's header may not be part of this tree: these declarations are
// our own, of the facts alone, and tests/abi compares them with the published header.
//
// The prototypes of all functions are generated from cuda_names.tsv into abi/cuda_prototypes.h in the build folder.

#ifndef SLUICE_ABI_CUDA_H_
#define SLUICE_ABI_CUDA_H_

#include "abi/cuda_enums.h"
#include "abi/cuda_flags.h"
#include "abi/cuda_structs.h"

// The version of the interface described here: 1000 x major + 10 x minor.
#define CUDA_VERSION 13050

// Stream handles that stand for a rule instead of naming an object.
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

// Ends and contents of the `extra` list of a launch: kernel parameters as one packed buffer.
#define CU_LAUNCH_PARAM_END ((void*)0x0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void*)0x1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void*)0x2)
#define CU_LAUNCH_KERNEL_REQUIRED_BLOCK_DIM 1

// Bytes in a handle that names memory or an event to another process.
#define CU_IPC_HANDLE_SIZE 64

// Flags of cuMemHostAlloc and cuMemHostRegister.
#define CU_MEMHOSTALLOC_PORTABLE 0x01
#define CU_MEMHOSTALLOC_DEVICEMAP 0x02
#define CU_MEMHOSTALLOC_WRITECOMBINED 0x04
#define CU_MEMHOSTREGISTER_PORTABLE 0x01
#define CU_MEMHOSTREGISTER_DEVICEMAP 0x02
#define CU_MEMHOSTREGISTER_IOMEMORY 0x04
#define CU_MEMHOSTREGISTER_READ_ONLY 0x08

// Flags of arrays. SPARSE and DEFERRED_MAPPING arrays own no memory until some is mapped to them.
#define CUDA_ARRAY3D_LAYERED 0x01
#define CUDA_ARRAY3D_SURFACE_LDST 0x02
#define CUDA_ARRAY3D_CUBEMAP 0x04
#define CUDA_ARRAY3D_TEXTURE_GATHER 0x08
#define CUDA_ARRAY3D_DEPTH_TEXTURE 0x10
#define CUDA_ARRAY3D_COLOR_ATTACHMENT 0x20
#define CUDA_ARRAY3D_SPARSE 0x40
#define CUDA_ARRAY3D_DEFERRED_MAPPING 0x80
#define CUDA_ARRAY3D_VIDEO_ENCODE_DECODE 0x100
#define CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL 0x1

// Flags of external memory, physical memory and cooperative launches over several devices.
#define CUDA_EXTERNAL_MEMORY_DEDICATED 0x1
#define CU_MEM_CREATE_USAGE_TILE_POOL 0x1
#define CU_MEM_CREATE_USAGE_HW_DECOMPRESS 0x2
#define CU_MEM_CREATE_USAGE_GPU_DIRECT_RDMA_OVER_PCIE 0x4
#define CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC 0x01
#define CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC 0x02

// Graphs: default assignment of conditional handles, ports of edges that leave a kernel node.
#define CU_GRAPH_COND_ASSIGN_DEFAULT 0x1
#define CU_GRAPH_KERNEL_NODE_PORT_DEFAULT 0
#define CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC 1
#define CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER 2

// Numbers that stand for no device.
#define CU_DEVICE_CPU ((CUdevice) - 1)
#define CU_DEVICE_INVALID ((CUdevice) - 2)

#endif  // SLUICE_ABI_CUDA_H_
