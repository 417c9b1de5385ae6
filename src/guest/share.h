// Memory that this process exports to others of the container, or has imported from them (page/share.h has the rule).
//
// The exporter's charge stays what it is; an export only says so, and ends before the charge is given back. An importer
// claims before it asks the driver, so that there is no moment in which the memory is nobody's. A claim that no export
// covers is charged to the container, and refused where that passes the limit.
//
// Names: what travels between the two sides and has to be right for the import to succeed. An IPC handle, a pool
// pointer's data and a fabric handle by their bytes; a descriptor by the file behind it, where that is a file of its
// own. A driver whose descriptors all name one device file gives no such name: those imports are not claimed.
#pragma once

#include "guest/guest.h"

namespace sluice::guest {

// 0 is no name.
uint64_t name_of_bytes(const void* bytes, uint64_t count);
uint64_t name_of_file(int descriptor);

// `key` is the memory in the book: its address, or its record. From here on importers of `name` are not charged.
void share_export(Guest* guest, uint32_t card, uint64_t key, uint64_t name, uint64_t bytes);
// Takes the memory's exports out of the book, before its address may be another's; 0: there are none. Then drop them
// when the driver has freed the memory, or put them back when it has not.
uint64_t share_take(Guest* guest, uint64_t key);
void share_put_back(Guest* guest, uint64_t key, uint64_t exports);
void share_drop(Guest* guest, uint64_t exports);

// A claim of this process on a card; byte 0: none.
struct Claim {
  uint64_t byte = 0;
  uint32_t card = 0;
};
// Looks for the exporter of `name` on the container's cards and claims as much as it says; no claim when there is none
// in sight. *refused: the locks cannot say it.
Claim claim_export(Guest* guest, uint64_t name, bool* refused);
// Claims `bytes` of what no exporter speaks for (any more), by the name alone.
CUresult claim_bytes(Guest* guest, uint32_t card, uint64_t name, uint64_t bytes, Claim* claim);
// Makes a claim at least `bytes` large.
CUresult raise_claim(Guest* guest, const Claim& claim, uint64_t bytes);
void drop_claim(Guest* guest, const Claim& claim);

// Imports in the book, by address or handle.
bool book_import(Guest* guest, uint64_t key, const Claim& claim, CUcontext context);
// One opening less; its claim, which the caller drops when the driver has closed it or gives to book_import again.
Claim unbook_import(Guest* guest, uint64_t key, CUcontext* context);
// What a context that was destroyed takes with it: exports of its allocations, and what was opened in it.
void share_forget_context(Guest* guest, uint32_t card, CUcontext context);

}  // namespace sluice::guest
