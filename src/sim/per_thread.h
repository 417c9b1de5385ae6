// The _ptds and _ptsz forms of the API: the same bodies, called while a null stream handle means the calling thread's
// own stream instead of the legacy one.
#pragma once

namespace sluice::sim {

class PerThreadScope {
 public:
  PerThreadScope();
  ~PerThreadScope();

 private:
  void* before_;
};

}  // namespace sluice::sim
