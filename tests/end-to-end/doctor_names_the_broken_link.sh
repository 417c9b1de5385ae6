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
