#include "node/pod_resources.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "kubelet/podresources_v1.grpc.pb.h"

namespace sluice::node {
namespace {

constexpr auto kDeadline = std::chrono::seconds(5);
constexpr int kMaxBytes = 16 << 20;  // the kubelet's own limit for answers

RecordedPod decode(const v1::PodResources& from) {
  RecordedPod pod{from.namespace_(), from.name(), {}};
  for (const v1::ContainerResources& container : from.containers()) {
    RecordedContainer to{container.name(), {}};
    for (const v1::ContainerDevices& devices : container.devices()) {
      // One entry per resource and NUMA node.
      std::vector<std::string>& ids = to.ids[devices.resource_name()];
      ids.insert(ids.end(), devices.device_ids().begin(), devices.device_ids().end());
    }
    for (auto& [resource, ids] : to.ids) std::sort(ids.begin(), ids.end());
    pod.containers.push_back(std::move(to));
  }
  return pod;
}

class KubeletRecords final : public PodRecords {
 public:
  explicit KubeletRecords(std::string socket) : socket_(std::move(socket)) {}

  Result<std::optional<RecordedPod>> get(const std::string& name_space, const std::string& name) override {
    v1::GetPodResourcesRequest request;
    request.set_pod_namespace(name_space);
    request.set_pod_name(name);
    v1::GetPodResourcesResponse answer;
    const grpc::Status status = call([&](auto& stub, auto& context) { return stub.Get(&context, request, &answer); });
    if (status.ok()) return std::optional<RecordedPod>(decode(answer.pod_resources()));
    // The kubelet's errors carry no code of their own; these two sentences are all it has here (server_v1.go).
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
        status.error_message().find("method disabled") != std::string::npos) {
      return invalid("this kubelet's record has no Get");
    }
    if (status.error_message().find("not found") != std::string::npos) return std::optional<RecordedPod>();
    return failed(status);
  }

  Result<std::vector<RecordedPod>> list() override {
    v1::ListPodResourcesResponse answer;
    const grpc::Status status = call([&](auto& stub, auto& context) { return stub.List(&context, {}, &answer); });
    if (!status.ok()) return failed(status);
    std::vector<RecordedPod> pods;
    for (const v1::PodResources& pod : answer.pod_resources()) pods.push_back(decode(pod));
    return pods;
  }

 private:
  Error failed(const grpc::Status& status) const {
    Error error = unavailable(fmt::format("the kubelet's record at {}: {}", socket_, status.error_message()));
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) error.code = ErrorCode::kExhausted;
    return error;
  }

  std::shared_ptr<grpc::Channel> channel() {
    std::lock_guard guard(mutex_);
    if (!channel_) {
      grpc::ChannelArguments arguments;
      arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
      arguments.SetMaxReceiveMessageSize(kMaxBytes);
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      channel_ = grpc::CreateCustomChannel("unix://" + socket_, grpc::InsecureChannelCredentials(), arguments);
    }
    return channel_;
  }

  template <typename Call>
  grpc::Status call(Call make) {
    grpc::Status status;
    // A channel that lost its kubelet backs off for up to two minutes: a new one dials at once.
    for (int attempt = 0; attempt < 2; ++attempt) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kDeadline);
      auto stub = v1::PodResourcesLister::NewStub(channel());
      status = make(*stub, context);
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return status;
      std::lock_guard guard(mutex_);
      channel_.reset();
    }
    return status;
  }

  std::string socket_;
  std::mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace

std::unique_ptr<PodRecords> open_pod_records(const std::string& socket) {
  return std::make_unique<KubeletRecords>(socket);
}

}  // namespace sluice::node
