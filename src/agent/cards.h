// What the agent wants to know of the machine's cards, as an interface: NVML behind it in the shipped agent
// (agent/nvml_cards.h), plain values in tests. Calls may take milliseconds, and on a sick card seconds: only the
// threads that watch one card call them, never one that names turns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::agent {

struct CardInfo {
  int32_t index = 0;  // NVML order
  std::string uuid;   // "GPU-8-4-4-4-12"
  std::string model;
  int64_t memory_bytes = 0;
  int32_t minor = -1;  // of /dev/nvidiaN; -1: not known
  bool operator==(const CardInfo&) const = default;
};

inline constexpr int64_t kUnknownBytes = -1;

struct ProcessUse {
  int64_t pid = 0;
  int64_t used_bytes = kUnknownBytes;  // contexts, code and allocations; unknown on drivers that do not say
  bool operator==(const ProcessUse&) const = default;
};

// Percentages of a process over the driver's last sampling periods.
struct ProcessSample {
  int64_t pid = 0;
  uint32_t sm_percent = 0, memory_percent = 0, encoder_percent = 0, decoder_percent = 0;
};

struct CardReading {
  int64_t used_bytes = 0;
  uint32_t utilisation_percent = 0;
  bool mig = false;                    // partitioned: programs are placed on its parts, past us
  bool exclusive_process = false;      // compute mode: the driver admits one process only
  std::vector<ProcessUse> processes;   // one per pid
  std::vector<ProcessSample> samples;  // may be empty
};

class Cards {
 public:
  virtual ~Cards() = default;
  virtual std::string driver_version() = 0;
  // Every card of the machine that answers. Cards that are lost are left out.
  virtual Result<std::vector<CardInfo>> list() = 0;
  // kNotFound: the card is lost. Other errors may pass.
  virtual Result<CardReading> read(const std::string& uuid) = 0;
  // Starts the management library anew, which is what it takes to see a card that came back. Waits for readers.
  virtual Result<void> restart() = 0;
};

// The 16 bytes of a "GPU-..." text.
Result<std::vector<uint8_t>> parse_uuid(const std::string& text);

}  // namespace sluice::agent
