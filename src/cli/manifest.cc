#include "cli/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/yaml.h"
#include "cli/manifest_fields.h"
#include "core/request.h"

namespace sluice::cli {
namespace {

using Env = std::vector<std::pair<std::string, std::string>>;

std::string kind_of(const json::Value& value) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return "nothing";
    case boost::json::kind::bool_:
      return "true or false";
    case boost::json::kind::int64:
    case boost::json::kind::uint64:
    case boost::json::kind::double_:
      return "a number";
    case boost::json::kind::string:
      return "text";
    case boost::json::kind::array:
      return "a list";
    case boost::json::kind::object:
      return "a mapping";
  }
  return "something else";
}

Error wrong_kind(const std::string& path, const json::Value& value, std::string_view expected) {
  return invalid(fmt::format("{} is {}, but has to be {}", path, kind_of(value), expected));
}

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

// The member, or nullptr when it is absent or null.
const json::Value* member(const json::Object& object, std::string_view key) {
  const json::Value* value = object.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<const json::Object*> as_object(const json::Value* value, const std::string& path) {
  static const json::Object kEmpty;
  if (value == nullptr) return &kEmpty;
  if (!value->is_object()) return wrong_kind(path, *value, "a mapping");
  return &value->get_object();
}

Result<const json::Array*> as_array(const json::Value* value, const std::string& path) {
  static const json::Array kEmpty;
  if (value == nullptr) return &kEmpty;
  if (!value->is_array()) return wrong_kind(path, *value, "a list");
  return &value->get_array();
}

Result<std::string> as_text(const json::Value* value, const std::string& path) {
  if (value == nullptr) return std::string();
  if (!value->is_string()) {
    return invalid(fmt::format("{} is {}, but has to be text; write it in quotes: \"{}\"", path, kind_of(*value),
                               value->is_structured() ? "..." : json::to_string(*value)));
  }
  std::string text(value->get_string());
  // JSON and YAML can write it, a command line and an environment cannot: they would end there.
  if (text.find('\0') != std::string::npos)
    return invalid(fmt::format("{} holds a NUL character (\\0), which no command, variable or path can hold", path));
  return text;
}

bool is_empty(const json::Value& value) {
  return value.is_null() || (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

// Refuses what the table refuses and does not know; notes what it ignores.
Result<void> check_fields(const json::Object& object, const std::string& path, std::span<const Field> fields,
                          std::vector<std::string>& ignored) {
  for (const auto& [key, value] : object) {
    const std::string_view name(key.data(), key.size());
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
    if (field == fields.end()) {
      return invalid(
          fmt::format("{} is no field that Kubernetes knows here; is it a typing mistake or in the wrong place?",
                      join(path, name)));
    }
    if (is_empty(value)) continue;
    if (field->use == FieldUse::kRefused) {
      return invalid(fmt::format("{} is not supported by sluice run: {}", join(path, name), field->reason));
    }
    if (field->use == FieldUse::kIgnored) ignored.emplace_back(name);
  }
  return {};
}

// "10" of `10`, `"10"`. Absent: nullopt. Whether it makes sense is for the one parser in core to say.
Result<std::optional<std::string>> quantity(const json::Object& limits, std::string_view name,
                                            const std::string& path) {
  const json::Value* value = member(limits, name);
  if (value == nullptr) return std::optional<std::string>();
  if (value->is_string()) return std::optional<std::string>(std::string(value->get_string()));
  if (value->is_number()) return std::optional<std::string>(json::to_string(*value));
  return wrong_kind(fmt::format("{}[{}]", path, name), *value, "a quantity such as 10");
}

// Reads one container of one pod into the spec; the functions below are its paragraphs.
class ContainerReader {
 public:
  ContainerReader(const json::Object& container, std::string path, const json::Object& pod, std::string pod_path)
      : container_(container), path_(std::move(path)), pod_(pod), pod_path_(std::move(pod_path)) {}

  Result<void> read(JobSpec& spec) {
    if (auto r = check_fields(container_, path_, kContainerFields, spec.ignored); !r) return r;
    auto name = as_text(member(container_, "name"), at("name"));
    if (!name) return std::move(name).error();
    spec.container = *name;
    if (auto r = read_env(spec); !r) return r;
    if (auto r = read_command(spec); !r) return r;
    auto directory = as_text(member(container_, "workingDir"), at("workingDir"));
    if (!directory) return std::move(directory).error();
    spec.working_directory = *directory;
    if (auto r = read_resources(spec); !r) return r;
    if (auto r = check_mounts(); !r) return r;
    return check_security();
  }

 private:
  std::string at(std::string_view key) const { return join(path_, key); }

  Result<void> read_env(JobSpec& spec) {
    auto list = as_array(member(container_, "env"), at("env"));
    if (!list) return std::move(list).error();
    for (size_t i = 0; i < (*list)->size(); ++i) {
      const std::string here = fmt::format("{}[{}]", at("env"), i);
      auto entry = as_object(&(**list)[i], here);
      if (!entry) return std::move(entry).error();
      auto name = as_text(member(**entry, "name"), here + ".name");
      if (!name) return std::move(name).error();
      if (name->empty() || name->find('=') != std::string::npos) {
        return invalid(fmt::format("{}.name is '{}'; a variable needs a name without '='", here, *name));
      }
      Result<std::string> value = member(**entry, "valueFrom") != nullptr
                                      ? value_from(**entry, spec, here)
                                      : as_text(member(**entry, "value"), here + ".value");
      if (!value) return std::move(value).error();
      spec.env.emplace_back(*name, expand_references(*value, spec.env));
      if (*name == kEnvWeight) spec.weight = spec.env.back().second;
      if (*name == kEnvHighPriority) {
        const std::string& text = spec.env.back().second;
        spec.high_priority = !text.empty() && text != "0" && text != "false";
      }
    }
    return {};
  }

  // The downward API's two fields that have a meaning without a cluster.
  static Result<std::string> value_from(const json::Object& entry, const JobSpec& spec, const std::string& here) {
    auto source = as_object(member(entry, "valueFrom"), here + ".valueFrom");
    if (!source) return std::move(source).error();
    auto field = as_object(member(**source, "fieldRef"), here + ".valueFrom.fieldRef");
    if (!field) return std::move(field).error();
    auto path = as_text(member(**field, "fieldPath"), here + ".valueFrom.fieldRef.fieldPath");
    if (!path) return std::move(path).error();
    if (*path == "metadata.name") return spec.name;
    if (*path == "metadata.namespace") return std::string("default");
    return invalid(
        fmt::format("{}.valueFrom is not supported by sluice run: what it refers to lives in a cluster; write a "
                    "value instead",
                    here));
  }

  Result<void> read_command(JobSpec& spec) {
    for (const char* key : {"command", "args"}) {
      auto list = as_array(member(container_, key), at(key));
      if (!list) return std::move(list).error();
      for (size_t i = 0; i < (*list)->size(); ++i) {
        auto word = as_text(&(**list)[i], fmt::format("{}[{}]", at(key), i));
        if (!word) return std::move(word).error();
        spec.command.push_back(expand_references(*word, spec.env));
      }
      if (*key == 'c' && spec.command.empty()) {
        return invalid(
            fmt::format("{} is missing: the image, which would name a program, is not used by sluice run; "
                        "write the program into command",
                        at("command")));
      }
    }
    return {};
  }

  Result<void> read_resources(JobSpec& spec) {
    auto resources = as_object(member(container_, "resources"), at("resources"));
    if (!resources) return std::move(resources).error();
    if (auto r = check_fields(**resources, at("resources"), kResourceFields, spec.ignored); !r) return r;
    auto limits = as_object(member(**resources, "limits"), at("resources.limits"));
    if (!limits) return std::move(limits).error();
    auto requests = as_object(member(**resources, "requests"), at("resources.requests"));
    if (!requests) return std::move(requests).error();
    const std::pair<const char*, std::optional<std::string>*> wanted[] = {
        {core::kResourceMemory, &spec.memory_units},
        {core::kResourceCore, &spec.core_percent},
        {core::kResourceWholeCards, &spec.whole_cards}};
    for (const auto& [name, into] : wanted) {
      auto limit = quantity(**limits, name, at("resources.limits"));
      if (!limit) return std::move(limit).error();
      auto request = quantity(**requests, name, at("resources.requests"));
      if (!request) return std::move(request).error();
      if (*request && *request != *limit) {
        return invalid(
            fmt::format("{}: requests says {}, limits says {}; for an extended resource limits is what counts "
                        "and requests, if written, has to be the same",
                        name, **request, *limit ? **limit : "nothing"));
      }
      *into = *limit;
    }
    for (const json::Object* list : {*limits, *requests}) {
      for (const auto& [key, value] : *list) {
        const std::string_view name(key.data(), key.size());
        const bool ours =
            std::any_of(std::begin(wanted), std::end(wanted), [&](const auto& w) { return name == w.first; });
        const std::string note = fmt::format("resources ({})", name);
        const bool said = std::find(spec.ignored.begin(), spec.ignored.end(), note) != spec.ignored.end();
        if (!ours && !said) spec.ignored.push_back(note);
      }
    }
    return {};
  }

  // Two mounts mean nothing more than what is there already: scratch space at /dev/shm, and a folder of this machine at
  // its own place. Others would need a container.
  Result<void> check_mounts() {
    auto mounts = as_array(member(container_, "volumeMounts"), at("volumeMounts"));
    if (!mounts) return std::move(mounts).error();
    auto volumes = as_array(member(pod_, "volumes"), join(pod_path_, "volumes"));
    if (!volumes) return std::move(volumes).error();
    for (size_t i = 0; i < (*mounts)->size(); ++i) {
      const std::string here = fmt::format("{}[{}]", at("volumeMounts"), i);
      auto mount = as_object(&(**mounts)[i], here);
      if (!mount) return std::move(mount).error();
      auto name = as_text(member(**mount, "name"), here + ".name");
      auto place = as_text(member(**mount, "mountPath"), here + ".mountPath");
      if (!name) return std::move(name).error();
      if (!place) return std::move(place).error();
      if (!already_there(**volumes, *name, *place)) {
        return invalid(
            fmt::format("{} is not supported by sluice run: volume '{}' at {} would need a container; only an "
                        "emptyDir at /dev/shm and a hostPath at its own path work here",
                        here, *name, *place));
      }
    }
    return {};
  }

  static bool already_there(const json::Array& volumes, const std::string& name, const std::string& place) {
    for (const json::Value& value : volumes) {
      if (!value.is_object()) continue;
      const json::Object& volume = value.get_object();
      const json::Value* named = member(volume, "name");
      if (named == nullptr || !named->is_string() || std::string_view(named->get_string()) != name) continue;
      if (volume.contains("emptyDir")) return place == "/dev/shm";
      const json::Value* host = member(volume, "hostPath");
      if (host == nullptr || !host->is_object()) return false;
      const json::Value* path = member(host->get_object(), "path");
      return path != nullptr && path->is_string() && std::string_view(path->get_string()) == place;
    }
    return false;
  }

  Result<void> check_security() {
    auto context = as_object(member(container_, "securityContext"), at("securityContext"));
    if (!context) return std::move(context).error();
    const json::Value* privileged = member(**context, "privileged");
    if (privileged != nullptr && !privileged->is_bool())
      return wrong_kind(at("securityContext.privileged"), *privileged, "true or false");
    if (privileged != nullptr && privileged->get_bool()) {
      return invalid(fmt::format("{} is true: a privileged program could remove its own limits; leave it out",
                                 at("securityContext.privileged")));
    }
    return {};
  }

  const json::Object& container_;
  const std::string path_;
  const json::Object& pod_;
  const std::string pod_path_;
};

Result<void> expect_value(const json::Object& object, const std::string& path, std::string_view key,
                          const json::Value& expected, std::string_view why) {
  const json::Value* value = member(object, key);
  if (value == nullptr || *value == expected) return {};
  return invalid(fmt::format("{} is {}: {}", join(path, key), json::to_string(*value), why));
}

Result<void> read_pod(const json::Object& pod, const std::string& path, JobSpec& spec) {
  if (auto r = check_fields(pod, path, kPodFields, spec.ignored); !r) return r;
  auto containers = as_array(member(pod, "containers"), join(path, "containers"));
  if (!containers) return std::move(containers).error();
  if ((*containers)->empty()) return invalid(fmt::format("{} is missing or empty", join(path, "containers")));
  if ((*containers)->size() > 1) {
    return invalid(
        fmt::format("{} lists {} containers, but sluice run starts one command; keep the one that uses the card",
                    join(path, "containers"), (*containers)->size()));
  }
  const std::string here = join(path, "containers[0]");
  auto container = as_object(&(**containers)[0], here);
  if (!container) return std::move(container).error();
  return ContainerReader(**container, here, pod, path).read(spec);
}

Result<void> read_card_count(const json::Object& metadata, const std::string& path, JobSpec& spec) {
  auto labels = as_object(member(metadata, "labels"), join(path, "labels"));
  if (!labels) return std::move(labels).error();
  const json::Value* count = member(**labels, core::kLabelCardCount);
  if (count == nullptr) return {};
  auto text = as_text(count, fmt::format("{}.labels[{}]", path, core::kLabelCardCount));
  if (!text) return std::move(text).error();
  spec.card_count = *text;
  return {};
}

Result<JobSpec> read_object(const json::Object& object) {
  JobSpec spec;
  spec.kind = *json::get_string_or(object, "kind", "");
  if (auto r = check_fields(object, "", kObjectFields, spec.ignored); !r) return std::move(r).error();
  auto metadata = as_object(member(object, "metadata"), "metadata");
  if (!metadata) return std::move(metadata).error();
  auto name = as_text(member(**metadata, "name"), "metadata.name");
  if (!name) return std::move(name).error();
  spec.name = *name;
  if (spec.name.empty()) {
    auto prefix = as_text(member(**metadata, "generateName"), "metadata.generateName");
    if (!prefix) return std::move(prefix).error();
    spec.name = prefix->ends_with('-') ? prefix->substr(0, prefix->size() - 1) : *prefix;
  }
  if (spec.name.empty()) return invalid("metadata.name is missing");
  auto top = as_object(member(object, "spec"), "spec");
  if (!top) return std::move(top).error();
  const std::string expected = spec.kind == "Job" ? "batch/v1" : "v1";
  if (auto r = expect_value(object, "", "apiVersion", json::Value(expected),
                            fmt::format("a {} is known as {}", spec.kind, expected));
      !r) {
    return std::move(r).error();
  }
  if (spec.kind == "Pod") {
    if (auto r = read_card_count(**metadata, "metadata", spec); !r) return std::move(r).error();
    if (auto r = read_pod(**top, "spec", spec); !r) return std::move(r).error();
    return spec;
  }
  if (auto r = check_fields(**top, "spec", kJobFields, spec.ignored); !r) return std::move(r).error();
  const std::tuple<const char*, json::Value, const char*> fixed[] = {
      {"completions", 1, "sluice run starts the command once; start it several times instead"},
      {"parallelism", 1, "sluice run starts the command once; start it several times instead"},
      {"completionMode", "NonIndexed", "indexes are given by a cluster; pass the index in the command instead"},
      {"suspend", false, "a suspended Job is not run; leave it out"}};
  for (const auto& [key, value, why] : fixed) {
    if (auto r = expect_value(**top, "spec", key, value, why); !r) return std::move(r).error();
  }
  auto pod_template = as_object(member(**top, "template"), "spec.template");
  if (!pod_template) return std::move(pod_template).error();
  if (auto r = check_fields(**pod_template, "spec.template", kTemplateFields, spec.ignored); !r)
    return std::move(r).error();
  auto pod_metadata = as_object(member(**pod_template, "metadata"), "spec.template.metadata");
  if (!pod_metadata) return std::move(pod_metadata).error();
  if (auto r = read_card_count(**pod_metadata, "spec.template.metadata", spec); !r) return std::move(r).error();
  auto pod = as_object(member(**pod_template, "spec"), "spec.template.spec");
  if (!pod) return std::move(pod).error();
  if (auto r = read_pod(**pod, "spec.template.spec", spec); !r) return std::move(r).error();
  return spec;
}

struct Candidate {
  const json::Object* object;
  std::string name;
};

// Jobs and Pods of all documents, Lists opened.
Result<std::vector<Candidate>> candidates(const std::vector<json::Value>& documents, std::string& other_kinds) {
  std::vector<Candidate> found;
  std::vector<const json::Value*> todo;
  for (const json::Value& document : documents) {
    const json::Value* items = document.is_object() ? document.get_object().if_contains("items") : nullptr;
    if (items != nullptr && items->is_array()) {
      for (const json::Value& item : items->get_array()) todo.push_back(&item);
    } else {
      todo.push_back(&document);
    }
  }
  for (const json::Value* value : todo) {
    if (!value->is_object())
      return wrong_kind("the manifest", *value, "a mapping with apiVersion, kind, metadata and spec");
    const json::Object& object = value->get_object();
    const json::Value* kind = member(object, "kind");
    if (kind == nullptr || !kind->is_string()) return invalid("kind is missing; it has to be Job or Pod");
    const std::string_view text = kind->get_string();
    if (text != "Job" && text != "Pod") {
      other_kinds += fmt::format("{}{}", other_kinds.empty() ? "" : ", ", text);
      continue;
    }
    const json::Value* metadata = member(object, "metadata");
    const json::Value* name =
        metadata != nullptr && metadata->is_object() ? member(metadata->get_object(), "name") : nullptr;
    found.push_back({&object, name != nullptr && name->is_string() ? std::string(name->get_string()) : ""});
  }
  return found;
}

}  // namespace

std::string expand_references(std::string_view text, const Env& env) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$' || i + 1 == text.size()) {
      out += text[i];
    } else if (text[i + 1] == '$') {
      out += '$';
      ++i;
    } else if (const size_t end = text.find(')', i); text[i + 1] == '(' && end != std::string_view::npos) {
      const std::string_view name = text.substr(i + 2, end - i - 2);
      const auto value = std::find_if(env.rbegin(), env.rend(), [&](const auto& entry) { return entry.first == name; });
      out += value == env.rend() ? text.substr(i, end - i + 1) : std::string_view(value->second);
      i = end;
    } else {
      out += '$';
    }
  }
  return out;
}

Result<JobSpec> parse_manifest(std::string_view text, const std::string& job) {
  auto documents = yaml::parse_documents(text);
  if (!documents) return std::move(documents).error();
  std::string other_kinds;
  auto found = candidates(*documents, other_kinds);
  if (!found) return std::move(found).error();
  if (found->empty()) {
    return invalid(
        other_kinds.empty()
            ? "the manifest is empty; a Job or a Pod is needed"
            : fmt::format("the manifest holds {}, but sluice run takes a batch/v1 Job or a Pod", other_kinds));
  }
  std::vector<std::string> names;
  for (const Candidate& candidate : *found) names.push_back(candidate.name);
  if (job.empty()) {
    if (found->size() == 1) return read_object(*found->front().object);
    return invalid(fmt::format("the manifest holds {} Jobs and Pods ({}); choose one with --job NAME", found->size(),
                               fmt::join(names, ", ")));
  }
  const auto chosen = std::find_if(found->begin(), found->end(), [&](const Candidate& c) { return c.name == job; });
  if (chosen == found->end()) {
    return not_found(fmt::format("no Job or Pod called '{}' in the manifest; it has {}", job, fmt::join(names, ", ")));
  }
  return read_object(*chosen->object);
}

}  // namespace sluice::cli
