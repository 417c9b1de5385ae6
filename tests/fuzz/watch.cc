// Watch framing: the same bytes in one chunk and cut in two give the same events.
#include "check.h"
#include "kube/watch_decoder.h"

using namespace sluice;

namespace {

std::string events_of(std::string_view first, std::string_view second) {
  kube::WatchDecoder decoder;
  std::vector<kube::WatchEvent> events;
  bool ok = decoder.feed(first, events).ok() && decoder.feed(second, events).ok();
  std::string out = ok ? "" : "error ";
  for (const kube::WatchEvent& event : events)
    out += std::to_string(static_cast<int>(event.type)) + event.resource_version + json::to_string(event.object) + "\n";
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  size_t cut = text.size() * data[0] / 255;
  promise(events_of(text, "") == events_of(text.substr(0, cut), text.substr(cut)), "chunks end anywhere");
  return 0;
}
