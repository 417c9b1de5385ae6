// Card profiles: data files of the source tree (profiles/*.json), built into the programs so that nothing has to be
// found at run time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/layout.h"

namespace sluice::sim {

// Names of the profiles, sorted.
std::vector<std::string> profile_names();
// Errors: unknown name (lists those there are); a profile whose fields are missing or out of range (names the field).
Result<ProfileData> find_profile(std::string_view name);
// The same from text, e.g. of a file that a user wrote.
Result<ProfileData> parse_profile(std::string_view json_text);

// UUID and serial number of a card, from its seed, index and generation.
void draw_identity(CardFile& file, uint64_t seed, uint32_t index);

}  // namespace sluice::sim
