// The JSON of each struct of the protocol, one line per member in each direction. Bounds stand beside the member.
#include "agent/fields.h"
#include "agent/protocol.h"
#include "page/grant.h"

namespace sluice::agent {
namespace {

constexpr size_t kMaxCards = 64;
constexpr size_t kMaxGrants = 4096;
constexpr size_t kMaxProcesses = 16384;
constexpr int64_t kMaxCount = int64_t{1} << 53;

template <typename T>
Result<T> finish(const Fields& fields, T value) {
  if (fields.error()) return *fields.error();
  return value;
}

json::Array text_array(const std::vector<std::string>& texts) {
  json::Array array;
  for (const std::string& text : texts) array.emplace_back(text);
  return array;
}

template <typename T, typename Encode>
json::Array array_of(const std::vector<T>& items, Encode encode) {
  json::Array array;
  for (const T& item : items) array.emplace_back(encode(item));
  return array;
}

json::Object encode_card(const GrantCardAnswer& card) {
  return {{"index", card.index},
          {"uuid", card.uuid},
          {"model", card.model},
          {"card_memory_mib", card.card_memory_mib},
          {"card_units", card.card_units},
          {"units", card.units},
          {"memory_limit_mib", card.memory_limit_mib},
          {"core_percent", card.core_percent},
          {"device_node", card.device_node}};
}

Result<GrantCardAnswer> decode_card(const json::Object& object) {
  GrantCardAnswer card;
  Fields f(object);
  f.number("index", card.index, 0, 4096);
  f.text("uuid", card.uuid, 128);
  f.text("model", card.model, 256);
  f.number("card_memory_mib", card.card_memory_mib, 0, kMaxCount);
  f.number("card_units", card.card_units, 0, kMaxCount);
  f.number("units", card.units, 0, kMaxCount);
  f.number("memory_limit_mib", card.memory_limit_mib, 0, kMaxCount);
  f.number("core_percent", card.core_percent, 0, 100);
  f.text("device_node", card.device_node);
  return finish(f, std::move(card));
}

json::Object encode_driver(const DriverFile& file) {
  return {{"soname", file.soname},
          {"real_path", file.real_path},
          {"cover", text_array(file.cover)},
          {"guest_path", file.guest_path}};
}

Result<DriverFile> decode_driver(const json::Object& object) {
  DriverFile file;
  Fields f(object);
  f.text("soname", file.soname, 256);
  f.text("real_path", file.real_path);
  f.texts("cover", file.cover, 256);
  f.text("guest_path", file.guest_path);
  return finish(f, std::move(file));
}

json::Object encode_process(const ProcessStatus& p) {
  return {{"pid", p.pid},
          {"card_index", p.card_index},
          {"command", p.command},
          {"used_mib", p.used_mib},
          {"reserved_mib", p.reserved_mib},
          {"utilisation_percent", p.utilisation_percent},
          {"launches", p.launches},
          {"throttled_seconds", p.throttled_seconds},
          {"granted", p.granted},
          {"memory_copy_percent", p.memory_copy_percent},
          {"encoder_percent", p.encoder_percent},
          {"decoder_percent", p.decoder_percent}};
}

Result<ProcessStatus> decode_process(const json::Object& object) {
  ProcessStatus p;
  Fields f(object);
  f.number("pid", p.pid, 0, kMaxCount);
  f.number("card_index", p.card_index, 0, 4096);
  f.text("command", p.command);
  f.number("used_mib", p.used_mib, -1, kMaxCount);
  f.number("reserved_mib", p.reserved_mib, 0, kMaxCount);
  f.fraction("utilisation_percent", p.utilisation_percent);
  f.number("launches", p.launches, 0);
  f.fraction("throttled_seconds", p.throttled_seconds);
  f.flag("granted", p.granted);
  f.fraction("memory_copy_percent", p.memory_copy_percent);
  f.fraction("encoder_percent", p.encoder_percent);
  f.fraction("decoder_percent", p.decoder_percent);
  return finish(f, std::move(p));
}

json::Object encode_use(const GrantUse& use) {
  return {{"card_index", use.card_index},
          {"used_mib", use.used_mib},
          {"reserved_mib", use.reserved_mib},
          {"utilisation_percent", use.utilisation_percent},
          {"refused_allocations", use.refused_allocations},
          {"overruns", use.overruns},
          {"tampering", use.tampering}};
}

Result<GrantUse> decode_use(const json::Object& object) {
  GrantUse use;
  Fields f(object);
  f.number("card_index", use.card_index, 0, 4096);
  f.number("used_mib", use.used_mib, 0, kMaxCount);
  f.number("reserved_mib", use.reserved_mib, 0, kMaxCount);
  f.fraction("utilisation_percent", use.utilisation_percent);
  f.number("refused_allocations", use.refused_allocations, 0);
  f.number("overruns", use.overruns, 0);
  f.number("tampering", use.tampering, 0);
  return finish(f, use);
}

json::Object encode_grant_status(const GrantStatus& g) {
  return {{"id", g.id},
          {"name", g.name},
          {"pod", g.pod},
          {"owner_uid", g.owner_uid},
          {"runner_pid", g.runner_pid},
          {"whole_cards", g.whole_cards},
          {"taken_over", g.taken_over},
          {"started_unix", g.started_unix},
          {"policy", g.policy},
          {"weight", g.weight},
          {"high_priority", g.high_priority},
          {"cards", array_of(g.cards, encode_card)},
          {"use", array_of(g.use, encode_use)},
          {"processes", array_of(g.processes, encode_process)}};
}

Result<GrantStatus> decode_grant_status(const json::Object& object) {
  GrantStatus g;
  Fields f(object);
  f.text("id", g.id, 64);
  f.text("name", g.name, 256);
  f.text("pod", g.pod, 256);
  f.number("owner_uid", g.owner_uid, 0, kMaxCount);
  f.number("runner_pid", g.runner_pid, 0, kMaxCount);
  f.flag("whole_cards", g.whole_cards);
  f.flag("taken_over", g.taken_over);
  f.number("started_unix", g.started_unix, 0);
  f.number("policy", g.policy, 0, page::kPolicyNative);
  f.number("weight", g.weight, 1, kMaxWeight);
  f.flag("high_priority", g.high_priority);
  f.objects("cards", g.cards, kMaxCards, decode_card);
  f.objects("use", g.use, kMaxCards, decode_use);
  f.objects("processes", g.processes, kMaxProcesses, decode_process);
  return finish(f, std::move(g));
}

json::Object encode_card_status(const CardStatus& c) {
  return {{"index", c.index},
          {"uuid", c.uuid},
          {"model", c.model},
          {"state", c.state},
          {"kind", c.kind},
          {"policy", c.policy},
          {"memory_mib", c.memory_mib},
          {"units", c.units},
          {"free_units", c.free_units},
          {"free_core_percent", c.free_core_percent},
          {"grants", c.grants},
          {"max_grants", c.max_grants},
          {"used_mib", c.used_mib},
          {"utilisation_percent", c.utilisation_percent},
          {"turns", c.turns},
          {"strangers", array_of(c.strangers, encode_process)}};
}

Result<CardStatus> decode_card_status(const json::Object& object) {
  CardStatus c;
  Fields f(object);
  f.number("index", c.index, 0, 4096);
  f.text("uuid", c.uuid, 128);
  f.text("model", c.model, 256);
  f.text("state", c.state, 64);
  f.text("kind", c.kind, 64);
  f.number("policy", c.policy, 0, page::kPolicyNative);
  f.number("memory_mib", c.memory_mib, 0, kMaxCount);
  f.number("units", c.units, 0, kMaxCount);
  f.number("free_units", c.free_units, 0, kMaxCount);
  f.number("free_core_percent", c.free_core_percent, 0, 100);
  f.number("grants", c.grants, 0, kMaxCount);
  f.number("max_grants", c.max_grants, 0, kMaxCount);
  f.number("used_mib", c.used_mib, 0, kMaxCount);
  f.fraction("utilisation_percent", c.utilisation_percent);
  f.flag("turns", c.turns);
  f.objects("strangers", c.strangers, kMaxProcesses, decode_process);
  return finish(f, std::move(c));
}

json::Object encode_event(const Event& e) {
  return {{"unix_ms", e.unix_ms}, {"what", e.what}, {"text", e.text}};
}

Result<Event> decode_event(const json::Object& object) {
  Event e;
  Fields f(object);
  f.number("unix_ms", e.unix_ms, 0);
  f.text("what", e.what, 64);
  f.text("text", e.text);
  return finish(f, std::move(e));
}

}  // namespace

json::Object GrantRequest::to_json() const {
  json::Object object{{"name", name},
                      {"pod", pod},
                      {"gpu_mem_units", gpu_mem_units},
                      {"core_percent", core_percent},
                      {"cards", cards},
                      {"whole_cards", whole_cards},
                      {"card_uuids", text_array(card_uuids)},
                      {"weight", weight},
                      {"high_priority", high_priority},
                      {"runner_pid", runner_pid}};
  if (policy) object["policy"] = *policy;
  return object;
}

Result<GrantRequest> GrantRequest::from_json(const json::Object& object) {
  GrantRequest r;
  Fields f(object);
  f.text("name", r.name, kMaxNameBytes);
  f.text("pod", r.pod, 256);
  f.number("gpu_mem_units", r.gpu_mem_units, 0, int64_t{1} << 30);
  f.number("core_percent", r.core_percent, 0, 100 * kMaxGrantCards);
  f.number("cards", r.cards, 1, kMaxGrantCards);
  f.number("whole_cards", r.whole_cards, 0, kMaxGrantCards);
  f.texts("card_uuids", r.card_uuids, kMaxCards);
  if (f.has("policy")) {
    uint32_t policy = 0;
    f.number("policy", policy, 0, page::kPolicyNative);
    r.policy = policy;
  }
  f.number("weight", r.weight, 1, kMaxWeight);
  f.flag("high_priority", r.high_priority);
  f.number("runner_pid", r.runner_pid, 0, std::numeric_limits<int32_t>::max());
  return finish(f, std::move(r));
}

json::Object GrantAnswer::to_json() const {
  json::Object variables;
  for (const auto& [key, value] : environment) variables[key] = value;
  return {{"id", id},
          {"name", name},
          {"whole_cards", whole_cards},
          {"isolate", isolate},
          {"policy", policy},
          {"cards", array_of(cards, encode_card)},
          {"grant_directory", grant_directory},
          {"usage_file", usage_file},
          {"driver_files", array_of(driver_files, encode_driver)},
          {"environment", variables},
          {"notes", text_array(notes)}};
}

Result<GrantAnswer> GrantAnswer::from_json(const json::Object& object) {
  GrantAnswer a;
  Fields f(object);
  f.text("id", a.id, 64);
  f.text("name", a.name, 256);
  f.flag("whole_cards", a.whole_cards);
  f.flag("isolate", a.isolate);
  f.number("policy", a.policy, 0, page::kPolicyNative);
  f.objects("cards", a.cards, kMaxCards, decode_card);
  f.text("grant_directory", a.grant_directory);
  f.text("usage_file", a.usage_file);
  f.objects("driver_files", a.driver_files, 16, decode_driver);
  if (const json::Value* value = object.if_contains("environment"); value != nullptr && value->is_object()) {
    for (const auto& [key, text] : value->get_object()) {
      if (text.is_string())
        a.environment.emplace_back(std::string(key), std::string(text.get_string()));
      else
        f.fail("environment", "an object of texts");
    }
  }
  f.texts("notes", a.notes, 64);
  return finish(f, std::move(a));
}

json::Object SetRequest::to_json() const {
  json::Object object{{"grant", grant}};
  if (gpu_mem_units) object["gpu_mem_units"] = *gpu_mem_units;
  if (core_percent) object["core_percent"] = *core_percent;
  if (weight) object["weight"] = *weight;
  if (high_priority) object["high_priority"] = *high_priority;
  return object;
}

Result<SetRequest> SetRequest::from_json(const json::Object& object) {
  SetRequest r;
  Fields f(object);
  f.text("grant", r.grant, 256);
  auto optional_number = [&](const char* key, std::optional<int64_t>& out, int64_t least, int64_t most) {
    if (!f.has(key)) return;
    out.emplace(0);
    f.number(key, *out, least, most);
  };
  optional_number("gpu_mem_units", r.gpu_mem_units, 1, int64_t{1} << 30);
  optional_number("core_percent", r.core_percent, 1, 100);
  optional_number("weight", r.weight, 1, kMaxWeight);
  if (f.has("high_priority")) f.flag("high_priority", r.high_priority.emplace(false));
  if (r.grant.empty()) f.fail("grant", "the id or name of a grant");
  return finish(f, std::move(r));
}

json::Object SetPolicyRequest::to_json() const {
  return {{"policy", policy}, {"card", card}};
}

Result<SetPolicyRequest> SetPolicyRequest::from_json(const json::Object& object) {
  SetPolicyRequest r;
  Fields f(object);
  if (!f.has("policy")) f.fail("policy", "a policy's number, 0 to 5");
  f.number("policy", r.policy, 0, page::kPolicyNative);
  f.text("card", r.card, 128);
  return finish(f, std::move(r));
}

json::Object ListAnswer::to_json() const {
  return {{"agent_version", agent_version},
          {"driver_version", driver_version},
          {"run_directory", run_directory},
          {"agent_pid", agent_pid},
          {"agent_uid", agent_uid},
          {"memory_unit", memory_unit},
          {"cards", array_of(cards, encode_card_status)},
          {"grants", array_of(grants, encode_grant_status)},
          {"events", array_of(events, encode_event)}};
}

Result<ListAnswer> ListAnswer::from_json(const json::Object& object) {
  ListAnswer a;
  Fields f(object);
  f.text("agent_version", a.agent_version, 64);
  f.text("driver_version", a.driver_version, 128);
  f.text("run_directory", a.run_directory);
  f.number("agent_pid", a.agent_pid, 0);
  f.number("agent_uid", a.agent_uid, 0);
  f.text("memory_unit", a.memory_unit, 64);
  f.objects("cards", a.cards, kMaxCards, decode_card_status);
  f.objects("grants", a.grants, kMaxGrants, decode_grant_status);
  f.objects("events", a.events, 1024, decode_event);
  return finish(f, std::move(a));
}

json::Object GrantStatus::to_json() const {
  return encode_grant_status(*this);
}
Result<GrantStatus> GrantStatus::from_json(const json::Object& object) {
  return decode_grant_status(object);
}

json::Object HelloAnswer::to_json() const {
  return {{"protocol", protocol}, {"version", version}, {"pid", pid}, {"uid", uid}, {"run_directory", run_directory}};
}

Result<HelloAnswer> HelloAnswer::from_json(const json::Object& object) {
  HelloAnswer a;
  Fields f(object);
  f.number("protocol", a.protocol, 0);
  f.text("version", a.version, 64);
  f.number("pid", a.pid, 0);
  f.number("uid", a.uid, 0);
  f.text("run_directory", a.run_directory);
  return finish(f, std::move(a));
}

}  // namespace sluice::agent
