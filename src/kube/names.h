// Names as Kubernetes spells them, for options that end up in its objects: an odd one is refused where it is typed, not
// by an API server that nobody asks before the first pod waits.
//
// Facts: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ (label: RFC 1123, at most 63;
// subdomain: labels with dots, at most 253) and .../labels/ (qualified name: [subdomain/]name, the name at most 63, in
// it also upper case, '_' and '.').
#pragma once

#include <string_view>

#include "base/result.h"

namespace sluice::kube {

// kInvalid, beginning with `what` (an option, as a rule), where the text is no such name.
Result<void> check_label_name(std::string_view what, std::string_view text);      // a namespace
Result<void> check_subdomain_name(std::string_view what, std::string_view text);  // a node, a scheduler
Result<void> check_qualified_name(std::string_view what, std::string_view text);  // a label's or taint's key

}  // namespace sluice::kube
