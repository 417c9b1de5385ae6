#!/usr/bin/env bash
# doctor: all links hold on a machine with a card and an agent; without a driver it names that link and the mend.
source "$(dirname "$0")/common.sh"

sluice run --gpu-mem 10 -- true
expect 0 sluice doctor
holds "all links hold" "$work/out" || fail "$(cat "$work/out")"
expect 0 sluice doctor --json
python3 -c "import json,sys; assert all(l['state'] != 'broken' for l in json.load(open('$work/out')))"
LD_LIBRARY_PATH='' expect 1 sluice doctor
holds "broken  driver: no GPU driver" "$work/out" && holds "mend: install the NVIDIA driver" "$work/out" || fail "$(cat "$work/out")"
SLUICE_GUEST_DIR=$work expect 1 sluice doctor
holds "broken  our libcuda.so.1" "$work/out" || fail "$(cat "$work/out")"

# Libraries where nothing may be executed.
mkdir "$work/noexec"
if mount -t tmpfs -o noexec tmpfs "$work/noexec" 2>/dev/null; then
  cp "$SLUICE_BUILD"/guest/*.so* "$work/noexec/"
  SLUICE_GUEST_DIR=$work/noexec expect 1 sluice doctor
  holds "lies on a file system mounted noexec" "$work/out" || fail "$(cat "$work/out")"
  umount "$work/noexec"
else
  say "left out: a noexec mount needs root"
fi

# A card that is gone.
card=$SLUICE_SIM_DIR/card0
sluice run --gpu-mem 10 -- true
sluice-sim fault "$card" lost
lost() { sluice doctor | grep -c "broken  card 0: .*lost" || true; }
until_is 5000 1 lost
expect 1 sluice doctor
holds "mend: look for XID messages" "$work/out" || fail "$(cat "$work/out")"
sluice-sim fault "$card" back
