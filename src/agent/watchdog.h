// The threads that keep the node's picture of the world fresh: one probes locks and processes, one writes heartbeats,
// one per card reads it (a card that hangs in the driver stops its own thread only), one looks for cards that come
// back, one at the machine around (machine_watch.h).
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/cards.h"
#include "agent/node.h"

namespace sluice::agent {

struct WatchdogOptions {
  int probe_ms = 25;  // a dead program is noticed within two of these
  int heartbeat_ms = 100;
  int reading_ms = 500;    // of each card
  int urgent_ms = 20;      // at least, of a card that somebody's memory is coming back from
  int finding_ms = 1000;   // while a card is lost
  int looking_ms = 30000;  // for cards that are new
  int machine_ms = 1000;   // at the clock and at room in:
  std::vector<std::string> directories{};
};

class Watchdog {
 public:
  Watchdog(Node& node, Cards& cards, WatchdogOptions options = {}) : node_(node), cards_(cards), options_(options) {}
  ~Watchdog() { stop(); }
  void start();
  void stop();

 private:
  bool sleep_ms(int duration_ms);  // false at the end
  void probe_loop();
  void heartbeat_loop();
  void card_loop(const std::string& uuid);
  void finder_loop();
  void machine_loop();
  void watch_card(const std::string& uuid);

  Node& node_;
  Cards& cards_;
  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_, urgent_;  // for all; for the cards' threads, when somebody's memory is coming back
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  std::map<std::string, std::thread> card_threads_;
};

}  // namespace sluice::agent
