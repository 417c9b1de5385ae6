// Descriptors that lead to a card and that the caller of `sluice run` has open. The command would inherit them: a card
// past every limit, and a driver context that lives on after the program that made it. The driver opens its files with
// O_CLOEXEC; whoever clears the flag, or opens a device file in a shell, hands them on.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

// Whether an open descriptor with this path and this device number (0: not a character device) leads to a card: to
// /dev/nvidia0, nvidiactl, nvidia-uvm or nvidia-caps/*, wherever they are mounted, or to a file below `simulated`, the
// folder of simulated cards (empty: none). Pure.
bool leads_to_a_card(const std::string& path, unsigned device_major, const std::string& simulated);

// Marks those above standard error to be closed when the command is executed, and returns them. `simulated` is
// SLUICE_SIM_DIR, links resolved.
std::vector<int> leave_cards_to_the_caller(const std::string& simulated);

}  // namespace sluice::cli
