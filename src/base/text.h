// Text from outside as UTF-8: whether it is, and how many columns of a terminal it takes. JSON, the kubelet and the API
// server take nothing else, and a table that counts bytes leans where a name is not English.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::text {

// How many leading bytes of `text` are well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates);
// text.size() where all of it is.
size_t utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) {
  return utf8_prefix(text) == text.size();
}

// Columns that a terminal gives the text: two for wide characters, none for combining ones, one for a byte that is no
// UTF-8 and for what the C library's tables do not know.
size_t columns(std::string_view text);

// At most `width` columns of it, with '~' at the end where it was cut. Control characters and bytes that are no UTF-8
// become '?', so that text from outside cannot move the cursor.
std::string fit(std::string_view text, size_t width);

}  // namespace sluice::text
