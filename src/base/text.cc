#include "base/text.h"

#include <clocale>
#include <cwchar>

namespace sluice::text {
namespace {

struct Point {
  char32_t value = 0;
  size_t bytes = 0;  // 0: no well-formed character begins here
};

// The second byte's range depends on the first one (table 3-7); all further ones are 80..BF.
Point first_point(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xc2 && lead <= 0xdf   ? 2
                       : lead >= 0xe0 && lead <= 0xef ? 3
                       : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                      : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  const unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return {};
  char32_t value = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  return {value, bytes};
}

// The C library's tables of widths hang on a locale of the calling thread; C.UTF-8 comes with the library itself.
class Utf8Locale {
 public:
  Utf8Locale() {
    static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    known_ = locale != nullptr;
    if (known_) old_ = uselocale(locale);
  }
  ~Utf8Locale() {
    if (known_) uselocale(old_);
  }
  Utf8Locale(const Utf8Locale&) = delete;
  Utf8Locale& operator=(const Utf8Locale&) = delete;

  size_t width(char32_t point) const {
    const int columns = known_ && point >= 0x80 ? wcwidth(static_cast<wchar_t>(point)) : 1;
    return columns < 0 ? 1 : static_cast<size_t>(columns);
  }

 private:
  bool known_ = false;
  locale_t old_ = nullptr;
};

bool is_control(char32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0);
}

}  // namespace

size_t utf8_prefix(std::string_view text) {
  size_t good = 0;
  while (good < text.size()) {
    const size_t bytes = first_point(text.substr(good)).bytes;
    if (bytes == 0) break;
    good += bytes;
  }
  return good;
}

size_t columns(std::string_view text) {
  const Utf8Locale locale;
  size_t sum = 0;
  while (!text.empty()) {
    const Point point = first_point(text);
    sum += point.bytes == 0 ? 1 : locale.width(point.value);
    text.remove_prefix(point.bytes == 0 ? 1 : point.bytes);
  }
  return sum;
}

std::string fit(std::string_view text, size_t width) {
  const Utf8Locale locale;
  std::string out;
  size_t used = 0, before_last = 0;  // before_last: bytes of `out` that leave a column for the '~'
  while (!text.empty()) {
    const Point point = first_point(text);
    const bool odd = point.bytes == 0 || is_control(point.value);
    const size_t wide = odd ? 1 : locale.width(point.value);
    if (used + wide > width) {
      if (width == 0) return "";
      out.resize(before_last);
      return out + "~";
    }
    if (odd)
      out += '?';
    else
      out += text.substr(0, point.bytes);
    used += wide;
    if (used < width) before_last = out.size();
    text.remove_prefix(point.bytes == 0 ? 1 : point.bytes);
  }
  return out;
}

}  // namespace sluice::text
