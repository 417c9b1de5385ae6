#!/usr/bin/env bash
# Memory that one process of a container exports and another has open, when the first frees it or ends: beside an agent too
# the card holds no more for the container than its limit, by its own log, and the honest way of sharing is charged once.
source "$(dirname "$0")/common.sh"

limit=10485
for how in "" free end; do
  use_node "$work/shared-$how"
  sluice run --gpu-mem 10 --name shared -- "$SLUICE_BUILD/tests/guest_shared_allocations" $limit $how >"$work/out" 2>"$work/err" ||
    fail "${how:-honest}: $(cat "$work/out" "$work/err")"
  [ "$(tail -1 "$work/out")" = "4 shared kinds, 0 wrong" ] || fail "${how:-honest}: $(tail -1 "$work/out")"
  most=$(sluice-sim log "$SLUICE_SIM_DIR/card0" --json --window 86400000 | python3 -c '
import json, sys
print(max(p["most_resident_bytes"] for w in json.load(sys.stdin)["windows"] for p in w["processes"] if p["pid"] == 0) >> 20)')
  [ "$most" -le $limit ] || fail "${how:-honest}: the card held $most MiB for a container of $limit"
  [ "$most" -ge $((limit / 2)) ] || fail "${how:-honest}: the card held $most MiB at most: nothing was tried"
  say "${how:-honest}: at most $most of $limit MiB"
  kill -KILL "$(agent_pid)" 2>/dev/null || true
done
