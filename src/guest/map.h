// A hash map and an object pool without malloc: the guest tracks up to a million live allocations, a hundred thousand
// functions and ten thousand streams inside a foreign program, whose allocator it must not touch (allocators call the
// driver, and the driver's callers may hold the allocator's lock).
//
// HashMap: 64-bit keys, open addressing with linear probing and backward-shift deletion (no tombstones, so a program
// that allocates and frees for weeks does not slow down), storage from the kernel, doubled at 70 % load. Bounded: at
// kLimit entries, or when the kernel has no memory, insert returns nullptr and the caller decides.
// Pool: objects of one type with stable addresses, a free list inside chunks that are never returned.
// Neither locks; zero-initialised objects are valid and empty (constinit), and nothing is released at exit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "guest/sys.h"

namespace sluice::guest {

// splitmix64's finaliser: handles and device addresses differ mostly in a few middle bits.
constexpr uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Value must be trivially copyable. Key 0 is allowed.
template <typename Value>
class HashMap {
 public:
  static constexpr uint64_t kLimit = 1ull << 26;

  constexpr HashMap() = default;
  HashMap(const HashMap&) = delete;
  HashMap& operator=(const HashMap&) = delete;

  uint64_t size() const { return size_; }

  // The value of `key`, nullptr when absent. Valid until the next insert or erase.
  Value* find(uint64_t key) {
    if (size_ == 0) return nullptr;
    for (uint64_t i = mix64(key) & mask_;; i = (i + 1) & mask_) {
      if (!cells_[i].used) return nullptr;
      if (cells_[i].key == key) return &cells_[i].value;
    }
  }

  // The value of `key`, made from `value` when absent (an existing one is returned unchanged); nullptr when full.
  Value* insert(uint64_t key, const Value& value) {
    if (Value* existing = find(key)) return existing;
    if ((size_ + 1) * 10 > capacity() * 7 && !grow()) return nullptr;
    ++size_;
    return place(key, value);
  }

  // Removes `key`; true and its value in `out` when it was there.
  bool erase(uint64_t key, Value* out = nullptr) {
    if (size_ == 0) return false;
    uint64_t hole = mix64(key) & mask_;
    while (cells_[hole].used && cells_[hole].key != key) hole = (hole + 1) & mask_;
    if (!cells_[hole].used) return false;
    if (out != nullptr) *out = cells_[hole].value;
    for (uint64_t i = (hole + 1) & mask_; cells_[i].used; i = (i + 1) & mask_) {
      // A cell may move back to the hole when its home does not lie behind the hole.
      const uint64_t home = mix64(cells_[i].key) & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        cells_[hole] = cells_[i];
        hole = i;
      }
    }
    cells_[hole].used = 0;
    --size_;
    return true;
  }

  // Removes every entry for which matches(key, value) is true; called once or twice for each.
  template <typename Matches>
  void erase_if(Matches&& matches) {
    for (uint64_t i = 0; size_ != 0 && i <= mask_;) {
      if (cells_[i].used && matches(cells_[i].key, cells_[i].value)) {
        erase(cells_[i].key);  // a later cell may have moved here: look again
      } else {
        ++i;
      }
    }
  }

  void clear() {
    for (uint64_t i = 0; size_ != 0 && i <= mask_; ++i) cells_[i].used = 0;
    size_ = 0;
  }

  // Calls visit(key, value) for each entry; visit must not insert or erase.
  template <typename Visit>
  void for_each(Visit&& visit) {
    if (cells_ == nullptr) return;
    for (uint64_t i = 0; i <= mask_; ++i) {
      if (cells_[i].used) visit(cells_[i].key, cells_[i].value);
    }
  }

  // Gives the storage back to the kernel (tests; the guest keeps its own for life).
  void release() {
    if (cells_ != nullptr) sys::unmap_pages(cells_, capacity() * sizeof(Cell));
    cells_ = nullptr;
    mask_ = 0;
    size_ = 0;
  }

 private:
  struct Cell {
    uint64_t key;
    uint64_t used;
    Value value;
  };

  uint64_t capacity() const { return cells_ == nullptr ? 0 : mask_ + 1; }

  Value* place(uint64_t key, const Value& value) {
    uint64_t i = mix64(key) & mask_;
    while (cells_[i].used) i = (i + 1) & mask_;
    cells_[i].key = key;
    cells_[i].used = 1;
    cells_[i].value = value;
    return &cells_[i].value;
  }

  bool grow() {
    const uint64_t old_capacity = capacity();
    const uint64_t new_capacity = old_capacity == 0 ? 64 : old_capacity * 2;
    if (new_capacity > kLimit) return false;
    Cell* fresh = static_cast<Cell*>(sys::map_pages(new_capacity * sizeof(Cell)));
    if (fresh == nullptr) return false;
    Cell* old = cells_;
    cells_ = fresh;
    mask_ = new_capacity - 1;
    for (uint64_t i = 0; i < old_capacity; ++i) {
      if (old[i].used) place(old[i].key, old[i].value);
    }
    if (old != nullptr) sys::unmap_pages(old, old_capacity * sizeof(Cell));
    return true;
  }

  Cell* cells_ = nullptr;
  uint64_t mask_ = 0;
  uint64_t size_ = 0;
};

// Object must be trivially destructible; take() returns zeroed memory seen as an Object.
template <typename Object>
class Pool {
 public:
  static constexpr size_t kChunkBytes = 256 * 1024;

  constexpr Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Object* take() {
    if (free_ == nullptr && !add_chunk()) return nullptr;
    Node* node = free_;
    free_ = node->next;
    __builtin_memset(static_cast<void*>(node), 0, sizeof(Node));
    return reinterpret_cast<Object*>(node);
  }

  void give(Object* object) {
    Node* node = reinterpret_cast<Node*>(object);
    node->next = free_;
    free_ = node;
  }

 private:
  union Node {
    Node* next;
    alignas(Object) unsigned char bytes[sizeof(Object)];
  };
  static_assert(sizeof(Node) <= kChunkBytes);

  bool add_chunk() {
    Node* chunk = static_cast<Node*>(sys::map_pages(kChunkBytes));
    if (chunk == nullptr) return false;
    for (size_t i = kChunkBytes / sizeof(Node); i-- > 0;) {
      chunk[i].next = free_;
      free_ = &chunk[i];
    }
    return true;
  }

  Node* free_ = nullptr;
};

}  // namespace sluice::guest
