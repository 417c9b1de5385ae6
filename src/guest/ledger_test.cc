// The shared ledger between threads, copies of the library and processes: slots, the mutex, forks, lost descriptors.
#include "guest/ledger.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "guest/booking.h"
#include "guest/testing_pages.h"

namespace sluice::guest {
namespace {

constexpr uint64_t kLimit = 1000;

// A ledger of its own, as one copy of the library has it.
struct Copy {
  explicit Copy(TestPages& pages) {
    EXPECT_EQ(locks.open(pages.usage_path.c_str()), 0);
    ledger = Ledger{&pages.grant()->cards[0], &pages.usage()->cards[0], 0, {nullptr, &clock, &waiter, &locks}, {}};
  }
  ~Copy() {
    if (!locks.forked()) locks.stop();
  }
  OsClock clock;
  OsWaiter waiter;
  RecordLocks locks;
  Ledger ledger{};
};

// What `dd if=/dev/zero of=/run/sluice/container/usage` does to the slots.
void wipe(TestPages& pages) {
  for (page::Slot& slot : pages.usage()->cards[0].slots) {
    slot.state.store(page::kSlotFree);
    slot.exec_token.store(0);
    slot.reserved_bytes.store(0);
  }
}

// Runs body in a child; its exit status, or minus the signal.
template <typename Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Ledger, ReservesUpToTheLimit) {
  TestPages pages(kLimit);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  ASSERT_EQ(slot, 0u);
  EXPECT_EQ(copy.ledger.reserve(slot, 600), Reserve::kGranted);
  EXPECT_EQ(copy.ledger.reserve(slot, 401), Reserve::kOverLimit);
  EXPECT_EQ(copy.ledger.reserve(slot, ~0ull), Reserve::kOverLimit);
  EXPECT_EQ(copy.ledger.reserve(slot, 400), Reserve::kGranted);
  EXPECT_EQ(copy.ledger.reserve(slot, 1), Reserve::kOverLimit);
  copy.ledger.give_back(slot, 1000);
  EXPECT_EQ(copy.ledger.charged_bytes(), 0u);
  copy.ledger.give_back(slot, 5);  // never below nothing
  EXPECT_EQ(copy.ledger.charged_bytes(), 0u);
}

TEST(Ledger, CorrectionsAndOverfullSlotsCount) {
  TestPages pages(kLimit);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  pages.grant()->cards[0].correction_bytes[slot].store(300);
  EXPECT_EQ(copy.ledger.reserve(slot, 701), Reserve::kOverLimit);
  EXPECT_EQ(copy.ledger.reserve(slot, 700), Reserve::kGranted);
  copy.ledger.charge(slot, ~0ull - 700);  // nonsense saturates instead of wrapping to nothing
  EXPECT_EQ(copy.ledger.charged_bytes(), ~0ull);
  EXPECT_EQ(copy.ledger.reserve(slot, 1), Reserve::kOverLimit);
  EXPECT_EQ(copy.ledger.view().free_bytes, 0u);
}

// Zeroing its slot in the page is no way past the limit once the agent has compared the page with the card.
TEST(Ledger, CorrectionsCountForSlotsThatTheTenantEmptied) {
  TestPages pages(kLimit);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  EXPECT_EQ(copy.ledger.reserve(slot, 600), Reserve::kGranted);
  page::Slot& entry = pages.usage()->cards[0].slots[slot];
  entry.state.store(page::kSlotFree);
  entry.reserved_bytes.store(0);
  pages.grant()->cards[0].correction_bytes[slot].store(600);
  Copy other(pages);
  EXPECT_EQ(other.ledger.charged_bytes(), 600u);
  EXPECT_EQ(other.ledger.reserve(other.ledger.claim(), 401), Reserve::kOverLimit);
}

// Any close() of the usage file in a process drops the record locks of its table; ours are in another.
TEST(Ledger, ClosingTheUsageFileDropsNeitherOwnershipNorTally) {
  TestPages pages(kGiB);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  ASSERT_EQ(copy.ledger.reserve(slot, 600 * kMiB), Reserve::kGranted);
  const auto seen_by_another = [&] {
    return in_child([&] {
      Copy other(pages);
      EXPECT_EQ(other.locks.owner_pid(page::slot_lock_byte(0, slot)), ::getppid());
      wipe(pages);
      EXPECT_GE(other.ledger.charged_bytes(), 600 * kMiB - page::kTallyUnitBytes);
      EXPECT_LE(other.ledger.charged_bytes(), 600 * kMiB);
    });
  };
  EXPECT_EQ(seen_by_another(), 0);
  ::close(::open(pages.usage_path.c_str(), O_RDONLY | O_CLOEXEC));
  ::close(copy.locks.descriptor());
  EXPECT_EQ(seen_by_another(), 0);
}

// The descriptor's number may name another file by the time the thread has its table.
TEST(LockKeeper, KeepsLocksOfTheRightFileAlone) {
  TestPages pages(kGiB);
  TestPages others(kGiB);
  sys::FileId file;
  const int right = ::open(pages.usage_path.c_str(), O_RDWR | O_CLOEXEC);
  const int wrong = ::open(others.usage_path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_TRUE(sys::file_id(right, file));
  LockKeeper keeper;
  keeper.expect(file);
  EXPECT_FALSE(keeper.set(wrong, F_WRLCK, 1, 1));
  EXPECT_TRUE(keeper.set(right, F_WRLCK, 1, 1));
  keeper.stop();
  ::close(right);
  ::close(wrong);
}

// The page is a file that everything in the container may write.
TEST(Ledger, EmptyingThePageGivesItsOwnProcessNothing) {
  TestPages pages(kGiB);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  ASSERT_EQ(copy.ledger.reserve(slot, 600 * kMiB), Reserve::kGranted);
  uint64_t held = 600 * kMiB;
  for (int round = 0; round < 100; ++round) {
    wipe(pages);
    if (copy.ledger.reserve(slot, 100 * kMiB + 1) == Reserve::kGranted) held += 100 * kMiB + 1;
  }
  EXPECT_EQ(held, 1000 * kMiB + 4);
  wipe(pages);
  EXPECT_EQ(copy.ledger.view().free_bytes, kGiB - held);
}

TEST(Ledger, EmptyingThePageGivesOtherProcessesLessThanAUnitForEach) {
  TestPages pages(kGiB);
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  std::vector<pid_t> holders;
  for (int i = 0; i < 8; ++i) {
    holders.push_back(::fork());
    if (holders.back() == 0) {
      Copy copy(pages);
      uint64_t held = 0;
      const uint32_t slot = copy.ledger.claim();
      wipe(pages);
      ::close(::open(pages.usage_path.c_str(), O_RDWR | O_CLOEXEC));
      while (copy.ledger.reserve(slot, 7 * kMiB) == Reserve::kGranted) {
        held += 7 * kMiB;
        wipe(pages);
        if (held >= 300 * kMiB) break;
      }
      EXPECT_EQ(::write(pipe_ends[1], &held, sizeof held), static_cast<ssize_t>(sizeof held));
      ::pause();
    }
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < holders.size(); ++i) {
    uint64_t held = 0;
    ASSERT_EQ(::read(pipe_ends[0], &held, sizeof held), static_cast<ssize_t>(sizeof held));
    sum += held;
  }
  EXPECT_GT(sum, kGiB / 2);
  EXPECT_LE(sum, kGiB + (holders.size() - 1) * page::kTallyUnitBytes);
  for (const pid_t holder : holders) {
    ::kill(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
  }
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  Copy copy(pages);
  wipe(pages);
  EXPECT_EQ(copy.ledger.charged_bytes(), 0u) << "tallies end with their processes";
}

TEST(Ledger, TwoCopiesOfAProcessTallyApart) {
  TestPages pages(kGiB);
  Copy first(pages);
  Copy second(pages);
  const uint32_t slot = first.ledger.claim();
  ASSERT_EQ(second.ledger.claim(), slot);
  ASSERT_EQ(first.ledger.reserve(slot, 320 * kMiB), Reserve::kGranted);
  ASSERT_EQ(second.ledger.reserve(slot, 320 * kMiB), Reserve::kGranted);
  wipe(pages);
  EXPECT_EQ(first.ledger.charged_bytes(), 640 * kMiB);
  EXPECT_EQ(second.ledger.reserve(slot, 384 * kMiB + page::kTallyUnitBytes), Reserve::kOverLimit);
  first.ledger.give_back(slot, 320 * kMiB);
  EXPECT_EQ(second.ledger.charged_bytes(), 320 * kMiB);
  second.ledger.give_back(slot, 320 * kMiB);
  EXPECT_EQ(second.ledger.charged_bytes(), 0u);
}

// A container that has memory on the card past its library has that much less of its limit.
TEST(Ledger, WhatIsUsedPastTheLibraryCounts) {
  TestPages pages(kLimit);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  pages.grant()->cards[0].outside_bytes.store(400);
  EXPECT_EQ(copy.ledger.reserve(slot, 601), Reserve::kOverLimit);
  EXPECT_EQ(copy.ledger.reserve(slot, 600), Reserve::kGranted);
}

bool one_takes_all_and_dies(TestPages& pages) {
  return in_child([&] {
           Copy copy(pages);
           ASSERT_EQ(copy.ledger.reserve(copy.ledger.claim(), kGiB), Reserve::kGranted);
         }) == 0;
}

// The card frees later than the kernel, and the agent counts until then. Waiting is better than failing for want of it.
TEST(Ledger, WhatTheDeadLeaveIsWaitedForAsLongAsTheAgentNeeds) {
  TestPages pages(kGiB);
  ASSERT_TRUE(one_takes_all_and_dies(pages));
  TestCard card;
  TestGuest process(pages, &card);
  Guest* guest = enter();
  std::thread agent([&] {
    ::usleep(200'000);
    pages.usage()->cards[0].slots[0].state.store(page::kSlotFree);
    pages.usage()->cards[0].slots[0].reserved_bytes.store(0);
  });
  const uint64_t before_ns = sys::monotonic_ns();
  EXPECT_EQ(reserve_memory(guest, 0, 700 * kMiB), CUDA_SUCCESS);
  EXPECT_GE(sys::monotonic_ns() - before_ns, 150'000'000u);
  agent.join();
  EXPECT_EQ(card_slot(guest, 0), 1u);
  const uint64_t refused_ns = sys::monotonic_ns();
  EXPECT_EQ(reserve_memory(guest, 0, 700 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LT(sys::monotonic_ns() - refused_ns, 1'000'000'000u) << "nobody is dead: nothing to wait for";
}

TEST(Ledger, WhatTheDeadLeaveIsFreedWhereThereIsNoAgent) {
  TestPages pages(kGiB);
  ASSERT_TRUE(one_takes_all_and_dies(pages));
  TestCard card;
  TestGuest process(pages, &card);
  Guest* guest = enter();
  const uint64_t before_ns = sys::monotonic_ns();
  EXPECT_EQ(reserve_memory(guest, 0, 700 * kMiB), CUDA_SUCCESS);
  EXPECT_GE(sys::monotonic_ns() - before_ns, 2'000'000'000u) << "the card may still hold it";
  EXPECT_EQ(pages.charged_bytes(), 700 * kMiB);
}

// What a living process holds is never taken for a dead one's, whatever is written to the page and to descriptors.
TEST(Ledger, TheLivingAreNotBuried) {
  TestPages pages(kGiB);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    Copy copy(pages);
    const uint32_t slot = copy.ledger.claim();
    EXPECT_EQ(copy.ledger.reserve(slot, kGiB), Reserve::kGranted);
    ::close_range(3, static_cast<unsigned>(ready[1]) - 1, 0);
    ::close_range(static_cast<unsigned>(ready[1]) + 1, ~0u, 0);
    EXPECT_EQ(::write(ready[1], "x", 1), 1);
    ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  EXPECT_EQ(copy.ledger.dead(slot).bytes, 0u);
  copy.ledger.bury(slot, copy.ledger.dead(slot).mark);
  EXPECT_EQ(copy.ledger.charged_bytes(), kGiB);
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  EXPECT_EQ(copy.ledger.dead(slot).bytes, kGiB);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Ledger, TwoCopiesInOneProcessShareASlot) {
  TestPages pages(kLimit);
  Copy first(pages);
  Copy second(pages);
  EXPECT_EQ(first.locks.exec_token(), second.locks.exec_token());
  const uint32_t slot = first.ledger.claim();
  EXPECT_EQ(second.ledger.claim(), slot);
  EXPECT_EQ(first.ledger.reserve(slot, 400), Reserve::kGranted);
  EXPECT_EQ(second.ledger.reserve(slot, 600), Reserve::kGranted);
  EXPECT_EQ(second.ledger.reserve(slot, 1), Reserve::kOverLimit);
}

TEST(Ledger, ManyCopiesAndThreadsClaimingAtOnceFindOneSlot) {
  for (int round = 0; round < 30; ++round) {
    TestPages pages(kLimit);
    Copy copies[4]{Copy(pages), Copy(pages), Copy(pages), Copy(pages)};
    std::vector<std::thread> threads;
    std::atomic<int> ready{0};
    uint32_t slots[8];
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        ready.fetch_add(1);
        while (ready.load() < 8) std::this_thread::yield();
        slots[t] = copies[t % 4].ledger.claim();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t slot : slots) ASSERT_EQ(slot, slots[0]);
  }
}

TEST(Ledger, ThreadsOfTwoCopiesNeverPassTheLimit) {
  TestPages pages(kLimit);
  Copy copies[2]{Copy(pages), Copy(pages)};
  const uint32_t slot = copies[0].ledger.claim();
  ASSERT_EQ(copies[1].ledger.claim(), slot);
  std::atomic<int64_t> held{0};
  std::atomic<int64_t> peak{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Ledger& ledger = copies[t % 2].ledger;
      for (int i = 0; i < 2000; ++i) {
        if (ledger.reserve(slot, 300) == Reserve::kGranted) {
          const int64_t now = held.fetch_add(300) + 300;
          int64_t before = peak.load();
          while (now > before && !peak.compare_exchange_weak(before, now)) {
          }
          held.fetch_sub(300);
          ledger.give_back(slot, 300);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(peak.load(), static_cast<int64_t>(kLimit));
  EXPECT_EQ(copies[0].ledger.charged_bytes(), 0u);
  EXPECT_EQ(pages.usage()->cards[0].account.ledger_owner.load(), 0u);
}

TEST(Ledger, DeadSlotWithBytesIsKeptAndAnEmptyOneIsTakenOver) {
  TestPages pages(kLimit);
  EXPECT_EQ(in_child([&] {
              Copy copy(pages);
              EXPECT_EQ(copy.ledger.claim(), 0u);
              EXPECT_EQ(copy.ledger.reserve(0, 500), Reserve::kGranted);
            }),
            0);
  EXPECT_EQ(in_child([&] {
              Copy copy(pages);
              EXPECT_EQ(copy.ledger.claim(), 1u);
            }),
            0);
  Copy copy(pages);
  EXPECT_EQ(copy.ledger.claim(), 1u);  // the second child left nothing
  EXPECT_EQ(copy.ledger.reserve(1, 501), Reserve::kOverLimit);
  EXPECT_EQ(copy.ledger.reserve(1, 500), Reserve::kGranted);
}

TEST(Ledger, AllSlotsTakenIsSaid) {
  TestPages pages(kLimit);
  for (page::Slot& slot : pages.usage()->cards[0].slots) {
    slot.state.store(page::kSlotLive);
    slot.reserved_bytes.store(1);
  }
  Copy copy(pages);
  EXPECT_EQ(copy.ledger.claim(), kNoLedgerSlot);
  EXPECT_EQ(pages.usage()->cards[0].account.refusal_code.load(), page::kRefusalSlotsFull);
}

TEST(Ledger, ForkedChildHoldsNoLockAndTakesItsOwnSlot) {
  TestPages pages(1 * kGiB);
  TestCard card;
  TestGuest process(pages, &card);
  Guest* guest = enter();
  ASSERT_EQ(claim_slot(guest, 0), 0u);
  ASSERT_EQ(reserve_memory(guest, 0, 100), CUDA_SUCCESS);
  const uint64_t token = guest->seams.identity->exec_token();
  EXPECT_EQ(in_child([&] {
              EXPECT_TRUE(guest->seams.identity->forked());
              EXPECT_NE(guest->seams.identity->owner_pid(page::slot_lock_byte(0, 0)), 0);
              EXPECT_EQ(reserve_memory(guest, 0, 50), CUDA_SUCCESS);
              EXPECT_FALSE(guest->seams.identity->forked());
              EXPECT_NE(guest->seams.identity->exec_token(), token);
              EXPECT_EQ(card_slot(guest, 0), 1u);
              EXPECT_EQ(pages.charged_bytes(), 150u);
              EXPECT_EQ(guest->memory.cards[0].tracked_bytes.load(), 50u);
            }),
            0);
  EXPECT_EQ(pages.usage()->cards[0].slots[0].reserved_bytes.load(), 100u);
  EXPECT_EQ(card_slot(guest, 0), 0u);
}

TEST(Ledger, SleepingForkedChildDoesNotKeepADeadParentsLock) {
  TestPages pages(kLimit);
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const int status = in_child([&] {
    Copy copy(pages);
    copy.ledger.claim();
    copy.ledger.reserve(0, 500);
    const pid_t sleeper = ::fork();
    if (sleeper == 0) {
      ::pause();
      ::_exit(0);
    }
    EXPECT_EQ(::write(pipe_ends[1], &sleeper, sizeof sleeper), static_cast<ssize_t>(sizeof sleeper));
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(status, -SIGKILL);
  pid_t sleeper = 0;
  ASSERT_EQ(::read(pipe_ends[0], &sleeper, sizeof sleeper), static_cast<ssize_t>(sizeof sleeper));
  Copy copy(pages);
  EXPECT_EQ(copy.locks.owner_pid(page::slot_lock_byte(0, 0)), 0);
  EXPECT_EQ(copy.ledger.charged_bytes(), 500u);
  ::kill(sleeper, SIGKILL);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST(Ledger, ClosedDescriptorIsFoundAndTheLockTakenAgain) {
  TestPages pages(kLimit);
  Copy copy(pages);
  const uint32_t slot = copy.ledger.claim();
  ASSERT_EQ(copy.ledger.reserve(slot, 100), Reserve::kGranted);
  const int number = copy.locks.descriptor();
  ::close(number);
  const int other = ::open("/dev/null", O_RDWR);  // takes the number over
  ASSERT_EQ(other, number);
  EXPECT_EQ(copy.ledger.reserve(slot, 100), Reserve::kGranted);
  EXPECT_EQ(in_child([&] {
              Copy from_outside(pages);
              EXPECT_EQ(from_outside.locks.owner_pid(page::slot_lock_byte(0, slot)), ::getppid());
            }),
            0);
  ::close(other);
}

// A process that is stopped (SIGSTOP, frozen cgroup, debugger) inside the mutex must not hang the others.
TEST(Ledger, StoppedHolderCostsABoundedWaitAndIsCounted) {
  TestPages pages(kLimit);
  const pid_t holder = ::fork();
  if (holder == 0) {
    Copy copy(pages);
    copy.ledger.points.function = [](void*, Point point) {
      if (point == kMutexHeld) ::raise(SIGSTOP);
    };
    copy.ledger.claim();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(holder, &status, WUNTRACED), holder);
  ASSERT_TRUE(WIFSTOPPED(status));
  Copy copy(pages);
  const uint64_t before_ns = sys::monotonic_ns();
  EXPECT_EQ(copy.ledger.claim(), kNoLedgerSlot);
  EXPECT_EQ(copy.ledger.reserve(0, 1), Reserve::kBusy);
  const uint64_t waited_ns = sys::monotonic_ns() - before_ns;
  EXPECT_GE(waited_ns, 2 * kMutexWaitNs);
  EXPECT_EQ(pages.usage()->cards[0].account.ledger_waits_timed_out.load(), 2u);
  ::kill(holder, SIGKILL);
  ::waitpid(holder, &status, 0);
  EXPECT_EQ(copy.ledger.claim(), 0u);  // freed by the kernel, the stale word is overwritten
}

// Memory that is shared is charged where it was made, whoever has it open; when its maker is charged for it no longer,
// it counts once. In other processes, as the rule is for.
TEST(Ledger, WhatIsImportedCountsOnceItsExporterIsGone) {
  TestPages pages(10 * kGiB);
  constexpr uint64_t kName = 0x123456789;
  const uint64_t exported = page::share_byte(0, page::ShareSide::kExport, kName);
  const uint64_t claimed = page::share_byte(0, page::ShareSide::kClaim, kName);
  const uint64_t units = page::share_units(4 * kGiB);
  int to_maker[2], from_maker[2];
  ASSERT_EQ(::pipe(to_maker) | ::pipe(from_maker), 0);
  const pid_t maker = ::fork();
  if (maker == 0) {
    Copy copy(pages);
    const uint32_t slot = copy.ledger.claim();
    bool good = copy.ledger.reserve(slot, 4 * kGiB) == Reserve::kGranted && copy.locks.hold_shared(exported, units);
    good = ::write(from_maker[1], &good, 1) == 1 && good;
    char go = 0;
    good = ::read(to_maker[0], &go, 1) == 1 && good;
    ::_exit(good ? 0 : 1);
  }
  char ready = 0;
  ASSERT_EQ(::read(from_maker[0], &ready, 1), 1);
  ASSERT_EQ(ready, 1);
  Copy one(pages), another(pages);
  const uint32_t slot = one.ledger.claim();
  ASSERT_TRUE(one.locks.hold_shared(claimed, units));
  ASSERT_TRUE(another.locks.hold_shared(claimed, units));
  EXPECT_EQ(one.ledger.exported_bytes(kName), 4 * kGiB);
  EXPECT_EQ(one.ledger.charged_bytes(), 4 * kGiB) << "charged where it was made, and there alone";
  ASSERT_EQ(one.ledger.reserve(slot, 6 * kGiB), Reserve::kGranted);
  one.ledger.give_back(slot, 6 * kGiB);
  ASSERT_EQ(::write(to_maker[1], "g", 1), 1);
  int status = 0;
  ::waitpid(maker, &status, 0);
  EXPECT_EQ(status, 0);
  wipe(pages);
  EXPECT_EQ(one.ledger.exported_bytes(kName), 0u);
  EXPECT_EQ(one.ledger.charged_bytes(), 4 * kGiB) << "once, however many have it open";
  EXPECT_EQ(one.ledger.reserve(slot, 6 * kGiB + 1), Reserve::kOverLimit);
  one.locks.leave_shared(claimed, units);
  EXPECT_EQ(one.ledger.charged_bytes(), 4 * kGiB);
  another.locks.leave_shared(claimed, units);
  EXPECT_EQ(one.ledger.charged_bytes(), 0u);
}

TEST(Ledger, AnExportThatNoChargeStandsBehindHidesNothing) {
  TestPages pages(10 * kGiB);
  constexpr uint64_t kName = 77;
  Copy copy(pages), liar(pages);
  copy.ledger.claim();
  const uint64_t units = page::share_units(4 * kGiB);
  ASSERT_TRUE(copy.locks.hold_shared(page::share_byte(0, page::ShareSide::kClaim, kName), units));
  ASSERT_TRUE(liar.locks.hold_shared(page::share_byte(0, page::ShareSide::kExport, kName), units));
  EXPECT_EQ(copy.ledger.charged_bytes(), 4 * kGiB);
  liar.locks.leave_shared(page::share_byte(0, page::ShareSide::kExport, kName), units);
  // One lock over all names.
  const uint64_t all = page::share_byte(0, page::ShareSide::kExport, 0);
  ASSERT_TRUE(liar.locks.hold_shared(all, page::share_end(0, page::ShareSide::kExport) - all));
  EXPECT_EQ(copy.ledger.charged_bytes(), 4 * kGiB);
}

// Beside an agent that looks, nobody gets memory before it has seen him, nor while it has not seen that somebody ended.
TEST(Ledger, ReservationsWaitUntilTheAgentHasSeenWhoLives) {
  TestPages pages(kLimit);
  // Time stands still: how long the threads below take to come is not the question.
  struct StillClock final : Clock {
    uint64_t now_ns() override { return 100'000'000'000; }
  } clock;
  Copy copy(pages);
  copy.ledger.seams.clock = &clock;
  page::GrantCard& grant = pages.grant()->cards[0];
  const auto after_a_while = [](auto&& body) {
    return std::thread([body] {
      ::usleep(50'000);
      body();
    });
  };
  const auto look = [&] {
    grant.looked_ns.store(clock.now_ns());
    grant.look_count.fetch_add(2);
  };
  std::atomic<bool> happened{false};
  look();
  const uint32_t slot = copy.ledger.claim();
  std::thread seen = after_a_while([&] {
    happened = true;
    grant.held_slots[0].store(1ull << slot);
    look();
  });
  EXPECT_EQ(copy.ledger.reserve(slot, 100), Reserve::kGranted);
  EXPECT_TRUE(happened) << "admitted before the agent had seen it";
  seen.join();
  // A slot that was held at the last look and is not any more: somebody has ended since.
  happened = false;
  grant.held_slots[0].store(1ull << slot | 1ull << 9);
  look();
  std::thread gone = after_a_while([&] {
    grant.look_count.fetch_add(1);
    grant.deaths_open.store(1);
    grant.held_slots[0].store(1ull << slot);
    grant.look_count.fetch_add(1);
    ::usleep(20'000);
    happened = true;
    grant.look_count.fetch_add(1);
    grant.correction_bytes[9].store(600);  // as a reading of the card told
    grant.deaths_open.store(0);
    grant.look_count.fetch_add(1);
  });
  EXPECT_EQ(copy.ledger.reserve(slot, 500), Reserve::kOverLimit);
  EXPECT_TRUE(happened);
  gone.join();
  EXPECT_EQ(copy.ledger.reserve(slot, 300), Reserve::kGranted);
  // Nobody has looked for long: the agent is away.
  grant.held_slots[0].store(0);
  grant.looked_ns.store(clock.now_ns() - 2 * kAgentLooksNs);
  EXPECT_EQ(copy.ledger.reserve(slot, 0), Reserve::kGranted);
}

}  // namespace
}  // namespace sluice::guest
