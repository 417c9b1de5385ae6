#!/usr/bin/env bash
# An ordinary user, with an agent of their own and a user namespace: the same limits, the same user inside and outside,
# files written as that user, and no way back to the driver.
source "$(dirname "$0")/common.sh"
[ "$(id -u)" = 0 ] || skip "needs root to become another user"
as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
as_user unshare --user --map-current-user --mount true 2>/dev/null || skip "the kernel allows users no namespaces"

chmod -R a+rwX "$work/node/cards"
chown -R 65534:65534 "$work/node/run"
mkdir "$work/home" && chown 65534:65534 "$work/home"
sluice_as_user() { as_user env HOME="$work/home" "$SLUICE_BUILD/bin/sluice" "$@"; }
[ "$(sluice_as_user run --gpu-mem 10 -- nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits)" = 10487 ] ||
  fail "the limit is not shown"
[ "$(sluice_as_user run --gpu-mem 10 -- id -u)" = 65534 ] || fail "another user inside"
sluice_as_user run --gpu-mem 10 -- touch "$work/home/made"
[ "$(stat -c %u "$work/home/made")" = 65534 ] || fail "files belong to $(stat -c %u "$work/home/made")"
[ "$(sluice_as_user run --gpu-mem 10 -- sh -c "umount $SLUICE_BUILD/sim/libcuda.so.1 2>/dev/null && echo undone || echo kept")" = kept ] ||
  fail "the command could unmount our library"
expect 2 setpriv --reuid 65534 --regid 65534 --clear-groups "$SLUICE_BUILD/bin/sluice" run --gpu-mem 10 -- cuda alloc 10488
