#!/usr/bin/env bash
# The wall clock jumps three hours forward, back, three hours back and on again, for the agent and for programs at 30 %: their
# limits hold by the card's log, grants are made, shown and given back, every heartbeat is fresh, and the agent's log has
# one line for each jump and no other complaint.
source "$(dirname "$0")/common.sh"
source "$here/held_program.sh"
measured
library=/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1
[ -e "$library" ] || skip "needs libfaketime (script/install-deps)"

turn() { echo "$1" >"$work/clock.new" && mv "$work/clock.new" "$work/clock"; }  # the wall clock's distance from this machine's
in_false_time=(env LD_PRELOAD=$library FAKETIME_TIMESTAMP_FILE=$work/clock FAKETIME_CACHE_DURATION=1
  FAKETIME_DONT_FAKE_MONOTONIC=1)

turn +0s
background agent "${in_false_time[@]}" sluice-agent --run-dir "$SLUICE_RUN_DIR" --idle-seconds 0
within 10000 holds "the agent is ready" "$work/agent.err" || fail "$(cat "$work/agent.err")"
start_held "${in_false_time[@]}"
undisturbed limits_hold "before"

jumps=0
for to in +3h +0h -3h +0h; do
  turn "$to"
  jumps=$((jumps + 1))
  until_is 10000 $jumps lines_with "$work/agent.err" event=clock-set
  undisturbed limits_hold "the clock at $to"
  expect 0 sluice run --gpu-mem 5 --gpu-core 5 --name passing -- cuda alloc 1000
  until_is 5000 "['held']" grants "[g['name'] for g in list['grants']]"
  expect 0 sluice doctor
done
[ "$(lines_with "$work/agent.err" "set forward by 10800.")" = 2 ] && [ "$(lines_with "$work/agent.err" "set back by 10800.")" = 2 ] ||
  fail "expected two jumps forward and two back by three hours: $(grep clock-set "$work/agent.err")"
[ "$(complaints "$work/agent.err")" = 4 ] || fail "expected one line for each jump: $(grep -v level=info "$work/agent.err")"
grep -q "^time=$(date -u -d '+3 hours' +%Y-%m-%dT%H)\|^time=$(date -u -d '+179 minutes' +%Y-%m-%dT%H)" "$work/agent.err" ||
  fail "the agent's clock was not three hours ahead: $(cat "$work/agent.err")"
