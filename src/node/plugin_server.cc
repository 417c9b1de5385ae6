#include "node/plugin_server.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "base/log.h"
#include "kubelet/deviceplugin_v1beta1.grpc.pb.h"

namespace sluice::node {
namespace {

constexpr int kMaxThreads = 160;  // as many containers may start at once
constexpr auto kRegisterDeadline = std::chrono::seconds(10);
// A stream whose kubelet is gone is noticed when it is written to, or by asking now and then.
constexpr auto kStreamCheck = std::chrono::seconds(2);
constexpr auto kFirstStreamWait = std::chrono::seconds(10);

grpc::Status to_status(const Error& error) {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  switch (error.code) {
    case ErrorCode::kInvalid:
      code = grpc::StatusCode::INVALID_ARGUMENT;
      break;
    case ErrorCode::kNotFound:
      code = grpc::StatusCode::NOT_FOUND;
      break;
    case ErrorCode::kPermission:
      code = grpc::StatusCode::PERMISSION_DENIED;
      break;
    case ErrorCode::kUnavailable:
      code = grpc::StatusCode::UNAVAILABLE;
      break;
    case ErrorCode::kExhausted:
      code = grpc::StatusCode::RESOURCE_EXHAUSTED;
      break;
    default:
      break;
  }
  return {code, error.message};
}

// "sluice-gpu-mem-1f3a.sock" for aliyun.com/gpu-mem.
std::string socket_name(const std::string& resource) {
  std::string word = resource.substr(resource.rfind('/') + 1);
  for (char& c : word) {
    if (c == '.') c = '-';
  }
  uint32_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) number = static_cast<uint32_t>(::getpid());
  return fmt::format("sluice-{}-{:08x}.sock", word, number);
}

ino_t inode_of(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

void fill(const ContainerAnswer& answer, v1beta1::ContainerAllocateResponse& out) {
  for (const auto& [name, value] : answer.environment) (*out.mutable_envs())[name] = value;
  for (const PluginMount& mount : answer.mounts) {
    v1beta1::Mount* to = out.add_mounts();
    to->set_container_path(mount.container_path);
    to->set_host_path(mount.host_path);
    to->set_read_only(mount.read_only);
  }
  for (const PluginDeviceNode& node : answer.device_nodes) {
    v1beta1::DeviceSpec* to = out.add_devices();
    to->set_container_path(node.container_path);
    to->set_host_path(node.host_path);
    to->set_permissions(node.permissions);
  }
  for (const std::string& name : answer.cdi_devices) out.add_cdi_devices()->set_name(name);
}

}  // namespace

struct PluginServer::Inner final : v1beta1::DevicePlugin::Service {
  explicit Inner(PluginCalls& the_calls) : calls(the_calls) {}

  grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                      v1beta1::DevicePluginOptions* options) override {
    options->set_pre_start_required(true);
    options->set_get_preferred_allocation_available(false);
    return grpc::Status::OK;
  }

  grpc::Status ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty*,
                            grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override {
    std::unique_lock lock(mutex);
    const uint64_t generation = serving;
    ++streams;
    had_stream = true;
    uint64_t sent = 0;
    while (!stopping && serving == generation && !context->IsCancelled()) {
      if (sent != version) {
        v1beta1::ListAndWatchResponse answer;
        for (const OfferedDevice& device : devices) {
          v1beta1::Device* to = answer.add_devices();
          to->set_id(device.id);
          to->set_health(device.healthy ? "Healthy" : "Unhealthy");
        }
        sent = version;
        lock.unlock();
        const bool written = writer->Write(answer);
        lock.lock();
        if (!written) break;
        continue;
      }
      changed.wait_for(lock, kStreamCheck);
    }
    --streams;
    return grpc::Status::OK;
  }

  grpc::Status GetPreferredAllocation(grpc::ServerContext*, const v1beta1::PreferredAllocationRequest*,
                                      v1beta1::PreferredAllocationResponse*) override {
    return grpc::Status::OK;
  }

  grpc::Status Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                        v1beta1::AllocateResponse* response) override {
    for (const v1beta1::ContainerAllocateRequest& container : request->container_requests()) {
      Result<ContainerAnswer> answer = calls.allocate({container.device_ids().begin(), container.device_ids().end()});
      if (!answer) return to_status(answer.error());
      fill(*answer, *response->add_container_responses());
    }
    return grpc::Status::OK;
  }

  grpc::Status PreStartContainer(grpc::ServerContext*, const v1beta1::PreStartContainerRequest* request,
                                 v1beta1::PreStartContainerResponse*) override {
    Result<void> done = calls.pre_start({request->device_ids().begin(), request->device_ids().end()});
    return done ? grpc::Status::OK : to_status(done.error());
  }

  PluginCalls& calls;
  std::unique_ptr<grpc::Server> server;
  std::string name, path;
  ino_t inode = 0;

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  uint64_t serving = 0;  // grows with each serve()
  int streams = 0;
  bool had_stream = false;  // since the last announce
  std::chrono::steady_clock::time_point announced_at{};
  bool announced = false;
  uint64_t version = 1;  // of the list
  std::vector<OfferedDevice> devices;
};

PluginServer::PluginServer(std::string resource, PluginCalls& calls)
    : resource_(std::move(resource)), calls_(calls), inner_(std::make_unique<Inner>(calls)) {}

PluginServer::~PluginServer() {
  stop();
}

Result<void> PluginServer::serve(const std::string& directory) {
  stop();
  Inner& inner = *inner_;
  {
    std::lock_guard guard(inner.mutex);
    inner.stopping = false;
    inner.announced = inner.had_stream = false;
    ++inner.serving;
  }
  inner.name = socket_name(resource_);
  inner.path = directory + "/" + inner.name;
  constexpr size_t kMaxSocketPath = 107;  // sun_path
  if (inner.path.size() > kMaxSocketPath) {
    return invalid(fmt::format("the socket path {} is longer than {} bytes; use a shorter --kubelet-dir", inner.path,
                               kMaxSocketPath));
  }
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("sluice-device-plugin");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(4 << 20);
  builder.AddListeningPort("unix://" + inner.path, grpc::InsecureServerCredentials());
  builder.RegisterService(&inner);
  inner.server = builder.BuildAndStart();
  if (!inner.server) return unavailable(fmt::format("cannot listen on {}", inner.path));
  inner.inode = inode_of(inner.path);
  return {};
}

Result<void> PluginServer::announce(const std::string& directory) {
  Inner& inner = *inner_;
  grpc::ChannelArguments arguments;
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");  // what Go servers accept of every gRPC version
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);       // a kubelet that came back is dialled at once
  auto channel =
      grpc::CreateCustomChannel("unix://" + directory + "/kubelet.sock", grpc::InsecureChannelCredentials(), arguments);
  auto stub = v1beta1::Registration::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kRegisterDeadline);
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(inner.name);
  request.set_resource_name(resource_);
  request.mutable_options()->set_pre_start_required(true);
  {
    std::lock_guard guard(inner.mutex);
    inner.had_stream = false;
  }
  v1beta1::Empty answer;
  const grpc::Status status = stub->Register(&context, request, &answer);
  if (!status.ok()) {
    return unavailable(fmt::format("the kubelet did not take {}: {}", resource_, status.error_message()));
  }
  std::lock_guard guard(inner.mutex);
  inner.announced = true;
  inner.announced_at = std::chrono::steady_clock::now();
  return {};
}

void PluginServer::stop() {
  Inner& inner = *inner_;
  {
    std::lock_guard guard(inner.mutex);
    inner.stopping = true;
    inner.announced = false;
  }
  inner.changed.notify_all();
  if (!inner.server) return;
  inner.server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  inner.server->Wait();
  inner.server.reset();
}

void PluginServer::offer(std::vector<OfferedDevice> devices) {
  Inner& inner = *inner_;
  {
    std::lock_guard guard(inner.mutex);
    if (inner.devices == devices) return;
    inner.devices = std::move(devices);
    ++inner.version;
  }
  inner.changed.notify_all();
}

bool PluginServer::connected() const {
  Inner& inner = *inner_;
  std::lock_guard guard(inner.mutex);
  if (!inner.announced) return false;
  if (inner.streams > 0) return true;
  // The kubelet opens its stream some time after Register has returned.
  return !inner.had_stream && std::chrono::steady_clock::now() - inner.announced_at < kFirstStreamWait;
}

bool PluginServer::socket_in_place() const {
  return inner_->server != nullptr && inode_of(inner_->path) == inner_->inode;
}

}  // namespace sluice::node
