#!/usr/bin/env bash
# A full file system under the run directory. Without programs: one sentence (exit 121), nothing half-made. Under running
# programs: their limits hold, what would have to be written down is refused and stays as it was, an agent killed meanwhile
# is followed, and each agent's log has one line that names the cause, also where the log lies on the full file system.
# With room again everything works.
source "$(dirname "$0")/common.sh"
source "$here/held_program.sh"
[ "$(id -u)" = 0 ] || skip "needs root for a small file system"
measured

mount -t tmpfs -o size=512k,mode=0755 small "$SLUICE_RUN_DIR"
fill() { head -c 1M /dev/zero >"$SLUICE_RUN_DIR/filler" 2>/dev/null || true; }
refused() {
  expect 121 sluice run --gpu-mem 10 --gpu-core 5 -- true
  one_sentence "sluice run: " "No space left"
}

background first sluice-agent --run-dir "$SLUICE_RUN_DIR" --idle-seconds 0
first=$pid
within 5000 test -S "$SLUICE_RUN_DIR/agent.sock" || fail "$(cat "$work/first.err")"
fill
refused
[ "$(grants "len(list['grants'])")" = 0 ] || fail "a grant was left behind"
until_is 5000 1 lines_with "$work/first.err" event=no-room
rm "$SLUICE_RUN_DIR/filler"
until_is 5000 1 lines_with "$work/first.err" event=room-again

start_held
undisturbed limits_hold "with room"
fill
until_is 5000 2 lines_with "$work/first.err" event=no-room
undisturbed limits_hold "without room"
refused
expect 121 sluice set held --gpu-core 60
one_sentence "No space left"
undisturbed limits_hold "after a change that was refused"
sleep 2
[ "$(complaints "$work/first.err")" = 2 ] || fail "expected one line each time: $(cat "$work/first.err")"
holds "the file system of $SLUICE_RUN_DIR is full" "$work/first.err" || fail "$(cat "$work/first.err")"

kill -KILL "$first"
background second sluice-agent --run-dir "$SLUICE_RUN_DIR" --idle-seconds 0
until_is 10000 "[('held', '$held_id', True)]" grants "[(g['name'], g['id'], g['taken_over']) for g in list['grants']]"
undisturbed limits_hold "under the next agent"
[ "$(complaints "$work/second.err")" = 1 ] || fail "expected one line: $(cat "$work/second.err")"
rm "$SLUICE_RUN_DIR/filler"
until_is 5000 1 lines_with "$work/second.err" event=room-again
expect 0 sluice set held --gpu-core 60
expect 0 sluice run --gpu-mem 10 --gpu-core 5 -- true

# The log of an agent that `sluice run` has started lies in the run directory.
kill -KILL "$pid"
expect 0 sluice run --gpu-mem 10 --gpu-core 5 -- true
log=$SLUICE_RUN_DIR/agent.log
until_is 5000 1 lines_with "$log" "the agent is ready"
printf "%$((4095 - $(stat -c %s "$log") % 4096))s\n" "" >>"$log"  # not even the page that it has has room for a line
fill
sleep 3
[ "$(lines_with "$log" event=no-room)" = 0 ] || fail "there was room for a line"
rm "$SLUICE_RUN_DIR/filler"
until_is 5000 1 lines_with "$log" event=room-again
[ "$(lines_with "$log" event=no-room)" = 1 ] || fail "the line is lost: $(cat "$log")"
kill -0 "$held" || fail "the programs did not survive"
