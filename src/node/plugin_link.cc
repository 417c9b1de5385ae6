#include "node/plugin_link.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "base/log.h"

namespace sluice::node {

PluginLink::PluginLink(Fd socket, std::function<void()> changed, std::function<void()> lost)
    : channel_(std::move(socket)),
      changed_(std::move(changed)),
      lost_(std::move(lost)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      reader_([this] { read_loop(); }) {}

PluginLink::~PluginLink() {
  ::eventfd_write(stop_.get(), 1);
  reader_.join();
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [this] { return open_calls_ == 0; });
}

void PluginLink::read_loop() {
  while (true) {
    pollfd waiting[2] = {{channel_.fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(waiting, 2, -1) < 0 && errno != EINTR) return;
    if ((waiting[1].revents & POLLIN) != 0) return;
    if (waiting[0].revents == 0) continue;
    Result<std::vector<FrontMessage>> messages = channel_.receive();
    if (!messages) {
      log::error(messages.error().message);
      return lost_();
    }
    bool news = false;
    {
      std::lock_guard guard(mutex_);
      for (FrontMessage& message : *messages) {
        if (auto* call = std::get_if<CallMessage>(&message)) {
          if (serve_)
            start_answering(std::move(*call));
          else
            waiting_.push_back(std::move(*call));
        } else if (auto* status = std::get_if<PluginStatus>(&message)) {
          news = news || !(*status == status_);
          status_ = std::move(*status);
        }
      }
    }
    if (news) changed_();
  }
}

// A thread per call: there are a few per started container, some wait for seconds, and the front lets in so many.
void PluginLink::start_answering(CallMessage call) {
  ++open_calls_;
  std::thread([this, call = std::move(call), serve = serve_] {
    ReplyMessage reply = serve(call);
    reply.id = call.id;
    // Where the front is gone the reading thread hears of it too.
    if (Result<void> sent = channel_.send(reply); !sent) log::warning(sent.error().message);
    std::lock_guard guard(mutex_);
    --open_calls_;
    answered_.notify_all();
  }).detach();
}

void PluginLink::serve(Serve answer) {
  std::lock_guard guard(mutex_);
  serve_ = std::move(answer);
  for (CallMessage& call : waiting_) start_answering(std::move(call));
  waiting_.clear();
}

void PluginLink::want(DeviceLists resources, bool keep_others) {
  {
    std::lock_guard guard(mutex_);
    OfferMessage offer{std::move(resources), keep_others};
    if (offered_once_ && offer == offered_) return;
    offered_ = std::move(offer);
    offered_once_ = true;
  }
  if (Result<void> sent = channel_.send(offered_); !sent) log::warning(sent.error().message);
}

bool PluginLink::complete() const {
  std::lock_guard guard(mutex_);
  return !offered_.resources.empty() &&
         std::all_of(offered_.resources.begin(), offered_.resources.end(), [this](const auto& entry) {
           auto found = status_.connected.find(entry.first);
           return found != status_.connected.end() && found->second;
         });
}

bool PluginLink::contested(const std::string& resource) const {
  std::lock_guard guard(mutex_);
  return status_.contested.contains(resource);
}

uint64_t PluginLink::registrations() const {
  std::lock_guard guard(mutex_);
  return status_.registrations;
}

uint64_t PluginLink::worker_restarts() const {
  std::lock_guard guard(mutex_);
  return status_.worker_restarts;
}

}  // namespace sluice::node
