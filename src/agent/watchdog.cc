#include "agent/watchdog.h"

#include <algorithm>
#include <chrono>

#include "agent/machine_watch.h"
#include "base/log.h"

namespace sluice::agent {

bool Watchdog::sleep_ms(int duration_ms) {
  std::unique_lock guard(mutex_);
  return !wake_.wait_for(guard, std::chrono::milliseconds(duration_ms), [this] { return stopping_; });
}

void Watchdog::start() {
  threads_.emplace_back([this] { probe_loop(); });
  threads_.emplace_back([this] { heartbeat_loop(); });
  threads_.emplace_back([this] { finder_loop(); });
  threads_.emplace_back([this] { machine_loop(); });
  for (const std::string& uuid : node_.card_uuids()) watch_card(uuid);
}

void Watchdog::watch_card(const std::string& uuid) {
  std::lock_guard guard(mutex_);
  if (stopping_ || card_threads_.contains(uuid)) return;
  card_threads_[uuid] = std::thread([this, uuid] { card_loop(uuid); });
}

void Watchdog::stop() {
  {
    std::lock_guard guard(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  urgent_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (auto& [uuid, thread] : card_threads_) thread.join();  // nobody adds any more: stopping_ is set
  card_threads_.clear();
}

void Watchdog::probe_loop() {
  do {
    node_.probe(monotonic_ns());
    if (node_.any_waiting()) urgent_.notify_all();
  } while (sleep_ms(node_.idle() ? 4 * options_.probe_ms : options_.probe_ms));
}

void Watchdog::heartbeat_loop() {
  do {
    node_.write_heartbeats(monotonic_ns());
  } while (sleep_ms(options_.heartbeat_ms));
}

void Watchdog::machine_loop() {
  MachineWatch watch;
  do {
    for (const MachineSentence& said : watch.look(read_machine(options_.directories))) {
      log::write(said.level, said.text, {{"event", said.event}});
    }
  } while (sleep_ms(options_.machine_ms));
}

void Watchdog::card_loop(const std::string& uuid) {
  bool complained = false;
  do {
    const Node::Before before = node_.before_reading(uuid);
    const uint64_t started_ns = monotonic_ns();
    Result<CardReading> reading = cards_.read(uuid);
    if (reading) {
      node_.card_read(uuid, monotonic_ns(), started_ns, *reading, before);
      complained = false;
    } else {
      node_.card_failed(uuid, reading.error());
      if (!complained) log::warning("a card cannot be read", {{"reason", reading.error().message}});
      complained = true;
    }
    // A death during the pause is followed at once: the probe that finds it says so.
    if (!sleep_ms(options_.urgent_ms)) return;
    std::unique_lock guard(mutex_);
    urgent_.wait_for(guard, std::chrono::milliseconds(options_.reading_ms - options_.urgent_ms),
                     [&] { return stopping_ || node_.wants_reading(uuid); });
  } while (sleep_ms(0));
}

void Watchdog::finder_loop() {
  int slept_ms = 0;
  while (sleep_ms(options_.finding_ms)) {
    slept_ms += options_.finding_ms;
    const bool lost = node_.any_lost();
    if (!lost && slept_ms < options_.looking_ms) continue;
    slept_ms = 0;
    if (lost) {
      Result<void> restarted = cards_.restart();
      if (!restarted) continue;  // nothing there yet
    }
    Result<std::vector<CardInfo>> found = cards_.list();
    if (!found) continue;
    for (const std::string& uuid : node_.cards_found(*found)) watch_card(uuid);
  }
}

}  // namespace sluice::agent
