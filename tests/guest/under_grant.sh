#!/usr/bin/env bash
# Programs over the simulated card under a grant of 10487 MiB: every allocation kind, every way to the driver in both
# deliveries, the figures that NVML and the driver give, and no word from the library. What the card really spent is read
# from its own log.
set -euo pipefail

build="$SLUICE_BUILD"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "under_grant: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || { echo "under_grant: needs root and mount namespaces" >&2; exit 77; }

export SLUICE_SIM_DIR="$work/cards" LD_LIBRARY_PATH="$build/sim"
"$build/bin/sluice-sim" create "$work/cards" --card V100-SXM2-32GB teardown_delay_ns=0 >/dev/null
limit=10487
granted() {  # granted STATE DELIVERY [options...] -- program...
  local state=$1 delivery=$2
  shift 2
  "$build/tests/guest_with_grant" --driver "$build/sim" --guest "$build/guest" --state "$work/$state" --delivery "$delivery" "$@"
}
# Most that a program had on the card at one time, in bytes, by the card's log.
most_resident() {  # most_resident PROGRAM
  "$build/bin/sluice-sim" log "$work/cards/card0" --json | python3 -c '
import json, sys
log = json.load(sys.stdin)
found = [p["most_resident_bytes"] for w in log["windows"] for p in w["processes"]
         if p["program"] and sys.argv[1].endswith(p["program"].split("/")[-1])]
print(max(found, default=-1))' "$1"
}

echo "== every allocation kind, beside a neighbour that holds memory"
"$build/tests/guest_routes" hold "$build/sim" >"$work/holding" &
neighbour=$!
trap 'kill -9 $neighbour 2>/dev/null || true; wait $neighbour 2>/dev/null || true; rm -rf "$work"' EXIT  # it may still be writing
for _ in $(seq 100); do [ -s "$work/holding" ] && break; sleep 0.05; done
[ "$(cat "$work/holding")" = holding ] || fail "the neighbour did not get its memory"
granted kinds bind --limit-mib $limit -- "$build/tests/guest_allocation_kinds" $limit >"$work/kinds.txt" 2>&1 ||
  fail "allocation kinds: $(grep -v ' ok$' "$work/kinds.txt")"
tail -1 "$work/kinds.txt"
[ "$(tail -1 "$work/kinds.txt")" = "33 kinds, 0 wrong" ] || fail "the list of kinds is not what it was: $(tail -1 "$work/kinds.txt")"
most=$(most_resident guest_allocation_kinds)
[ "$most" -gt $(( (limit - 100) << 20 )) ] || fail "the card's log shows at most $most bytes: the limit was never reached"
[ "$most" -le $(( limit << 20 )) ] || fail "the card held $most bytes for the container, more than its $limit MiB"
echo "at most $(( most >> 20 )) of $limit MiB by the card's log"
kill -9 $neighbour; wait $neighbour 2>/dev/null || true
trap 'rm -rf "$work"' EXIT

echo "== memory that two processes of the container share: charged once, where it was made"
"$build/bin/sluice-sim" create "$work/shared-cards" --card V100-SXM2-32GB teardown_delay_ns=0 >/dev/null
SLUICE_SIM_DIR="$work/shared-cards" granted shared bind --limit-mib $limit -- "$build/tests/guest_shared_allocations" $limit >"$work/shared.txt" 2>&1 ||
  fail "shared memory: $(grep -v ' ok$' "$work/shared.txt")"
[ "$(tail -1 "$work/shared.txt")" = "4 shared kinds, 0 wrong" ] || fail "shared memory: $(tail -1 "$work/shared.txt")"
most=$("$build/bin/sluice-sim" log "$work/shared-cards/card0" --json --pid 0 --window 86400000 | python3 -c '
import json, sys
print(max(p["most_resident_bytes"] for w in json.load(sys.stdin)["windows"] for p in w["processes"] if p["pid"] == 0) >> 20)')
[ "$most" -gt $((limit - 100)) ] && [ "$most" -le $limit ] || fail "shared memory: the card held $most MiB for a container of $limit"

echo "== every way to the driver"
for delivery in bind preload; do
  for route in soname lazy-global unversioned absolute deepbind dlmopen dlmopen-absolute proc-address proc-address-2 \
               nvml nvml-unversioned nvml-absolute fork exec; do
    said=$(granted "$delivery-$route" $delivery --limit-mib $limit -- "$build/tests/guest_routes" $route "$build/sim" 2>&1) ||
      fail "$delivery $route: $said"
    expected=$route
    [ $route = exec ] && expected=soname
    [ "$said" = "$expected $limit 2" ] || fail "$delivery $route: expected '$expected $limit 2', got '$said'"
  done
  said=$(granted "$delivery-copies" $delivery --limit-mib $limit -- "$build/tests/guest_routes" two-copies "$build/sim" 2>&1) || fail "$delivery two-copies: $said"
  [ "$(grep -c "^two-copies $limit 2$" <<<"$said")" = 2 ] || fail "$delivery two copies: $said"
  # Without a search path or any variable but the card's folder.
  said=$(granted "$delivery-bare" $delivery --limit-mib $limit -- env -i SLUICE_SIM_DIR="$work/cards" "$build/tests/guest_routes" absolute "$build/sim" 2>&1)
  [ "$said" = "absolute $limit 2" ] || fail "$delivery env -i: $said"
  echo "$delivery: ok"
done

echo "== variables and preloads of the program's own change nothing"
for change in LD_PRELOAD= LD_BIND_NOW=1 SLUICE_GRANT=/tmp CUDA_VISIBLE_DEVICES=0 CGPU_DISABLE=true CUDA_DISABLE_CONTROL=true; do
  said=$(granted variables bind --limit-mib $limit -- env "$change" "$build/tests/guest_routes" soname "$build/sim" 2>&1)
  [ "$said" = "soname $limit 2" ] || fail "$change: $said"
done

echo "== no limit: the card as it is; no grant: no card"
total=$("$build/tests/guest_routes" soname "$build/sim" | cut -d' ' -f2)
said=$(granted open bind -- "$build/tests/guest_routes" soname "$build/sim" 2>&1)
[ "$said" = "soname $total 0" ] || fail "unlimited grant: expected 'soname $total 0', got '$said'"
said=$(LD_LIBRARY_PATH="$build/guest" "$build/tests/guest_routes" soname "$build/guest" 2>&1 || true)
[ "$said" = "soname start 802" ] || fail "no grant: expected 'soname start 802', got '$said'"
echo "under_grant: ok"
