// The connections of a small server with a thread for each, bounded. When all places are taken the connection that has
// waited longest for its peer gives way: whoever connects and says nothing must not keep others out, a liveness probe
// least of all.
//
// Thread-safe. A connection's descriptor stays open until its leave().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>

namespace sluice {

class Connections {
 public:
  using Id = uint64_t;  // 0: refused
  explicit Connections(size_t most) : most_(most) {}

  // Takes a place for `fd`, at once or, when full, as soon as another one has given way (within a second). 0 when all
  // of them are being answered.
  Id enter(int fd);
  // True while its request is worked on: it does not give way. False: it waits for its peer again.
  void set_answering(Id id, bool answering);
  void leave(Id id);
  // Shuts down those that wait for their peer, lets the others finish, and waits until the last one has left.
  void end_all();

 private:
  struct One {
    Id id = 0;
    int fd = -1;
    bool answering = false;
    bool shut = false;
  };
  const size_t most_;
  std::mutex mutex_;  // all below
  std::condition_variable left_;
  std::list<One> open_;  // by when they began to wait, the longest first
  Id last_ = 0;
};

}  // namespace sluice
