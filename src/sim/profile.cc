#include "sim/profile.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/json.h"
#include "sim/profiles.inc"

namespace sluice::sim {

namespace {

constexpr int64_t kMib = 1 << 20;

// Reads fields one after the other; the first that is wrong is kept as the error.
class Reader {
 public:
  explicit Reader(const json::Object& object) : object_(object) {}

  int64_t number(const char* key, int64_t low, int64_t high) {
    auto value = json::get_int(object_, key);
    if (!value) return fail(std::move(value.error()));
    if (*value < low || *value > high) {
      return fail(invalid(std::string(key) + " is " + std::to_string(*value) + ", expected " + std::to_string(low) +
                          " to " + std::to_string(high)));
    }
    return *value;
  }
  uint32_t small(const char* key, int64_t low, int64_t high) { return static_cast<uint32_t>(number(key, low, high)); }
  bool flag(const char* key) {
    auto value = json::get_bool(object_, key);
    if (!value) fail(std::move(value.error()));
    return value.ok() && *value;
  }
  std::string text(const char* key) {
    auto value = json::get_string(object_, key);
    if (!value) {
      fail(std::move(value.error()));
      return {};
    }
    return std::move(*value);
  }
  void copy(const char* key, char* to, size_t size) {
    const std::string value = text(key);
    if (value.size() >= size)
      fail(invalid(std::string(key) + " is longer than " + std::to_string(size - 1) + " bytes"));
    std::memcpy(to, value.data(), std::min(value.size(), size - 1));
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  int64_t fail(Error error) {
    if (!error_) error_ = std::move(error);
    return 0;
  }
  const json::Object& object_;
  std::optional<Error> error_;
};

}  // namespace

Result<ProfileData> parse_profile(std::string_view text) {
  auto value = json::parse(text);
  if (!value) return std::move(value.error()).wrap("card profile");
  if (!value->is_object()) return invalid("a card profile is a JSON object");
  Reader r(value->get_object());
  ProfileData p{};
  r.copy("name", p.name, sizeof p.name);
  r.copy("profile", p.profile, sizeof p.profile);
  r.copy("brand", p.brand, sizeof p.brand);
  p.nvml_total_bytes = static_cast<uint64_t>(r.number("nvml_total_mib", 64, 1 << 22) * kMib);
  p.cuda_total_bytes = static_cast<uint64_t>(r.number("cuda_total_mib", 64, 1 << 22) * kMib);
  p.reserved_bytes = static_cast<uint64_t>(r.number("reserved_mib", 0, 1 << 20) * kMib);
  p.sms = r.small("sms", 1, 1024);
  const std::string capability = r.text("compute_capability");
  p.compute_major = static_cast<uint32_t>(std::atoi(capability.c_str()));
  p.compute_minor = capability.find('.') == std::string::npos
                        ? 0
                        : static_cast<uint32_t>(std::atoi(capability.c_str() + capability.find('.') + 1));
  p.threads_per_sm = r.small("threads_per_sm", 32, 4096);
  p.blocks_per_sm = r.small("blocks_per_sm", 1, 64);
  p.registers_per_sm = r.small("registers_per_sm", 1024, 1 << 20);
  p.shared_per_sm_bytes = r.small("shared_per_sm_bytes", 1024, 1 << 20);
  p.shared_per_block_bytes = r.small("shared_per_block_bytes", 1024, 1 << 20);
  p.shared_optin_bytes = r.small("shared_optin_bytes", 1024, 1 << 20);
  p.clock_khz = r.small("clock_khz", 1, 1 << 30);
  p.memory_clock_khz = r.small("memory_clock_khz", 1, 1 << 30);
  p.bus_width_bits = r.small("bus_width_bits", 1, 1 << 20);
  p.l2_bytes = r.small("l2_bytes", 0, 1 << 30);
  p.copy_engines = r.small("copy_engines", 1, 16);
  p.pci_device_id = static_cast<uint32_t>(std::strtoul(r.text("pci_device_id").c_str(), nullptr, 16));
  p.pci_subsystem_id = static_cast<uint32_t>(std::strtoul(r.text("pci_subsystem_id").c_str(), nullptr, 16));
  p.power_limit_mw = r.small("power_limit_mw", 1000, 2000000);
  p.temperature_idle_c = r.small("idle_celsius", 0, 120);
  p.context_bytes = r.number("context_mib", 0, 1 << 20) * kMib;
  p.h2d_bytes_per_us = r.number("h2d_mb_per_s", 1, 1 << 30);
  p.d2h_bytes_per_us = r.number("d2h_mb_per_s", 1, 1 << 30);
  p.d2d_bytes_per_us = r.number("d2d_mb_per_s", 1, 1 << 30);
  p.has_fan = r.flag("has_fan");
  p.has_ecc = r.flag("has_ecc");
  p.nvlinks = r.small("nvlinks", 0, 64);
  p.architecture = r.small("architecture", 0, 1000);
  if (r.error()) return Error(*r.error()).wrap(std::string("card profile ") + p.profile);
  return p;
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : kProfiles) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Result<ProfileData> find_profile(std::string_view name) {
  std::string known;
  for (const auto& [candidate, text] : kProfiles) {
    if (name == candidate) return parse_profile(text);
    known += (known.empty() ? "" : ", ") + std::string(candidate);
  }
  return invalid("there is no card profile '" + std::string(name) + "'; there are " + known);
}

}  // namespace sluice::sim
