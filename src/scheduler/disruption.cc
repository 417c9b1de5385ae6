#include "scheduler/disruption.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::scheduler {
namespace {

Result<Requirement> decode_requirement(const json::Value& value) {
  if (!value.is_object()) return invalid("'matchExpressions' holds something that is not an object");
  const json::Object& object = value.get_object();
  Requirement out;
  Result<std::string> key = json::get_string(object, "key");
  if (!key) return std::move(key).error();
  out.key = *key;
  Result<std::string> name = json::get_string(object, "operator");
  if (!name) return std::move(name).error();
  static const std::map<std::string, Requirement::Operator> kOperators = {
      {"In", Requirement::Operator::kIn},
      {"NotIn", Requirement::Operator::kNotIn},
      {"Exists", Requirement::Operator::kExists},
      {"DoesNotExist", Requirement::Operator::kDoesNotExist},
  };
  auto found = kOperators.find(*name);
  if (found == kOperators.end()) return invalid(fmt::format("unknown operator '{}'", *name));
  out.op = found->second;
  if (const json::Value* values = object.if_contains("values"); values != nullptr && values->is_array()) {
    for (const json::Value& one : values->get_array()) {
      if (one.is_string()) out.values.emplace_back(one.get_string());
    }
  }
  return out;
}

bool holds(const Requirement& requirement, const std::map<std::string, std::string>& labels) {
  auto label = labels.find(requirement.key);
  bool there = label != labels.end();
  bool listed = there && std::find(requirement.values.begin(), requirement.values.end(), label->second) !=
                             requirement.values.end();
  switch (requirement.op) {
    case Requirement::Operator::kIn:
      return listed;
    case Requirement::Operator::kNotIn:
      return !listed;
    case Requirement::Operator::kExists:
      return there;
    case Requirement::Operator::kDoesNotExist:
      return !there;
  }
  return false;
}

}  // namespace

bool DisruptionBudget::selects(const kube::Pod& pod) const {
  if (selects_nothing || pod.name_space != name_space) return false;
  return std::all_of(selector.begin(), selector.end(),
                     [&pod](const Requirement& one) { return holds(one, pod.labels); });
}

Result<DisruptionBudget> decode_budget(const json::Value& object) {
  static const json::Object kNone;
  if (!object.is_object()) return invalid("a PodDisruptionBudget is an object");
  auto child = [](const json::Object& from, const char* key) -> const json::Object& {
    const json::Value* value = from.if_contains(key);
    return value != nullptr && value->is_object() ? value->get_object() : kNone;
  };
  const json::Object& metadata = child(object.get_object(), "metadata");
  const json::Object& spec = child(object.get_object(), "spec");
  DisruptionBudget out;
  Result<std::string> name = json::get_string(metadata, "name");
  if (!name) return std::move(name).error();
  out.name = *name;
  Result<std::string> name_space = json::get_string_or(metadata, "namespace", "default");
  if (!name_space) return std::move(name_space).error();
  out.name_space = *name_space;
  Result<int64_t> allowed = json::get_int_or(child(object.get_object(), "status"), "disruptionsAllowed", 0);
  if (!allowed) return std::move(allowed).error();
  out.allowed = *allowed;
  const json::Value* selector = spec.if_contains("selector");
  out.selects_nothing = selector == nullptr || !selector->is_object();
  if (out.selects_nothing) return out;
  for (const auto& member : child(selector->get_object(), "matchLabels")) {
    if (!member.value().is_string()) return invalid("'matchLabels' holds something that is not a string");
    out.selector.push_back(
        {std::string(member.key()), Requirement::Operator::kIn, {std::string(member.value().get_string())}});
  }
  if (const json::Value* list = selector->get_object().if_contains("matchExpressions");
      list != nullptr && list->is_array()) {
    for (const json::Value& one : list->get_array()) {
      Result<Requirement> requirement = decode_requirement(one);
      if (!requirement) return std::move(requirement).error();
      out.selector.push_back(*std::move(requirement));
    }
  }
  return out;
}

std::vector<bool> violations(const std::vector<const kube::Pod*>& pods,
                             const std::map<std::string, DisruptionBudget>& budgets) {
  std::map<std::string, int64_t> left;
  for (const auto& [key, budget] : budgets) left[key] = budget.allowed;
  std::vector<bool> out;
  for (const kube::Pod* pod : pods) {
    bool broken = false;
    for (const auto& [key, budget] : budgets) {
      if (budget.selects(*pod) && --left[key] < 0) broken = true;
    }
    out.push_back(broken);
  }
  return out;
}

}  // namespace sluice::scheduler
