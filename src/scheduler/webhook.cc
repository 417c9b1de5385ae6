#include "scheduler/webhook.h"

#include <fmt/format.h>
#include <openssl/evp.h>

namespace sluice::scheduler {
namespace {

// Where a kind keeps its pod: the path from the object to what has `metadata` and `spec`.
struct Place {
  std::string_view kind;
  std::string_view path;  // separated by dots; empty: the object itself
};
constexpr Place kPlaces[] = {
    {"Pod", ""},
    {"Job", "spec.template"},
    {"CronJob", "spec.jobTemplate.spec.template"},
    {"Deployment", "spec.template"},
    {"StatefulSet", "spec.template"},
    {"ReplicaSet", "spec.template"},
    {"DaemonSet", "spec.template"},
};

const json::Object* object_at(const json::Object& root, std::string_view path) {
  const json::Object* at = &root;
  while (!path.empty()) {
    size_t dot = std::min(path.find('.'), path.size());
    const json::Value* next = at->if_contains(path.substr(0, dot));
    if (next == nullptr || !next->is_object()) return nullptr;
    at = &next->get_object();
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

std::string base64(const std::string& text) {
  std::string out((text.size() + 2) / 3 * 4 + 1, '\0');
  int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                             reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  out.resize(static_cast<size_t>(size));
  return out;
}

json::Array pod_patch(const json::Object& pod, const WebhookSettings& settings) {
  static const json::Object kNone;
  json::Array patch;
  const json::Object* spec = object_at(pod, "spec");
  if (spec == nullptr) spec = &kNone;
  Result<std::string> scheduler = json::get_string_or(*spec, "schedulerName", "");
  if (!settings.scheduler_name.empty() && scheduler && (scheduler->empty() || *scheduler == "default-scheduler")) {
    patch.push_back(json::Object{{"op", "add"}, {"path", "/spec/schedulerName"}, {"value", settings.scheduler_name}});
  }
  if (!settings.toleration_key.empty()) {
    json::Value toleration =
        json::Object{{"key", settings.toleration_key}, {"operator", "Exists"}, {"effect", "NoSchedule"}};
    const json::Value* present = spec->if_contains("tolerations");
    bool list = present != nullptr && present->is_array();
    bool there = false;
    if (list) {
      for (const json::Value& one : present->get_array()) there = there || one == toleration;
    }
    if (!there) {
      patch.push_back(json::Object{{"op", "add"},
                                   {"path", list ? "/spec/tolerations/-" : "/spec/tolerations"},
                                   {"value", list ? toleration : json::Value(json::Array{toleration})}});
    }
  }
  return patch;
}

}  // namespace

ServerResponse Webhook::review(const std::string& body) {
  Result<json::Value> review = json::parse(body);
  if (!review || !review->is_object()) return error_response(400, "admission review: not a JSON object");
  const json::Object* request = object_at(review->get_object(), "request");
  if (request == nullptr) return error_response(400, "admission review: 'request' is missing");
  Result<std::string> uid = json::get_string(*request, "uid");
  const json::Object* kind_object = object_at(*request, "kind");
  Result<std::string> kind =
      kind_object != nullptr ? json::get_string(*kind_object, "kind") : Result<std::string>(invalid("no kind"));
  if (!uid || !kind) return error_response(400, "admission review: 'request.uid' or 'request.kind.kind' is missing");

  json::Object response{{"uid", *uid}, {"allowed", true}};
  std::string fault;
  const json::Object* object = object_at(*request, "object");
  for (const Place& place : kPlaces) {
    if (place.kind != *kind || object == nullptr) continue;
    const json::Object* pod = object_at(*object, place.path);
    const json::Object* spec = pod != nullptr ? object_at(*pod, "spec") : nullptr;
    if (spec == nullptr) break;
    const json::Object* labels = object_at(*pod, "metadata.labels");
    Result<core::PodText> text = kube::decode_pod_text(*spec, labels != nullptr ? *labels : json::Object{});
    if (!text) {
      fault = text.error().message;
      break;
    }
    Result<core::PodRequest> parsed = core::parse_pod(*text);
    if (!parsed)
      fault = parsed.error().message;
    else if (parsed->total.kind != core::Kind::kNone)
      fault = state_.never_fits(parsed->total);
    bool asks = !parsed || parsed->total.kind == core::Kind::kMemory || parsed->total.kind == core::Kind::kMemoryCore;
    if (*kind == "Pod" && asks) {
      json::Array patch = pod_patch(*pod, settings_);
      if (!patch.empty()) {
        response["patchType"] = "JSONPatch";
        response["patch"] = base64(json::to_string(patch));
      }
    }
  }
  if (!fault.empty() && settings_.refuse) {
    response["allowed"] = false;
    response["status"] = json::Object{{"code", 422}, {"message", "sluice: " + fault}};
    response.erase("patch");
    response.erase("patchType");
  } else if (!fault.empty()) {
    response["warnings"] = json::Array{json::Value("sluice: " + fault + " (the pod will stay Pending)")};
  }
  return {200,
          json::to_string(
              json::Object{{"apiVersion", "admission.k8s.io/v1"}, {"kind", "AdmissionReview"}, {"response", response}}),
          "application/json", false};
}

}  // namespace sluice::scheduler
