#include "node/front_messages.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "agent/fields.h"

namespace sluice::node {
namespace {

constexpr size_t kMaxLineBytes = 8u << 20;  // lists of 8192 ids are some hundred KiB
constexpr size_t kMaxIds = 16'384;
constexpr size_t kMaxMounts = 1024;
constexpr size_t kMaxResources = 16;

json::Array texts(const std::vector<std::string>& list) {
  return json::Array(list.begin(), list.end());
}

// Health as one text of a letter per id: lists are long.
constexpr char kHealthy = 'h', kUnhealthy = 'u';

json::Object to_json(const std::vector<OfferedDevice>& devices) {
  json::Array ids;
  std::string health;
  for (const OfferedDevice& device : devices) {
    ids.push_back(json::Value(device.id));
    health += device.healthy ? kHealthy : kUnhealthy;
  }
  return {{"ids", std::move(ids)}, {"health", health}};
}

Result<std::vector<OfferedDevice>> read_devices(const json::Object& object) {
  agent::Fields f(object);
  std::vector<std::string> ids;
  std::string health;
  f.texts("ids", ids, kMaxIds);
  f.text("health", health, kMaxIds);
  if (health.size() != ids.size()) f.fail("health", "a letter per id");
  if (f.error()) return *f.error();
  std::vector<OfferedDevice> devices;
  for (size_t i = 0; i < ids.size(); ++i) devices.push_back({std::move(ids[i]), health[i] == kHealthy});
  return devices;
}

json::Object to_json(const ContainerAnswer& answer) {
  json::Object environment;
  for (const auto& [name, value] : answer.environment) environment[name] = value;
  json::Array mounts, nodes;
  for (const PluginMount& mount : answer.mounts)
    mounts.push_back(
        json::Object{{"to", mount.container_path}, {"from", mount.host_path}, {"read_only", mount.read_only}});
  for (const PluginDeviceNode& node : answer.device_nodes)
    nodes.push_back(
        json::Object{{"to", node.container_path}, {"from", node.host_path}, {"permissions", node.permissions}});
  return {{"environment", std::move(environment)},
          {"mounts", std::move(mounts)},
          {"device_nodes", std::move(nodes)},
          {"cdi_devices", texts(answer.cdi_devices)}};
}

Result<ContainerAnswer> read_answer(const json::Object& object) {
  ContainerAnswer answer;
  agent::Fields f(object);
  if (const json::Value* environment = object.if_contains("environment"); environment != nullptr) {
    if (!environment->is_object()) return invalid("environment: expected an object");
    for (const auto& member : environment->get_object()) {
      if (!member.value().is_string()) return invalid("environment: expected texts");
      answer.environment.emplace(member.key(), member.value().get_string());
    }
  }
  f.objects<PluginMount>("mounts", answer.mounts, kMaxMounts, [](const json::Object& item) -> Result<PluginMount> {
    PluginMount mount;
    agent::Fields g(item);
    g.text("to", mount.container_path);
    g.text("from", mount.host_path);
    g.flag("read_only", mount.read_only);
    if (g.error()) return *g.error();
    return mount;
  });
  f.objects<PluginDeviceNode>("device_nodes", answer.device_nodes, kMaxMounts,
                              [](const json::Object& item) -> Result<PluginDeviceNode> {
                                PluginDeviceNode node;
                                agent::Fields g(item);
                                g.text("to", node.container_path);
                                g.text("from", node.host_path);
                                g.text("permissions", node.permissions, 16);
                                if (g.error()) return *g.error();
                                return node;
                              });
  f.texts("cdi_devices", answer.cdi_devices, kMaxMounts);
  if (f.error()) return *f.error();
  return answer;
}

json::Object body(const OfferMessage& offer) {
  json::Object resources;
  for (const auto& [resource, devices] : offer.resources) resources[resource] = to_json(devices);
  return {{"what", "offer"}, {"resources", std::move(resources)}, {"keep_others", offer.keep_others}};
}

json::Object body(const CallMessage& call) {
  return {{"what", "call"},
          {"id", static_cast<int64_t>(call.id)},
          {"pre_start", call.pre_start},
          {"resource", call.resource},
          {"ids", texts(call.ids)}};
}

json::Object body(const ReplyMessage& reply) {
  json::Object out{{"what", "reply"}, {"id", static_cast<int64_t>(reply.id)}, {"done", reply.done}};
  if (reply.done) {
    out["answer"] = to_json(reply.answer);
  } else {
    out["code"] = static_cast<int64_t>(reply.error.code);
    out["message"] = reply.error.message;
  }
  return out;
}

json::Object body(const PluginStatus& status) {
  json::Object connected;
  for (const auto& [resource, listens] : status.connected) connected[resource] = listens;
  return {{"what", "status"},
          {"connected", std::move(connected)},
          {"contested", json::Array(status.contested.begin(), status.contested.end())},
          {"registrations", static_cast<int64_t>(status.registrations)},
          {"worker_restarts", static_cast<int64_t>(status.worker_restarts)}};
}

Result<FrontMessage> read_offer(const json::Object& object) {
  OfferMessage offer;
  agent::Fields f(object);
  f.flag("keep_others", offer.keep_others);
  if (f.error()) return *f.error();
  const json::Value* resources = object.if_contains("resources");
  if (resources == nullptr || !resources->is_object() || resources->get_object().size() > kMaxResources)
    return invalid("resources: expected an object with a list per resource");
  for (const auto& member : resources->get_object()) {
    if (!member.value().is_object()) return invalid("resources: expected ids and unhealthy");
    Result<std::vector<OfferedDevice>> devices = read_devices(member.value().get_object());
    if (!devices) return std::move(devices.error());
    offer.resources.emplace(member.key(), std::move(*devices));
  }
  return FrontMessage(std::move(offer));
}

Result<FrontMessage> read_call(const json::Object& object) {
  CallMessage call;
  int64_t id = 0;
  agent::Fields f(object);
  f.number("id", id, 1);
  f.flag("pre_start", call.pre_start);
  f.text("resource", call.resource, 256);
  f.texts("ids", call.ids, kMaxIds);
  if (f.error()) return *f.error();
  call.id = static_cast<uint64_t>(id);
  return FrontMessage(std::move(call));
}

Result<FrontMessage> read_reply(const json::Object& object) {
  ReplyMessage reply;
  int64_t id = 0, code = 0;
  agent::Fields f(object);
  f.number("id", id, 1);
  f.flag("done", reply.done);
  f.number("code", code, 0, static_cast<int64_t>(ErrorCode::kInternal));
  f.text("message", reply.error.message, 64u << 10);
  if (f.error()) return *f.error();
  reply.id = static_cast<uint64_t>(id);
  reply.error.code = static_cast<ErrorCode>(code);
  if (const json::Value* answer = object.if_contains("answer"); answer != nullptr && answer->is_object()) {
    Result<ContainerAnswer> read = read_answer(answer->get_object());
    if (!read) return std::move(read.error());
    reply.answer = std::move(*read);
  }
  return FrontMessage(std::move(reply));
}

Result<FrontMessage> read_status(const json::Object& object) {
  PluginStatus status;
  int64_t registrations = 0, restarts = 0;
  std::vector<std::string> contested;
  agent::Fields f(object);
  f.number("registrations", registrations, 0);
  f.number("worker_restarts", restarts, 0);
  f.texts("contested", contested, kMaxResources);
  if (f.error()) return *f.error();
  status.registrations = static_cast<uint64_t>(registrations);
  status.worker_restarts = static_cast<uint64_t>(restarts);
  status.contested.insert(contested.begin(), contested.end());
  const json::Value* connected = object.if_contains("connected");
  if (connected == nullptr || !connected->is_object()) return invalid("connected: expected an object");
  for (const auto& member : connected->get_object()) {
    if (!member.value().is_bool()) return invalid("connected: expected true or false");
    status.connected.emplace(member.key(), member.value().get_bool());
  }
  return FrontMessage(std::move(status));
}

}  // namespace

json::Object to_json(const FrontMessage& message) {
  return std::visit([](const auto& one) { return body(one); }, message);
}

Result<FrontMessage> read_message(const json::Value& value) {
  if (!value.is_object()) return invalid("expected an object");
  const json::Object& object = value.get_object();
  Result<std::string> what = json::get_string(object, "what");
  if (!what) return std::move(what.error());
  if (*what == "offer") return read_offer(object);
  if (*what == "call") return read_call(object);
  if (*what == "reply") return read_reply(object);
  if (*what == "status") return read_status(object);
  return invalid(fmt::format("what: expected offer, call, reply or status, not '{}'", what->substr(0, 32)));
}

Result<void> LineChannel::send(const FrontMessage& message) {
  const std::string line = json::to_string(to_json(message)) + "\n";
  std::lock_guard guard(sending_);
  if (broken_) return unavailable("the agent's other process does not read");
  for (size_t at = 0; at < line.size();) {
    const ssize_t put = ::send(socket_.get(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      broken_ = true;
      return unavailable("the agent's other process is gone or does not read");
    }
    at += static_cast<size_t>(put);
  }
  return {};
}

Result<std::vector<FrontMessage>> LineChannel::receive() {
  std::vector<FrontMessage> messages;
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return messages;
    // What came before the end is not told: whoever said it is gone, and its calls are asked again.
    if (got <= 0) return unavailable("the agent's other process is gone");
    begun_.append(buffer.data(), static_cast<size_t>(got));
    size_t from = 0;
    for (size_t end = begun_.find('\n'); end != std::string::npos; end = begun_.find('\n', from)) {
      Result<json::Value> value = json::parse(std::string_view(begun_).substr(from, end - from));
      Result<FrontMessage> message = value ? read_message(*value) : Result<FrontMessage>(std::move(value.error()));
      if (!message) return std::move(message.error()).wrap("a message of the agent's other process");
      messages.push_back(std::move(*message));
      from = end + 1;
    }
    begun_.erase(0, from);
    if (begun_.size() > kMaxLineBytes) return invalid("a message of the agent's other process is too long");
  }
}

}  // namespace sluice::node
