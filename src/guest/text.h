// The few string operations the guest needs, without a C library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::guest {

constexpr size_t text_length(const char* text) {
  size_t length = 0;
  while (text[length] != '\0') ++length;
  return length;
}

constexpr bool text_equal(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) {
    ++a;
    ++b;
  }
  return *a == *b;
}

constexpr bool starts_with(const char* text, const char* prefix) {
  while (*prefix != '\0') {
    if (*text++ != *prefix++) return false;
  }
  return true;
}

// Length of an exported driver name without its form: "cuMemFree" of "cuMemFree_v2_ptsz". Forms are _v<digits>, _ptds
// and _ptsz, in this order.
constexpr size_t base_length(const char* name) {
  size_t length = text_length(name);
  if (length > 5 && (text_equal(name + length - 5, "_ptds") || text_equal(name + length - 5, "_ptsz"))) length -= 5;
  size_t digits = length;
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  if (digits < length && digits > 2 && name[digits - 1] == 'v' && name[digits - 2] == '_') length = digits - 2;
  return length;
}

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", 40 characters, as NVML writes a card's UUID.
void format_uuid(const uint8_t uuid[16], char out[64]);

}  // namespace sluice::guest
