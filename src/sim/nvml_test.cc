// NVML over a card with an injected clock: what it tells must be what the card's own log says.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "sim/driver_version.h"
#include "sim/nvml_state.h"

namespace sluice::sim {
namespace {

// An injected clock: waiting moves it, calls cost nothing.
class TestHost : public Host {
 public:
  uint64_t now_ns() override { return now_ns_; }
  void wait_until(uint64_t t_ns, WaitMode) override { now_ns_ = std::max(now_ns_, t_ns); }
  void charge(Charge, uint64_t) override {}
  void spawn(void (*)(void*), void*) override {}
  void advance(uint64_t ns) { now_ns_ += ns; }

 private:
  uint64_t now_ns_ = 1000000000;
};

class NvmlTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("nvml_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    make_card(0, "V100-SXM2-32GB");
    process_ = std::make_unique<Process>(host_, folder_.string(), 4711, true, "/usr/bin/trainer");
    thread_.process = process_.get();
    set_current_thread(&thread_);
  }
  void TearDown() override {
    set_current_thread(nullptr);
    process_.reset();
    std::filesystem::remove_all(folder_);
  }

  void make_card(uint32_t index, const std::string& profile) {
    CardOptions options;
    options.profile = profile;
    options.card_index = index;
    options.epoch_ns = 1;
    const auto made = Card::create((folder_ / ("card" + std::to_string(index))).string(), options);
    ASSERT_TRUE(made.ok()) << made.error().message;
  }

  nvmlDevice_t device(unsigned index = 0) {
    nvmlDevice_t handle = nullptr;
    EXPECT_EQ(sim_nvmlDeviceGetHandleByIndex_v2(index, &handle), NVML_SUCCESS);
    return handle;
  }

  // A user of the card with memory, and a stream to work on.
  struct User {
    Index process, context, stream;
  };
  User attach(int32_t pid, const char* name, uint64_t bytes) {
    Card& card = *nvml_state().devices[0]->card;
    Card::Guard guard(card);
    User user{};
    user.process = card.attach_process(pid, true, name);
    user.context = make_context(card, user.process, 0);
    user.stream = make_stream(card, user.context, false, false, 0);
    card.allocate_block(user.process, user.context, bytes, BlockKind::kDevice);
    return user;
  }
  void kernel(const User& user, uint64_t duration_ns) {
    Card& card = *nvml_state().devices[0]->card;
    Card::Guard guard(card);
    advance(card, card.card_time(host_.now_ns()));
    Submission what;
    what.duration_ns = what.executing_ns = duration_ns;
    what.sms = 80;
    submit(card, user.stream, what);
  }

  std::filesystem::path folder_;
  TestHost host_;
  std::unique_ptr<Process> process_;
  Thread thread_;
};

constexpr uint64_t kMib = 1 << 20;

TEST_F(NvmlTest, RefusesEverythingBeforeInitAndForgetsNothingAfter) {
  unsigned count = 0;
  EXPECT_EQ(sim_nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  ASSERT_EQ(sim_nvmlInit(), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 1U);
  const nvmlDevice_t handle = device();
  EXPECT_EQ(sim_nvmlShutdown(), NVML_SUCCESS);
  unsigned index = 9;
  EXPECT_EQ(sim_nvmlDeviceGetIndex(handle, &index), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlDeviceGetIndex(handle, &index), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(sim_nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlDeviceGetIndex(handle, &index), NVML_SUCCESS);
  int not_a_device = 0;
  EXPECT_EQ(sim_nvmlDeviceGetIndex(reinterpret_cast<nvmlDevice_t>(&not_a_device), &index), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(sim_nvmlDeviceGetIndex(handle, nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(NvmlTest, NoFolderIsNoDriver) {
  Process other(host_, "/nonexistent/cards", 1, true, "x");
  thread_.process = &other;
  EXPECT_EQ(sim_nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
  EXPECT_STREQ(sim_nvmlErrorString(NVML_ERROR_DRIVER_NOT_LOADED), "Driver Not Loaded");
  EXPECT_STREQ(sim_nvmlErrorString(static_cast<nvmlReturn_t>(998)), "Unknown Error");
}

TEST_F(NvmlTest, ACardIsFoundByEveryIdentifierItTells) {
  make_card(1, "A100-40GB");
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t second = device(1);
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  char serial[NVML_DEVICE_SERIAL_BUFFER_SIZE];
  nvmlPciInfo_t pci{};
  ASSERT_EQ(sim_nvmlDeviceGetUUID(second, uuid, sizeof uuid), NVML_SUCCESS);
  ASSERT_EQ(sim_nvmlDeviceGetSerial(second, serial, sizeof serial), NVML_SUCCESS);
  ASSERT_EQ(sim_nvmlDeviceGetPciInfo_v3(second, &pci), NVML_SUCCESS);
  EXPECT_EQ(std::string(uuid).substr(0, 4), "GPU-");
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(sim_nvmlDeviceGetHandleByUUID(uuid, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second);
  found = nullptr;
  EXPECT_EQ(sim_nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second);
  found = nullptr;
  EXPECT_EQ(sim_nvmlDeviceGetHandleByPciBusId_v2(pci.busIdLegacy, &found), NVML_SUCCESS);
  EXPECT_EQ(found, second);
  EXPECT_EQ(sim_nvmlDeviceGetHandleBySerial(serial, &found), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlDeviceGetHandleByUUID("GPU-0", &found), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(sim_nvmlDeviceGetHandleByPciBusId_v2("nonsense", &found), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(sim_nvmlDeviceGetHandleByIndex_v2(2, &found), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(sim_nvmlDeviceGetUUID(second, uuid, 10), NVML_ERROR_INSUFFICIENT_SIZE);
}

TEST_F(NvmlTest, MemoryAddsUpInBothForms) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t handle = device();
  attach(100, "/bin/a", 1000 * kMib);
  nvmlMemory_v2_t v2{};
  EXPECT_EQ(sim_nvmlDeviceGetMemoryInfo_v2(handle, &v2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  v2.version = NVML_VERSION_WORD(nvmlMemory_v2_t, 2);
  ASSERT_EQ(sim_nvmlDeviceGetMemoryInfo_v2(handle, &v2), NVML_SUCCESS);
  EXPECT_EQ(v2.total, 32510 * kMib);
  EXPECT_EQ(v2.total, v2.used + v2.free + v2.reserved);
  Card& card = *nvml_state().devices[0]->card;
  EXPECT_EQ(v2.used, card.used_bytes());
  EXPECT_GE(v2.used, 1000 * kMib);
  nvmlMemory_t v1{};
  ASSERT_EQ(sim_nvmlDeviceGetMemoryInfo(handle, &v1), NVML_SUCCESS);
  EXPECT_EQ(v1.used, v2.used + v2.reserved);
  EXPECT_EQ(v1.total, v1.used + v1.free);
}

TEST_F(NvmlTest, ProcessesComeInThreeSizesWithTheirMemory) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t handle = device();
  unsigned count = 0;
  EXPECT_EQ(sim_nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 0U);
  const User a = attach(100, "/bin/a", 100 * kMib);
  const User b = attach(200, "/bin/b", 200 * kMib);
  count = 0;
  EXPECT_EQ(sim_nvmlDeviceGetComputeRunningProcesses(handle, &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2U);
  nvmlProcessInfo_v1_t v1[4];
  count = 4;
  ASSERT_EQ(sim_nvmlDeviceGetComputeRunningProcesses(handle, &count, v1), NVML_SUCCESS);
  nvmlProcessInfo_t v3[4];
  count = 4;
  ASSERT_EQ(sim_nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, v3), NVML_SUCCESS);
  ASSERT_EQ(count, 2U);
  Card& card = *nvml_state().devices[0]->card;
  EXPECT_EQ(v1[0].pid, 100U);
  EXPECT_EQ(v3[1].pid, 200U);
  EXPECT_EQ(v3[0].usedGpuMemory, card.process_bytes(a.process));
  EXPECT_EQ(v3[1].usedGpuMemory, card.process_bytes(b.process));
  EXPECT_EQ(v3[0].gpuInstanceId, NVML_GPU_INSTANCE_ID_ANY);
  const void* table = nullptr;
  const unsigned char id[16] = {0x6c, 0x3e, 0xfe, 0xc4, 0x8f, 0xc9, 0x4e, 0x6c,
                                0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  ASSERT_EQ(sim_nvmlInternalGetExportTable(&table, id), NVML_SUCCESS);
  using List = nvmlReturn_t (*)(nvmlDevice_t, unsigned*, void*);
  const auto list = reinterpret_cast<List>(static_cast<void* const*>(table)[213]);
  std::vector<char> entries(4128 * 4);
  count = 4;
  ASSERT_EQ(list(handle, &count, entries.data()), NVML_SUCCESS);
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(*reinterpret_cast<unsigned*>(entries.data() + 4128), 200U);
  EXPECT_STREQ(entries.data() + 32, "/bin/a");
}

TEST_F(NvmlTest, UtilisationIsTheLastSecondOfTheLog) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t handle = device();
  const User user = attach(100, "/bin/a", kMib);
  host_.advance(2000000000);
  kernel(user, 300000000);
  host_.advance(1000000000);
  nvmlUtilization_t use{};
  ASSERT_EQ(sim_nvmlDeviceGetUtilizationRates(handle, &use), NVML_SUCCESS);
  EXPECT_NEAR(use.gpu, 30, 1);
  host_.advance(1000000000);
  ASSERT_EQ(sim_nvmlDeviceGetUtilizationRates(handle, &use), NVML_SUCCESS);
  EXPECT_EQ(use.gpu, 0U);
}

TEST_F(NvmlTest, SamplesNameOneProcessEach139Ms) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t handle = device();
  const User a = attach(100, "/bin/a", kMib);
  unsigned count = 0;
  host_.advance(500000000);
  nvmlProcessUtilizationSample_t samples[8];
  count = 8;
  EXPECT_EQ(sim_nvmlDeviceGetProcessUtilization(handle, samples, &count, 0), NVML_ERROR_NOT_FOUND);
  kernel(a, 1000000000);
  host_.advance(900000000);
  count = 8;
  ASSERT_EQ(sim_nvmlDeviceGetProcessUtilization(handle, samples, &count, 0), NVML_SUCCESS);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(samples[0].pid, 100U);
  EXPECT_GE(samples[0].smUtil, 99U);
  const unsigned long long seen = samples[0].timeStamp;
  count = 8;
  EXPECT_EQ(sim_nvmlDeviceGetProcessUtilization(handle, samples, &count, seen), NVML_ERROR_NOT_FOUND);
  nvmlValueType_t type{};
  nvmlSample_t raw[128];
  count = 128;
  ASSERT_EQ(sim_nvmlDeviceGetSamples(handle, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, raw), NVML_SUCCESS);
  ASSERT_GE(count, 8U);
  EXPECT_NEAR(static_cast<double>(raw[count - 1].timeStamp - raw[count - 2].timeStamp), 139000, 1500);
}

TEST_F(NvmlTest, GpmIsForHopper) {
  make_card(1, "H200");
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  nvmlGpmSupport_t support{NVML_GPM_SUPPORT_VERSION, 9};
  ASSERT_EQ(sim_nvmlGpmQueryDeviceSupport(device(0), &support), NVML_SUCCESS);
  EXPECT_EQ(support.isSupportedDevice, 0U);
  ASSERT_EQ(sim_nvmlGpmQueryDeviceSupport(device(1), &support), NVML_SUCCESS);
  EXPECT_EQ(support.isSupportedDevice, 1U);
  auto request = std::make_unique<nvmlGpmMetricsGet_t>();
  ASSERT_EQ(sim_nvmlGpmSampleAlloc(&request->sample1), NVML_SUCCESS);
  ASSERT_EQ(sim_nvmlGpmSampleAlloc(&request->sample2), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlGpmSampleGet(device(0), request->sample1), NVML_ERROR_NOT_SUPPORTED);
  ASSERT_EQ(sim_nvmlGpmSampleGet(device(1), request->sample1), NVML_SUCCESS);
  host_.advance(100000000);
  ASSERT_EQ(sim_nvmlGpmSampleGet(device(1), request->sample2), NVML_SUCCESS);
  request->version = NVML_GPM_METRICS_GET_VERSION;
  request->numMetrics = 2;
  request->metrics[0].metricId = NVML_GPM_METRIC_GRAPHICS_UTIL;
  request->metrics[1].metricId = 300;
  ASSERT_EQ(sim_nvmlGpmMetricsGet(request.get()), NVML_SUCCESS);
  EXPECT_EQ(request->metrics[0].nvmlReturn, NVML_SUCCESS);
  EXPECT_EQ(request->metrics[0].value, 0.0);
  EXPECT_EQ(request->metrics[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(sim_nvmlGpmSampleFree(request->sample1), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlGpmSampleFree(request->sample1), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(NvmlTest, SensorsFollowTheLoadAndMissingOnesSaySo) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t handle = device();
  unsigned idle_mw = 0;
  unsigned busy_mw = 0;
  ASSERT_EQ(sim_nvmlDeviceGetPowerUsage(handle, &idle_mw), NVML_SUCCESS);
  const User user = attach(100, "/bin/a", kMib);
  kernel(user, 2000000000);
  host_.advance(1500000000);
  ASSERT_EQ(sim_nvmlDeviceGetPowerUsage(handle, &busy_mw), NVML_SUCCESS);
  EXPECT_GT(busy_mw, 2 * idle_mw);
  EXPECT_LE(busy_mw, 300000U);
  unsigned fan = 0;
  EXPECT_EQ(sim_nvmlDeviceGetFanSpeed(handle, &fan), NVML_ERROR_NOT_SUPPORTED);
  nvmlFieldValue_t fields[2]{};
  fields[0].fieldId = NVML_FI_DEV_POWER_INSTANT;
  fields[1].fieldId = 9999;
  ASSERT_EQ(sim_nvmlDeviceGetFieldValues(handle, 2, fields), NVML_SUCCESS);
  EXPECT_EQ(fields[0].nvmlReturn, NVML_SUCCESS);
  EXPECT_EQ(fields[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(NvmlTest, ALostCardSaysSo) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t handle = device();
  Card& card = *nvml_state().devices[0]->card;
  {
    Card::Guard guard(card);
    card.edit_header().lost = 1;
  }
  unsigned milliwatts = 0;
  EXPECT_EQ(sim_nvmlDeviceGetPowerUsage(handle, &milliwatts), NVML_ERROR_GPU_IS_LOST);
}

// A process that is registering itself has not named its kernel lock yet: whoever looked at the card without its lock
// would take it for dead, and what it holds would stay on the card for ever.
TEST_F(NvmlTest, NobodyIsFoundDeadWhileTheCardIsBeingChanged) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t handle = device();
  auto other = Card::open((folder_ / "card0").string());
  ASSERT_TRUE(other.ok());
  std::thread asking;
  {
    Card::Guard guard(**other);
    const Index half_registered = (*other)->new_process();
    asking = std::thread([this, handle] {
      auto here = thread_;
      set_current_thread(&here);
      unsigned milliwatts = 0;
      EXPECT_EQ(sim_nvmlDeviceGetPowerUsage(handle, &milliwatts), NVML_SUCCESS);
      set_current_thread(nullptr);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ((*other)->process(half_registered).state, LiveState::kLive);
    (*other)->free_process(half_registered);
  }
  asking.join();
}

TEST_F(NvmlTest, EventsTellXids) {
  ASSERT_EQ(sim_nvmlInit_v2(), NVML_SUCCESS);
  nvmlEventSet_t set = nullptr;
  ASSERT_EQ(sim_nvmlEventSetCreate(&set), NVML_SUCCESS);
  ASSERT_EQ(sim_nvmlDeviceRegisterEvents(device(), nvmlEventTypeXidCriticalError, set), NVML_SUCCESS);
  nvmlEventData_t data{};
  EXPECT_EQ(sim_nvmlEventSetWait_v2(set, &data, 50), NVML_ERROR_TIMEOUT);
  Card& card = *nvml_state().devices[0]->card;
  {
    Card::Guard guard(card);
    card.edit_header().xid = 79;
    card.edit_header().xid_count += 1;
  }
  ASSERT_EQ(sim_nvmlEventSetWait_v2(set, &data, 50), NVML_SUCCESS);
  EXPECT_EQ(data.eventData, 79U);
  EXPECT_EQ(data.device, device());
  EXPECT_EQ(sim_nvmlEventSetWait_v2(set, &data, 50), NVML_ERROR_TIMEOUT);
  EXPECT_EQ(sim_nvmlEventSetFree(set), NVML_SUCCESS);
  EXPECT_EQ(sim_nvmlEventSetWait_v2(set, &data, 50), NVML_ERROR_INVALID_ARGUMENT);
}

TEST(VisibleProcesses, OtherNamespacesAreTranslatedHiddenOrShownAsTheDriverDoes) {
  NvmlProcess far_away{1, 7, 0, 12345, false, 0, 1, "/bin/far"};
  EXPECT_TRUE(visible_processes({far_away}, true).empty());
  far_away.host_pid = 99999;
  ASSERT_EQ(visible_processes({far_away}, false).size(), 1U);
  EXPECT_EQ(visible_processes({far_away}, false)[0].pid, 99999);
  NvmlProcess simulated{1, 7, 0, 12345, true, 0, 1, "/bin/simulated"};
  ASSERT_EQ(visible_processes({simulated}, true).size(), 1U);
  EXPECT_EQ(visible_processes({simulated}, true)[0].pid, 7);
}

// The kernel gives the number of a namespace that has gone to the next one, and pid 1 of both is pid 1.
TEST(VisibleProcesses, ThePidAndNamespaceOfAProcessThatHasGoneAreNotTakenForTheOneThatHasThemNow) {
  struct stat own{};
  ASSERT_EQ(stat("/proc/self/ns/pid", &own), 0);
  const uint32_t started = started_ticks("self");
  ASSERT_NE(started, 0U);
  const NvmlProcess me{1, getpid(), getpid(), own.st_ino, false, started, 1, "/bin/me"};
  ASSERT_EQ(visible_processes({me}, true).size(), 1U);
  NvmlProcess before_me = me;
  before_me.started_ticks = started - 1;
  EXPECT_TRUE(visible_processes({before_me}, true).empty());
}

}  // namespace
}  // namespace sluice::sim
