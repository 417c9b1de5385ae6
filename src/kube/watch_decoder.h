// Cuts the body of a watch into events. A watch answers with one JSON object a line, in chunks that end anywhere; this
// decoder keeps the unfinished rest. Pure: bytes in, events out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::kube {

enum class WatchEventType { kAdded, kModified, kDeleted, kBookmark, kError };

struct WatchEvent {
  WatchEventType type = WatchEventType::kError;
  json::Value object;            // of kError: a metav1.Status
  std::string resource_version;  // of the object, may be empty for kError
  int error_code = 0;            // of kError, 410 when the version is too old
};

class WatchDecoder {
 public:
  // A line may be this long; a longer one is a broken peer.
  static constexpr size_t kMaxLineBytes = 16u << 20;

  // Appends the events that the chunk completes. An error ends the stream: nothing after it can be trusted.
  Result<void> feed(std::string_view chunk, std::vector<WatchEvent>& events);

 private:
  std::string rest_;
};

}  // namespace sluice::kube
