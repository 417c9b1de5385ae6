// Cards through NVML, loaded at run time: the agent is built and started on machines without a driver, and says so in
// one sentence. Which file: --driver-dir where given, else what the dynamic loader finds (LD_LIBRARY_PATH,
// ld.so.cache), else the folders that distributions and container toolkits use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/cards.h"
#include "agent/protocol.h"

namespace sluice::agent {

// Errors: kNotFound without the library or without a card behind it; each names what was tried.
Result<std::unique_ptr<Cards>> open_nvml_cards(const std::string& driver_directory);

// The real pair of driver libraries and the ones of ours that stand in front of them: guest_directory holds
// libcuda.so.1 and libnvidia-ml.so.1. Empty texts where a file is missing; a caller that starts programs then says
// which.
std::vector<DriverFile> find_driver_files(const std::string& driver_directory, const std::string& guest_directory);

}  // namespace sluice::agent
