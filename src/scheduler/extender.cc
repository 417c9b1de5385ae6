#include "scheduler/extender.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_set>

namespace sluice::scheduler {
namespace {

constexpr size_t kMaxNames = 100'000;

bool equal_any_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}

Result<std::string> text_of(const json::Object& object, std::string_view key) {
  const json::Value* value = find_any_case(object, key);
  if (value == nullptr || !value->is_string()) return invalid(fmt::format("'{}' is missing or no string", key));
  return std::string(value->get_string());
}

// The body as an object, or the refusal that says why it is none.
Result<json::Object> parse_body(const std::string& body) {
  Result<json::Value> value = json::parse_into_block(body);
  if (!value) return std::move(value).error();
  if (!value->is_object()) return invalid("expected a JSON object");
  return std::move(value->get_object());
}

Result<kube::Pod> parse_pod(const json::Object& args) {
  const json::Value* pod = find_any_case(args, "Pod");
  if (pod == nullptr) return invalid("'Pod' is missing");
  Result<kube::Pod> decoded = kube::decode_pod(*pod);
  if (!decoded) return std::move(decoded).error().wrap("Pod");
  return decoded;
}

struct Args {
  kube::Pod pod;
  std::vector<std::string_view> names;  // into the body
  const json::Array* nodes = nullptr;   // full objects, when the extender is not configured as nodeCacheCapable
};

Result<Args> parse_args(const json::Object& body) {
  Result<kube::Pod> pod = parse_pod(body);
  if (!pod) return std::move(pod).error();
  Args args;
  args.pod = *std::move(pod);
  if (const json::Value* names = find_any_case(body, "NodeNames"); names != nullptr) {
    if (!names->is_array()) return invalid("'NodeNames' is not a list");
    if (names->get_array().size() > kMaxNames) return invalid(fmt::format("more than {} node names", kMaxNames));
    args.names.reserve(names->get_array().size());
    for (const json::Value& name : names->get_array()) {
      if (!name.is_string()) return invalid("'NodeNames' holds something that is not a string");
      args.names.emplace_back(name.get_string());
    }
    return args;
  }
  const json::Value* nodes = find_any_case(body, "Nodes");
  if (nodes == nullptr || !nodes->is_object()) return invalid("neither 'NodeNames' nor 'Nodes' is there");
  const json::Value* items = find_any_case(nodes->get_object(), "items");
  if (items == nullptr || !items->is_array()) return invalid("'Nodes.items' is not a list");
  args.nodes = &items->get_array();
  for (const json::Value& item : items->get_array()) {
    Result<kube::NodeDescription> node = kube::decode_node(item, {});
    if (!node) return std::move(node).error().wrap("Nodes");
    args.names.emplace_back(item.at("metadata").at("name").get_string());
  }
  return args;
}

ServerResponse ok(const json::Value& value) {
  return {200, json::to_string(value), "application/json", false};
}

// Thousands of names with the same few reasons are written as text at once; a tree of values first costs as much again.
void append_refused(std::string& out, const char* key, const std::vector<FilterAnswer::Refused>& refused) {
  out += fmt::format("\"{}\":{{", key);
  std::string_view last;
  std::string quoted;
  for (size_t i = 0; i < refused.size(); ++i) {
    const auto& [node, reason] = refused[i];
    if (last.data() != reason.data()) {
      last = reason;
      quoted.clear();
      json::append_quoted(quoted, reason);
    }
    if (i > 0) out += ',';
    json::append_quoted(out, node);
    out += ':';
    out += quoted;
  }
  out += "},";
}

}  // namespace

const json::Value* find_any_case(const json::Object& object, std::string_view key) {
  const json::Value* exact = object.if_contains(key);
  if (exact == nullptr) {
    for (const auto& member : object) {
      if (equal_any_case(member.key(), key)) exact = &member.value();
    }
  }
  return exact == nullptr || exact->is_null() ? nullptr : exact;
}

ServerResponse Extender::filter(const std::string& body) {
  Result<json::Object> object = parse_body(body);
  if (!object) return error_response(400, "filter: " + object.error().message);
  Result<Args> args = parse_args(*object);
  if (!args) return error_response(400, "filter: " + args.error().message);
  FilterAnswer answer = state_.filter(args->pod, args->names);
  std::string out = "{";
  size_t names = answer.nodes.size() + answer.failed.size() + answer.unresolvable.size();
  out.reserve(256 + names * (answer.nodes.empty() ? 160 : 48));
  append_refused(out, "FailedNodes", answer.failed);
  append_refused(out, "FailedAndUnresolvableNodes", answer.unresolvable);
  out += R"("Error":"",)";
  if (args->nodes != nullptr) {
    json::Array items;
    std::unordered_set<std::string_view> fitting(answer.nodes.begin(), answer.nodes.end());
    for (size_t i = 0; i < args->names.size(); ++i) {
      if (fitting.contains(args->names[i])) items.push_back((*args->nodes)[i]);
    }
    out += R"("NodeNames":null,"Nodes":{"items":)" + json::to_string(items) + "}}";
  } else {
    out += R"("NodeNames":[)";
    for (size_t i = 0; i < answer.nodes.size(); ++i) {
      if (i > 0) out += ',';
      json::append_quoted(out, answer.nodes[i]);
    }
    out += R"(],"Nodes":null})";
  }
  return {200, std::move(out), "application/json", false};
}

ServerResponse Extender::prioritize(const std::string& body) {
  Result<json::Object> object = parse_body(body);
  if (!object) return error_response(400, "prioritize: " + object.error().message);
  Result<Args> args = parse_args(*object);
  if (!args) return error_response(400, "prioritize: " + args.error().message);
  json::Array out;
  for (const auto& [name, score] : state_.rank(args->pod, args->names))
    out.push_back(json::Object{{"Host", name}, {"Score", score}});
  return ok(std::move(out));
}

ServerResponse Extender::bind(const std::string& body) {
  Result<json::Object> object = parse_body(body);
  if (!object) return error_response(400, "bind: " + object.error().message);
  BindRequest request;
  struct Field {
    const char* key;
    std::string* to;
  };
  for (const Field& field : {Field{"PodUID", &request.uid}, Field{"PodNamespace", &request.name_space},
                             Field{"PodName", &request.name}, Field{"Node", &request.node}}) {
    Result<std::string> value = text_of(*object, field.key);
    if (!value) return error_response(400, "bind: " + value.error().message);
    *field.to = *std::move(value);
  }
  std::string error = bind_(request);
  ServerResponse response = ok(json::Object{{"Error", error}});
  response.failed = !error.empty();
  return response;
}

ServerResponse Extender::preempt(const std::string& body) {
  Result<json::Object> object = parse_body(body);
  if (!object) return error_response(400, "preempt: " + object.error().message);
  Result<kube::Pod> pod = parse_pod(*object);
  if (!pod) return error_response(400, "preempt: " + pod.error().message);
  std::map<std::string, State::Victims> proposed;
  const json::Value* meta = find_any_case(*object, "NodeNameToMetaVictims");
  const json::Value* full = find_any_case(*object, "NodeNameToVictims");
  const json::Value* map = meta != nullptr ? meta : full;
  if (map == nullptr || !map->is_object())
    return error_response(400, "preempt: 'NodeNameToMetaVictims' is missing or no object");
  for (const auto& member : map->get_object()) {
    if (!member.value().is_object()) return error_response(400, "preempt: victims of a node are not an object");
    const json::Object& victims = member.value().get_object();
    State::Victims& one = proposed[member.key()];
    if (const json::Value* count = find_any_case(victims, "NumPDBViolations"); count != nullptr && count->is_int64()) {
      one.disruption_violations = count->get_int64();
    }
    const json::Value* pods = find_any_case(victims, "Pods");
    if (pods == nullptr || !pods->is_array()) continue;
    for (const json::Value& victim : pods->get_array()) {
      if (!victim.is_object()) return error_response(400, "preempt: a victim is not an object");
      Result<std::string> uid = text_of(victim.get_object(), "UID");
      if (!uid) {  // the full form holds whole pods
        Result<kube::Pod> whole = kube::decode_pod(victim);
        if (!whole || whole->uid.empty()) return error_response(400, "preempt: a victim without UID");
        one.uids.push_back(whole->uid);
      } else {
        one.uids.push_back(*std::move(uid));
      }
    }
  }
  json::Object out;
  for (const auto& [node, victims] : state_.preempt(*pod, proposed)) {
    json::Array pods;
    for (const std::string& uid : victims.uids) pods.push_back(json::Object{{"UID", uid}});
    out[node] = json::Object{{"Pods", std::move(pods)}, {"NumPDBViolations", victims.disruption_violations}};
  }
  return ok(json::Object{{"NodeNameToMetaVictims", std::move(out)}});
}

}  // namespace sluice::scheduler
