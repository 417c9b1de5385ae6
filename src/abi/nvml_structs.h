// Handles and structures of the management interface (NVML), in the layout that compiled programs use (x86-64, 64-bit).
//
// Versioned structures start with a `version` word that the caller fills with size | version << 24; a library refuses
// a word that it does not know. tests/abi compares every size and every offset with the published header.

#ifndef SLUICE_ABI_NVML_STRUCTS_H_
#define SLUICE_ABI_NVML_STRUCTS_H_

#include <stddef.h>

#include "abi/nvml_enums.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nvmlDevice_st* nvmlDevice_t;
typedef struct nvmlEventSet_st* nvmlEventSet_t;
typedef struct nvmlGpmSample_st* nvmlGpmSample_t;

typedef union nvmlValue_t {
  double dVal;
  int siVal;
  unsigned int uiVal;
  unsigned long ulVal;
  unsigned long long ullVal;
  long long sllVal;
  unsigned short usVal;
} nvmlValue_t;

typedef struct nvmlFieldValue_t {
  unsigned int fieldId;
  unsigned int scopeId;
  long long timestamp;
  long long latencyUsec;
  nvmlValueType_t valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

typedef struct nvmlAccountingStats_t {
  unsigned int gpuUtilization;
  unsigned int memoryUtilization;
  unsigned long long maxMemoryUsage;
  unsigned long long time;
  unsigned long long startTime;
  unsigned int isRunning;
  unsigned int reserved[5];
} nvmlAccountingStats_t;

typedef struct nvmlAccountingStats_v2_t {
  unsigned int pid;
  unsigned int isRunning;
  unsigned int gpuUtilization;
  unsigned int memoryUtilization;
  unsigned long long maxMemoryUsage;
  unsigned int sampleCount;
  unsigned long long sumGpuUtil;
  unsigned long long sumFbUtil;
  unsigned long long time;
  unsigned long long startTime;
} nvmlAccountingStats_v2_t;

typedef struct nvmlDeviceAddressingMode_v1_t {
  unsigned int version;
  unsigned int value;
} nvmlDeviceAddressingMode_v1_t;

typedef nvmlDeviceAddressingMode_v1_t nvmlDeviceAddressingMode_t;

typedef unsigned int nvmlDeviceArchitecture_t;

typedef struct nvmlDeviceAttributes_t {
  unsigned int multiprocessorCount;
  unsigned int sharedCopyEngineCount;
  unsigned int sharedDecoderCount;
  unsigned int sharedEncoderCount;
  unsigned int sharedJpegCount;
  unsigned int sharedOfaCount;
  unsigned int gpuInstanceSliceCount;
  unsigned int computeInstanceSliceCount;
  unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct nvmlBAR1Memory_t {
  unsigned long long bar1Total;
  unsigned long long bar1Free;
  unsigned long long bar1Used;
} nvmlBAR1Memory_t;

typedef unsigned int nvmlBusType_t;

typedef struct nvmlC2cModeInfo_v1_t {
  unsigned int isC2cEnabled;
} nvmlC2cModeInfo_v1_t;

typedef struct nvmlDeviceCapabilities_v1_t {
  unsigned int version;
  unsigned int capMask;
} nvmlDeviceCapabilities_v1_t;

typedef nvmlDeviceCapabilities_v1_t nvmlDeviceCapabilities_t;

typedef struct nvmlClockOffset_v1_t {
  unsigned int version;
  nvmlClockType_t type;
  nvmlPstates_t pstate;
  int clockOffsetMHz;
  int minClockOffsetMHz;
  int maxClockOffsetMHz;
} nvmlClockOffset_v1_t;

typedef nvmlClockOffset_v1_t nvmlClockOffset_t;

typedef struct nvmlProcessInfo_v1_t {
  unsigned int pid;
  unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct nvmlProcessInfo_v2_t {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef nvmlProcessInfo_v2_t nvmlProcessInfo_t;

typedef struct nvmlCoolerInfo_v1_t {
  unsigned int version;
  unsigned int index;
  nvmlCoolerControl_t signalType;
  nvmlCoolerTarget_t target;
} nvmlCoolerInfo_v1_t;

typedef nvmlCoolerInfo_v1_t nvmlCoolerInfo_t;

typedef unsigned int nvmlAffinityScope_t;

typedef struct nvmlDeviceCurrentClockFreqs_v1_t {
  unsigned int version;
  char str[2048];
} nvmlDeviceCurrentClockFreqs_v1_t;

typedef nvmlDeviceCurrentClockFreqs_v1_t nvmlDeviceCurrentClockFreqs_t;

typedef struct nvmlEccErrorCounts_t {
  unsigned long long l1Cache;
  unsigned long long l2Cache;
  unsigned long long deviceMemory;
  unsigned long long registerFile;
} nvmlEccErrorCounts_t;

typedef struct nvmlDramEncryptionInfo_v1_t {
  unsigned int version;
  nvmlEnableState_t encryptionState;
} nvmlDramEncryptionInfo_v1_t;

typedef nvmlDramEncryptionInfo_v1_t nvmlDramEncryptionInfo_t;

typedef struct nvmlGpuDynamicPstatesInfo_t {
  unsigned int flags;
  struct {
    unsigned int bIsPresent;
    unsigned int percentage;
    unsigned int incThreshold;
    unsigned int decThreshold;
  } utilization[8];
} nvmlGpuDynamicPstatesInfo_t;

typedef unsigned int nvmlFanControlPolicy_t;

typedef struct nvmlFanSpeedInfo_v1_t {
  unsigned int version;
  unsigned int fan;
  unsigned int speed;
} nvmlFanSpeedInfo_v1_t;

typedef nvmlFanSpeedInfo_v1_t nvmlFanSpeedInfo_t;

typedef unsigned char nvmlGpuFabricState_t;

typedef struct nvmlGpuFabricInfo_t {
  unsigned char clusterUuid[16];
  nvmlReturn_t status;
  unsigned int cliqueId;
  nvmlGpuFabricState_t state;
} nvmlGpuFabricInfo_t;

typedef struct nvmlGpuFabricInfo_v3_t {
  unsigned int version;
  unsigned char clusterUuid[16];
  nvmlReturn_t status;
  unsigned int cliqueId;
  nvmlGpuFabricState_t state;
  unsigned int healthMask;
  unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef nvmlGpuFabricInfo_v3_t nvmlGpuFabricInfoV_t;

typedef struct nvmlGpuUptime_v1_t {
  unsigned int uptime;
} nvmlGpuUptime_v1_t;

typedef union nvmlUUIDValue_t {
  char str[41];
  unsigned char bytes[16];
} nvmlUUIDValue_t;

typedef struct nvmlUUID_v1_t {
  unsigned int version;
  unsigned int type;
  nvmlUUIDValue_t value;
} nvmlUUID_v1_t;

typedef nvmlUUID_v1_t nvmlUUID_t;

typedef struct nvmlMarginTemperature_v1_t {
  unsigned int version;
  int marginTemperature;
} nvmlMarginTemperature_v1_t;

typedef nvmlMarginTemperature_v1_t nvmlMarginTemperature_t;

typedef struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_t;

typedef struct nvmlMemory_v2_t {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_v2_t;

typedef struct nvmlNvlinkFirmwareVersion_t {
  unsigned char ucodeType;
  unsigned int major;
  unsigned int minor;
  unsigned int subMinor;
} nvmlNvlinkFirmwareVersion_t;

typedef struct nvmlNvlinkFirmwareInfo_t {
  nvmlNvlinkFirmwareVersion_t firmwareVersion[100];
  unsigned int numValidEntries;
} nvmlNvlinkFirmwareInfo_t;

typedef struct nvmlNvLinkInfo_v2_t {
  unsigned int version;
  unsigned int isNvleEnabled;
  nvmlNvlinkFirmwareInfo_t firmwareInfo;
} nvmlNvLinkInfo_v2_t;

typedef nvmlNvLinkInfo_v2_t nvmlNvLinkInfo_t;

typedef struct nvmlNvLinkInfo_v3_t {
  unsigned int isNvleEnabled;
  nvmlNvlinkFirmwareInfo_t firmwareInfo;
  unsigned int isNvleReady;
} nvmlNvLinkInfo_v3_t;

typedef struct nvmlNvLinkUtilizationControl_t {
  nvmlNvLinkUtilizationCountUnits_t units;
  nvmlNvLinkUtilizationCountPktTypes_t pktfilter;
} nvmlNvLinkUtilizationControl_t;

typedef struct nvmlPciInfoExt_v1_t {
  unsigned int version;
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  unsigned int baseClass;
  unsigned int subClass;
  char busId[32];
} nvmlPciInfoExt_v1_t;

typedef nvmlPciInfoExt_v1_t nvmlPciInfoExt_t;

typedef struct nvmlPdi_v1_t {
  unsigned int version;
  unsigned long long value;
} nvmlPdi_v1_t;

typedef nvmlPdi_v1_t nvmlPdi_t;

typedef struct nvmlDevicePerfModes_v1_t {
  unsigned int version;
  char str[2048];
} nvmlDevicePerfModes_v1_t;

typedef nvmlDevicePerfModes_v1_t nvmlDevicePerfModes_t;

typedef struct nvmlPlatformInfo_v2_t {
  unsigned int version;
  unsigned char ibGuid[16];
  unsigned char chassisSerialNumber[16];
  unsigned char slotNumber;
  unsigned char trayIndex;
  unsigned char hostId;
  unsigned char peerType;
  unsigned char moduleId;
} nvmlPlatformInfo_v2_t;

typedef nvmlPlatformInfo_v2_t nvmlPlatformInfo_t;

typedef unsigned int nvmlPowerSource_t;

typedef struct nvmlProcessUtilizationSample_t {
  unsigned int pid;
  unsigned long long timeStamp;
  unsigned int smUtil;
  unsigned int memUtil;
  unsigned int encUtil;
  unsigned int decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct nvmlProcessUtilizationInfo_v1_t {
  unsigned long long timeStamp;
  unsigned int pid;
  unsigned int smUtil;
  unsigned int memUtil;
  unsigned int encUtil;
  unsigned int decUtil;
  unsigned int jpgUtil;
  unsigned int ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct nvmlProcessesUtilizationInfo_v1_t {
  unsigned int version;
  unsigned int processSamplesCount;
  unsigned long long lastSeenTimeStamp;
  nvmlProcessUtilizationInfo_v1_t* procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef nvmlProcessesUtilizationInfo_v1_t nvmlProcessesUtilizationInfo_t;

typedef struct nvmlRemappedRowsInfo_v2_t {
  unsigned int corrActiveRemaps;
  unsigned int corrInactiveRemaps;
  unsigned int uncActiveRemaps;
  unsigned int uncInactiveRemaps;
  unsigned int bPending;
  unsigned int bFailureOccurred;
} nvmlRemappedRowsInfo_v2_t;

typedef struct nvmlRepairStatus_v1_t {
  unsigned int version;
  unsigned int bChannelRepairPending;
  unsigned int bTpcRepairPending;
} nvmlRepairStatus_v1_t;

typedef nvmlRepairStatus_v1_t nvmlRepairStatus_t;

typedef struct nvmlRowRemapperHistogramValues_t {
  unsigned int max;
  unsigned int high;
  unsigned int partial;
  unsigned int low;
  unsigned int none;
} nvmlRowRemapperHistogramValues_t;

typedef struct nvmlProcessDetail_v1_t {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
  unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct nvmlProcessDetailList_v1_t {
  unsigned int version;
  unsigned int mode;
  unsigned int numProcArrayEntries;
  nvmlProcessDetail_v1_t* procArray;
} nvmlProcessDetailList_v1_t;

typedef nvmlProcessDetailList_v1_t nvmlProcessDetailList_t;

typedef struct nvmlSample_t {
  unsigned long long timeStamp;
  nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct nvmlEccSramErrorStatus_v1_t {
  unsigned int version;
  unsigned long long aggregateUncParity;
  unsigned long long aggregateUncSecDed;
  unsigned long long aggregateCor;
  unsigned long long volatileUncParity;
  unsigned long long volatileUncSecDed;
  unsigned long long volatileCor;
  unsigned long long aggregateUncBucketL2;
  unsigned long long aggregateUncBucketSm;
  unsigned long long aggregateUncBucketPcie;
  unsigned long long aggregateUncBucketMcu;
  unsigned long long aggregateUncBucketOther;
  unsigned int bThresholdExceeded;
} nvmlEccSramErrorStatus_v1_t;

typedef nvmlEccSramErrorStatus_v1_t nvmlEccSramErrorStatus_t;

typedef struct nvmlEccSramUniqueUncorrectedErrorEntry_v1_t {
  unsigned int unit;
  unsigned int location;
  unsigned int sublocation;
  unsigned int extlocation;
  unsigned int address;
  unsigned int isParity;
  unsigned int count;
} nvmlEccSramUniqueUncorrectedErrorEntry_v1_t;

typedef struct nvmlEccSramUniqueUncorrectedErrorCounts_v1_t {
  unsigned int version;
  unsigned int entryCount;
  nvmlEccSramUniqueUncorrectedErrorEntry_v1_t* entries;
} nvmlEccSramUniqueUncorrectedErrorCounts_v1_t;

typedef nvmlEccSramUniqueUncorrectedErrorCounts_v1_t nvmlEccSramUniqueUncorrectedErrorCounts_t;

typedef struct nvmlTemperature_v1_t {
  unsigned int version;
  nvmlTemperatureSensors_t sensorType;
  int temperature;
} nvmlTemperature_v1_t;

typedef nvmlTemperature_v1_t nvmlTemperature_t;

typedef struct nvmlGpuThermalSettings_t {
  unsigned int count;
  struct {
    nvmlThermalController_t controller;
    int defaultMinTemp;
    int defaultMaxTemp;
    int currentTemp;
    nvmlThermalTarget_t target;
  } sensor[3];
} nvmlGpuThermalSettings_t;

typedef struct nvmlUtilization_t {
  unsigned int gpu;
  unsigned int memory;
} nvmlUtilization_t;

typedef struct nvmlViolationTime_t {
  unsigned long long referenceTime;
  unsigned long long violationTime;
} nvmlViolationTime_t;

typedef struct nvmlNvLinkPowerThres_t {
  unsigned int lowPwrThreshold;
} nvmlNvLinkPowerThres_t;

typedef struct nvmlEventData_t {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
} nvmlEventData_t;

typedef struct nvmlExcludedDeviceInfo_t {
  nvmlPciInfo_t pciInfo;
  char uuid[80];
} nvmlExcludedDeviceInfo_t;

typedef struct nvmlGpmMetric_t {
  unsigned int metricId;
  nvmlReturn_t nvmlReturn;
  double value;
  struct {
    char* shortName;
    char* longName;
    char* unit;
  } metricInfo;
} nvmlGpmMetric_t;

typedef struct nvmlGpmMetricsGet_t {
  unsigned int version;
  unsigned int numMetrics;
  nvmlGpmSample_t sample1;
  nvmlGpmSample_t sample2;
  nvmlGpmMetric_t metrics[477];
} nvmlGpmMetricsGet_t;

typedef struct nvmlGpmSupport_t {
  unsigned int version;
  unsigned int isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct nvmlSystemDriverBranchInfo_v1_t {
  unsigned int version;
  char branch[80];
} nvmlSystemDriverBranchInfo_v1_t;

typedef nvmlSystemDriverBranchInfo_v1_t nvmlSystemDriverBranchInfo_t;

#ifdef __cplusplus
}
#endif

#endif  // SLUICE_ABI_NVML_STRUCTS_H_
