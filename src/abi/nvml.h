// The NVIDIA management interface (NVML) as compiled programs see it. Like abi/cuda.h these are our own declarations of
// the facts, compared with the published header by tests/abi. Prototypes: abi/nvml_prototypes.h in the build folder,
// generated from nvml_names.tsv.

#ifndef SLUICE_ABI_NVML_H_
#define SLUICE_ABI_NVML_H_

#include "abi/nvml_enums.h"
#include "abi/nvml_structs.h"

// What a caller puts into the `version` word of the versioned structure `type`: its size and the version's number.
#define NVML_VERSION_WORD(type, number) ((unsigned int)(sizeof(type) | ((number) << 24U)))

#define NVML_API_VERSION 13
#define NVML_VALUE_NOT_AVAILABLE (-1)

// nvmlInitWithFlags.
#define NVML_INIT_FLAG_NO_GPUS 1
#define NVML_INIT_FLAG_NO_ATTACH 2

// Sizes of buffers, the final zero included.
#define NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE 32
#define NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE 16
#define NVML_DEVICE_UUID_BUFFER_SIZE 80
#define NVML_DEVICE_UUID_V2_BUFFER_SIZE 96
#define NVML_DEVICE_UUID_ASCII_LEN 41
#define NVML_DEVICE_UUID_BINARY_LEN 16
#define NVML_DEVICE_NAME_BUFFER_SIZE 64
#define NVML_DEVICE_NAME_V2_BUFFER_SIZE 96
#define NVML_DEVICE_SERIAL_BUFFER_SIZE 30
#define NVML_DEVICE_PART_NUMBER_BUFFER_SIZE 80
#define NVML_DEVICE_VBIOS_VERSION_BUFFER_SIZE 32
#define NVML_DEVICE_INFOROM_VERSION_BUFFER_SIZE 16
#define NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE 80
#define NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE 80
#define NVML_GSP_FIRMWARE_VERSION_BUF_SIZE 64

// The two spellings of a UUID that nvmlDeviceGetHandleByUUIDV takes.
#define NVML_UUID_TYPE_ASCII 1
#define NVML_UUID_TYPE_BINARY 2

// Metrics of nvmlGpmMetricsGet that the simulated card knows: percent of the time between two samples.
#define NVML_GPM_METRIC_GRAPHICS_UTIL 1
#define NVML_GPM_METRIC_SM_UTIL 2
#define NVML_GPM_METRIC_SM_OCCUPANCY 3
#define NVML_GPM_METRIC_DRAM_BW_UTIL 10

// nvmlDeviceGetArchitecture.
#define NVML_DEVICE_ARCH_VOLTA 5
#define NVML_DEVICE_ARCH_TURING 6
#define NVML_DEVICE_ARCH_AMPERE 7
#define NVML_DEVICE_ARCH_ADA 8
#define NVML_DEVICE_ARCH_HOPPER 9
#define NVML_DEVICE_ARCH_BLACKWELL 10
#define NVML_DEVICE_ARCH_UNKNOWN 0xffffffff

// nvmlDeviceGetBusType, nvmlDeviceGetPowerSource.
#define NVML_BUS_TYPE_PCIE 2
#define NVML_POWER_SOURCE_AC 0

// Shapes of fixed arrays inside structures and of answers.
#define NVML_MAX_GPU_UTILIZATIONS 8
#define NVML_MAX_GPU_PERF_PSTATES 16
#define NVML_MAX_THERMAL_SENSORS_PER_GPU 3
#define NVML_NVLINK_MAX_LINKS 36
#define NVML_GPM_METRICS_GET_VERSION 1
#define NVML_GPM_SUPPORT_VERSION 1
#define NVML_GPU_INSTANCE_ID_ANY 0xFFFFFFFFU
#define NVML_COMPUTE_INSTANCE_ID_ANY 0xFFFFFFFFU
#define NVML_DEVICE_MIG_DISABLE 0
#define NVML_AFFINITY_SCOPE_NODE 0
#define NVML_AFFINITY_SCOPE_SOCKET 1

// nvmlDeviceGetFieldValues: the fields that the simulated card knows.
#define NVML_FI_DEV_ECC_CURRENT 1
#define NVML_FI_DEV_ECC_PENDING 2
#define NVML_FI_DEV_ECC_SBE_VOL_TOTAL 3
#define NVML_FI_DEV_ECC_DBE_VOL_TOTAL 4
#define NVML_FI_DEV_ECC_SBE_AGG_TOTAL 5
#define NVML_FI_DEV_ECC_DBE_AGG_TOTAL 6
#define NVML_FI_DEV_RETIRED_SBE 29
#define NVML_FI_DEV_RETIRED_DBE 30
#define NVML_FI_DEV_RETIRED_PENDING 31
#define NVML_FI_DEV_MEMORY_TEMP 82
#define NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION 83
#define NVML_FI_DEV_NVLINK_LINK_COUNT 91
#define NVML_FI_DEV_PCIE_REPLAY_COUNTER 94
#define NVML_FI_DEV_REMAPPED_COR 142
#define NVML_FI_DEV_REMAPPED_UNC 143
#define NVML_FI_DEV_REMAPPED_PENDING 144
#define NVML_FI_DEV_REMAPPED_FAILURE 145
#define NVML_FI_DEV_POWER_AVERAGE 185
#define NVML_FI_DEV_POWER_INSTANT 186
#define NVML_FI_DEV_POWER_MIN_LIMIT 187
#define NVML_FI_DEV_POWER_MAX_LIMIT 188
#define NVML_FI_DEV_POWER_DEFAULT_LIMIT 189
#define NVML_FI_DEV_POWER_CURRENT_LIMIT 190
#define NVML_FI_DEV_ENERGY 191
#define NVML_FI_DEV_GPU_TEMP 308
#define NVML_FI_MAX 310

// Bits of nvmlDeviceGetCurrentClocksEventReasons: why clocks are not higher.
#define nvmlClocksEventReasonNone 0x0ULL
#define nvmlClocksEventReasonGpuIdle 0x1ULL
#define nvmlClocksEventReasonApplicationsClocksSetting 0x2ULL
#define nvmlClocksEventReasonSwPowerCap 0x4ULL

// Bits of event types.
#define nvmlEventTypeXidCriticalError 0x8ULL

#endif  // SLUICE_ABI_NVML_H_
