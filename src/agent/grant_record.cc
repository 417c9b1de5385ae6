#include "agent/grant_record.h"

#include <fmt/format.h>

#include <array>
#include <sstream>

#include "agent/fields.h"
#include "agent/protocol.h"

namespace sluice::agent {
namespace {

constexpr int64_t kRecordVersion = 1;

struct KindName {
  core::Kind kind;
  const char* name;
};
constexpr std::array<KindName, 3> kKinds{
    {{core::Kind::kMemory, "memory"}, {core::Kind::kMemoryCore, "memory+core"}, {core::Kind::kWhole, "whole"}}};

// 64-bit numbers as text: JSON numbers are signed here.
std::string hex(uint64_t value) {
  return fmt::format("{:x}", value);
}

void read_hex(Fields& fields, const char* key, uint64_t& out) {
  std::string text;
  fields.text(key, text, 16);
  if (text.empty() || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return fields.fail(key, "a hexadecimal number");
  }
  out = std::stoull(text, nullptr, 16);
}

json::Object encode_file(const FileIdentity& file) {
  return {{"device", hex(file.device)}, {"inode", hex(file.inode)}};
}

void read_file_identity(Fields& fields, const json::Object& object, const char* key, FileIdentity& out) {
  const json::Value* value = object.if_contains(key);
  if (value == nullptr || !value->is_object()) return fields.fail(key, "device and inode");
  Fields inner(value->get_object());
  read_hex(inner, "device", out.device);
  read_hex(inner, "inode", out.inode);
  if (inner.error()) fields.fail(key, "device and inode in hexadecimal");
}

}  // namespace

json::Object GrantRecord::to_json() const {
  json::Array share_array, holder_array;
  for (const RecordShare& share : shares) {
    share_array.push_back(json::Object{{"card_uuid", share.card_uuid},
                                       {"units", share.units},
                                       {"memory_mib", share.memory_mib},
                                       {"core_milli", share.core_milli}});
  }
  for (const ProcessId& holder : holders) {
    holder_array.push_back(json::Object{{"pid", holder.pid}, {"start_ticks", hex(holder.start_ticks)}});
  }
  const char* kind_name = "";
  for (const KindName& entry : kKinds) {
    if (entry.kind == kind) kind_name = entry.name;
  }
  return {{"version", kRecordVersion},
          {"id", grant_id_text(id)},
          {"name", name},
          {"pod", pod},
          {"pod_uid", pod_uid},
          {"enforced", enforced},
          {"switched_off", switched_off},
          {"owner_uid", owner_uid},
          {"kind", kind_name},
          {"shares", share_array},
          {"policy", policy},
          {"weight", weight},
          {"high_priority", high_priority},
          {"started_unix", started_unix},
          {"holders", holder_array},
          {"page", encode_file(page)},
          {"usage", encode_file(usage)}};
}

Result<GrantRecord> GrantRecord::from_json(const json::Object& object) {
  GrantRecord record;
  Fields f(object);
  int64_t version = 0;
  f.number("version", version);
  if (version != kRecordVersion) f.fail("version", fmt::format("{}", kRecordVersion));
  std::string id, kind;
  f.text("id", id, 16);
  Result<uint64_t> number = parse_grant_id(id);
  if (number)
    record.id = *number;
  else
    f.fail("id", "16 hex digits");
  f.text("name", record.name, kMaxNameBytes);
  f.text("pod", record.pod, 512);
  f.text("pod_uid", record.pod_uid, 256);
  f.flag("enforced", record.enforced);
  f.flag("switched_off", record.switched_off);
  f.number("owner_uid", record.owner_uid, 0, std::numeric_limits<uint32_t>::max());
  f.text("kind", kind, 32);
  for (const KindName& entry : kKinds) {
    if (kind == entry.name) record.kind = entry.kind;
  }
  if (record.kind == core::Kind::kNone) f.fail("kind", "memory, memory+core or whole");
  f.objects("shares", record.shares, page::kMaxCards, [](const json::Object& inner) -> Result<RecordShare> {
    RecordShare share;
    Fields s(inner);
    s.text("card_uuid", share.card_uuid, 128);
    s.number("units", share.units, 0, core::kMaxUnits);
    s.number("memory_mib", share.memory_mib, 0, int64_t{1} << 40);
    int64_t core_milli = 0;
    s.number("core_milli", core_milli, 0, 1000);
    share.core_milli = static_cast<int32_t>(core_milli);
    if (s.error()) return *s.error();
    return share;
  });
  if (record.shares.empty()) f.fail("shares", "at least one");
  f.number("policy", record.policy, 0, page::kPolicyNative);
  f.number("weight", record.weight, 1, kMaxWeight);
  f.flag("high_priority", record.high_priority);
  f.number("started_unix", record.started_unix, 0);
  f.objects("holders", record.holders, 64, [](const json::Object& inner) -> Result<ProcessId> {
    ProcessId holder;
    Fields s(inner);
    s.number("pid", holder.pid, 1, std::numeric_limits<int32_t>::max());
    read_hex(s, "start_ticks", holder.start_ticks);
    if (s.error()) return *s.error();
    return holder;
  });
  read_file_identity(f, object, "page", record.page);
  read_file_identity(f, object, "usage", record.usage);
  if (f.error()) return *f.error();
  return record;
}

Result<uint64_t> process_start_ticks(int64_t pid) {
  Result<std::string> text = read_file(fmt::format("/proc/{}/stat", pid), 8192);
  if (!text) return not_found(fmt::format("there is no process {}", pid));
  // Fields after the command, which is in parentheses and may hold anything; the start time is the 22nd of all.
  size_t close = text->rfind(')');
  if (close == std::string::npos) return internal(fmt::format("/proc/{}/stat cannot be understood", pid));
  std::istringstream rest(text->substr(close + 1));
  std::string word;
  for (int field = 3; field <= 22; ++field) rest >> word;
  if (!rest || word.empty() || word.find_first_not_of("0123456789") != std::string::npos) {
    return internal(fmt::format("/proc/{}/stat cannot be understood", pid));
  }
  return std::stoull(word);
}

std::string process_command(int64_t pid) {
  Result<std::string> text = read_file(fmt::format("/proc/{}/comm", pid), 4096);
  if (!text) return "";
  while (!text->empty() && text->back() == '\n') text->pop_back();
  for (char& c : *text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return *text;
}

Result<int64_t> process_uid(int64_t pid) {
  Result<std::string> text = read_file(fmt::format("/proc/{}/status", pid), 65536);
  if (!text) return not_found(fmt::format("there is no process {}", pid));
  size_t line = text->find("\nUid:");
  if (line == std::string::npos) return internal(fmt::format("/proc/{}/status cannot be understood", pid));
  return static_cast<int64_t>(std::strtoll(text->c_str() + line + 5, nullptr, 10));
}

}  // namespace sluice::agent
