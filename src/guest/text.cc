#include "guest/text.h"

namespace sluice::guest {

namespace {

void hex_byte(char*& out, uint8_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  *out++ = kDigits[value >> 4];
  *out++ = kDigits[value & 15];
}

}  // namespace

void format_uuid(const uint8_t uuid[16], char out[64]) {
  char* end = out;
  for (const char* prefix = "GPU-"; *prefix != '\0';) *end++ = *prefix++;
  for (uint32_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *end++ = '-';
    hex_byte(end, uuid[i]);
  }
  *end = '\0';
}

}  // namespace sluice::guest
