// Who uses a card: registration, finding the dead, and what is charged to whom.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim/card.h"
#include "sim/engine.h"

namespace sluice::sim {

// Field 22 of /proc/<pid>/stat (proc(5)). The name in field 2 may hold anything, so fields are counted from its end.
uint32_t started_ticks(const char* pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%s/stat", pid);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at != nullptr ? static_cast<uint32_t>(std::strtoull(at, nullptr, 10)) : 0;
}

Index Card::attach_process(int32_t pid, bool simulated, std::string_view name) {
  const Index index = new_process();
  if (index == kNone) return kNone;
  CardHeader& h = edit_header();
  ProcessRecord& p = process(index);
  p.pid = pid != 0 ? pid : getpid();
  p.host_pid = p.pid;
  struct stat status{};
  if (!simulated && stat("/proc/self/ns/pid", &status) == 0) p.pid_namespace = status.st_ino;
  if (!simulated) p.started_ticks = started_ticks("self");
  p.simulated = simulated;
  p.locker = locker_;
  p.locker_nonce = static_cast<uint32_t>(owner_word_ >> 32);
  p.born_ns = h.now_ns;
  p.teardown_at_ns = kNever;
  p.ordinal = ++h.process_ordinals;
  p.uid = getuid();
  std::memcpy(p.name, name.data(), std::min(name.size(), sizeof p.name - 1));
  return index;
}

bool Card::process_alive(Index index) {
  const ProcessRecord& p = process(index);
  return locker_alive(p.locker, p.locker_nonce);
}

void Card::detach_process(Index index, bool orderly) {
  ProcessRecord& p = edit(process(index));
  if (p.state != LiveState::kLive) return;
  p.state = LiveState::kDying;
  CardHeader& h = edit_header();
  p.teardown_at_ns = h.now_ns + (orderly ? 0 : knob_ns(Knob::teardown_delay_ns));
  h.next_teardown_ns = std::min(h.next_teardown_ns, p.teardown_at_ns);
  // Its work stops at once; its memory stays until the driver gets to it.
  for (Index c = p.first_context; c != kNone; c = context(c).next_in_process) drop_work(*this, c);
}

void Card::reap() {
  const Index high = file_->header.tables.processes.high;
  for (Index i = 1; i <= high; ++i) {
    if (process(i).state != LiveState::kLive || process(i).simulated != 0) continue;
    if (process_alive(i)) continue;
    detach_process(i, false);
    commit();
  }
}

void Card::finish_teardown(Index index) {
  while (process(index).first_context != kNone) {
    destroy_context(*this, process(index).first_context);
    commit();
  }
  while (process(index).first_block != kNone) {
    const Index b = process(index).first_block;
    BlockRecord& record = edit(block(b));
    if (record.target == kNone && record.aliases > 0) {
      // Importers still hold it: it lives on without an owner.
      unlink_block(b);
      edit(process(index)).resident_bytes -= record.bytes;
      record.process = kNone;
      record.references = 0;
    } else {
      record.references = 1;
      release_block(b);
    }
    commit();
  }
  while (process(index).effects_head != kNone) {
    const Index c = process(index).effects_head;
    edit(process(index)).effects_head = command(c).next;
    free_command(c);
  }
  commit();
  for (Index e = 1; e <= file_->header.tables.events.high; ++e) {
    if (event(e).state == LiveState::kLive && event(e).process == index) {
      free_event(e);
      commit();
    }
  }
  for (Index c = 1; c <= file_->header.tables.cells.high; ++c) {
    if (cell(c).state == LiveState::kLive && cell(c).process == index) free_cell(c);
  }
  edit_header().contents_bytes -= std::min(file_->header.contents_bytes, process(index).contents_bytes);
  const uint32_t serial = process(index).serial;
  if (const Index memory = process(index).memory_subject; memory != kNone) {
    edit(subject(memory)).died_ns = std::max<uint64_t>(1, file_->header.now_ns);
  }
  free_process(index);
  commit();
  unlink(contents_path(serial).c_str());
}

uint64_t Card::free_bytes() {
  const uint64_t used = file_->header.used_bytes;
  const uint64_t capacity = capacity_bytes();
  return used < capacity ? capacity - used : 0;
}

Index Card::allocate_block(Index process_index, Index context_index, uint64_t bytes, BlockKind kind) {
  const uint64_t grain = static_cast<uint64_t>(std::max<int64_t>(knob(Knob::block_bytes), 4096));
  if (bytes == 0 || bytes > capacity_bytes()) return kNone;
  const uint64_t rounded = (bytes + grain - 1) / grain * grain;
  if (rounded > free_bytes()) return kNone;
  const Index index = new_block();
  if (index == kNone) return kNone;
  BlockRecord& b = block(index);
  b.process = process_index;
  b.context = context_index;
  if (context_index == kNone && process(process_index).memory_subject == kNone) {
    edit(process(process_index)).memory_subject = new_subject(process_index, kNone);
  }
  b.subject = context_index != kNone ? context(context_index).subject : process(process_index).memory_subject;
  b.owner_serial = process(process_index).serial;
  b.references = 1;
  b.kind = static_cast<uint32_t>(kind);
  b.bytes = rounded;
  link_block(process_index, index);
  charge_memory(process_index, b.subject, static_cast<int64_t>(rounded));
  return index;
}

Index Card::alias_block(Index process_index, Index target) {
  const Index index = new_block();
  if (index == kNone) return kNone;
  BlockRecord& b = block(index);
  b.process = process_index;
  b.references = 1;
  b.target = target;
  b.kind = block(target).kind;
  b.contents_offset = block(target).contents_offset;
  b.owner_serial = block(target).owner_serial;
  ++edit(block(target)).aliases;
  link_block(process_index, index);
  return index;
}

void Card::link_block(Index process_index, Index index) {
  ProcessRecord& p = edit(process(process_index));
  BlockRecord& b = edit(block(index));
  b.next_in_process = p.first_block;
  if (p.first_block != kNone) edit(block(p.first_block)).prev_in_process = index;
  p.first_block = index;
}

void Card::unlink_block(Index index) {
  BlockRecord& b = edit(block(index));
  if (b.prev_in_process != kNone) {
    edit(block(b.prev_in_process)).next_in_process = b.next_in_process;
  } else {
    edit(process(b.process)).first_block = b.next_in_process;
  }
  if (b.next_in_process != kNone) edit(block(b.next_in_process)).prev_in_process = b.prev_in_process;
  b.next_in_process = b.prev_in_process = kNone;
}

void Card::release_block(Index index) {
  BlockRecord& b = edit(block(index));
  if (b.state != LiveState::kLive) return;
  if (b.references > 0) --b.references;
  if (b.references > 0 || b.aliases > 0) return;
  if (b.process != kNone) unlink_block(index);
  if (b.bytes > 0) charge_memory(b.process, b.subject, -static_cast<int64_t>(b.bytes));
  const Index target = b.target;
  free_block(index);
  if (target != kNone) {
    --edit(block(target)).aliases;
    if (block(target).references == 0) release_block(target);
  }
}

void Card::charge_memory(Index process_index, Index subject_index, int64_t bytes) {
  CardHeader& h = edit_header();
  h.used_bytes += static_cast<uint64_t>(bytes);
  h.peak_bytes = std::max(h.peak_bytes, h.used_bytes);
  if (process_index != kNone) edit(process(process_index)).resident_bytes += static_cast<uint64_t>(bytes);
  if (subject_index != kNone) {
    edit(subject(subject_index)).resident_bytes += static_cast<uint64_t>(bytes);
    log_memory(subject_index);
  }
  edit(subject(1)).resident_bytes = h.used_bytes;
  log_memory(1);
}

}  // namespace sluice::sim
