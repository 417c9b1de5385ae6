#!/usr/bin/env bash
# Memory that outlives its owner, in a container of 10487 MiB without an agent: exported by IPC handle, descriptor, pool and
# as external memory, opened by another process, and then freed by the first, or the first ends. By the card's own log the
# container stays within its limit, and all is there again when the other lets go.
set -euo pipefail

build="$SLUICE_BUILD"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "shared_outlives: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || { echo "shared_outlives: needs root and mount namespaces" >&2; exit 77; }

export LD_LIBRARY_PATH="$build/sim"
limit=10487
for how in free end; do
  export SLUICE_SIM_DIR="$work/$how-cards"
  "$build/bin/sluice-sim" create "$SLUICE_SIM_DIR" --card V100-SXM2-32GB teardown_delay_ns=0 >/dev/null
  "$build/tests/guest_with_grant" --driver "$build/sim" --guest "$build/guest" --state "$work/$how" --delivery bind --limit-mib $limit -- \
    "$build/tests/guest_shared_allocations" $limit $how >"$work/$how.txt" 2>&1 || fail "$how: $(cat "$work/$how.txt")"
  [ "$(tail -1 "$work/$how.txt")" = "4 shared kinds, 0 wrong" ] || fail "$how: $(tail -1 "$work/$how.txt")"
  most=$("$build/bin/sluice-sim" log "$SLUICE_SIM_DIR/card0" --json --pid 0 --window 86400000 | python3 -c '
import json, sys
print(max(p["most_resident_bytes"] for w in json.load(sys.stdin)["windows"] for p in w["processes"] if p["pid"] == 0) >> 20)')
  [ "$most" -le $limit ] || fail "$how: the card held $most MiB for a container of $limit"
  [ "$most" -ge $((limit / 2)) ] || fail "$how: the card held $most MiB at most: nothing was tried"
  echo "$how: at most $most of $limit MiB"
done
