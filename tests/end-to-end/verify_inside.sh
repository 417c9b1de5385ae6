#!/usr/bin/env bash
# `sluice verify` says that limits are in force where they are, names what is not where something stands in the way, and
# says that there is no grant outside of one.
source "$(dirname "$0")/common.sh"

expect 122 sluice verify
one_sentence "sluice verify: there is no grant here"

links() { python3 -c "import json,sys; print([l['link'] for l in json.load(open('$work/out')) if l['state'] == '$1'])"; }

# Memory and compute: every link holds.
expect 0 sluice run --gpu-mem 10 --gpu-core 30 --name train -- sluice verify
holds "the limits are in force" "$work/out" || fail "$(cat "$work/out")"
for line in "grant: 'train', 1 card" "grant: read-only: it cannot be written" "gate: the agent's heartbeat is fresh" \
    "card 0: memory by CUDA: 10487 MiB" "card 0: memory by NVML: 10487 MiB" "card 0: registered: this process holds a slot" \
    "card 0: over the limit: refused with out of memory, by the library" "card 0: compute: 30 % of the card"; do
  holds "ok      $line" "$work/out" || fail "'$line' is not in: $(cat "$work/out")"
done
expect 0 sluice run --gpu-mem 10 --gpu-core 30 -- sluice verify --json
[ "$(links broken)" = "[]" ] && [ "$(links note)" = "[]" ] || fail "$(cat "$work/out")"

# What was not asked for is a note, no fault. A whole machine is no share of one.
expect 0 sluice run --gpu-mem 10 -- sluice verify --json
[ "$(links note)" = "['card 0: compute']" ] || fail "$(cat "$work/out")"
until_is 10000 31 free_units
expect 122 sluice run --gpus 1 -- sluice verify
until_is 10000 31 free_units
expect 0 sluice run --gpu-mem 10 --gpu-core 30 --delivery preload -- sluice verify

# Under load of the container's own, with little memory left, the verdict is the same.
background busy sluice run --gpu-mem 10 --gpu-core 30 -- bash -c '
  cuda hold 9000 20 & holder=$!
  while ! [ -e "$0" ]; do sleep 0.05; done
  sluice verify && status=0 || status=$?
  kill $holder
  exit $status' "$work/go"
running busy
touch "$work/go"
wait "$pid" || fail "$(cat "$work/busy.out")"
holds "the limits are in force" "$work/busy.out" || fail "$(cat "$work/busy.out")"

# A copy of the real driver on the library path goes round the library: named, and the exit status says so.
mkdir "$work/copy"
cp -L "$SLUICE_BUILD/sim/libcuda.so.1" "$work/copy/"
expect 1 sluice run --gpu-mem 10 --gpu-core 30 -- env LD_LIBRARY_PATH="$work/copy:$LD_LIBRARY_PATH" sluice verify --json
python3 - "$work/out" <<'END' || fail "$(cat "$work/out")"
import json, sys
broken = {link["link"]: link for link in json.load(open(sys.argv[1])) if link["state"] == "broken"}
assert {"libcuda.so.1", "card 0: memory by CUDA", "card 0: registered", "card 0: compute"} <= set(broken), list(broken)
assert "/copy/libcuda.so.1" in broken["libcuda.so.1"]["found"], broken["libcuda.so.1"]
assert all(link["mend"] for link in broken.values())
END

# A stopped agent: caps hold as averages, and whoever asks is told.
background stopped sluice run --gpu-mem 10 --gpu-core 30 -- bash -c 'while ! [ -e "$0" ]; do sleep 0.05; done; sluice verify' "$work/stopped.go"
within 10000 test -n "$(agent_pid)" || fail "no agent"
until_is 10000 1 grants "len([g for g in list['grants'] if g['runner_pid']])"
agent=$(agent_pid)
kill -STOP "$agent"
sleep 0.8
touch "$work/stopped.go"
status=0
wait "$pid" || status=$?
kill -CONT "$agent"
[ "$status" = 1 ] || fail "status $status: $(cat "$work/stopped.out")"
holds "broken  gate: the agent has not been heard of" "$work/stopped.out" || fail "$(cat "$work/stopped.out")"
holds "the limits are NOT in force" "$work/stopped.out" || fail "$(cat "$work/stopped.out")"
