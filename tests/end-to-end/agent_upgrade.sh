#!/usr/bin/env bash
# The agent exchanged for the next release's, and back, while programs run at 30 %: the new one waits for the old one to
# leave, the programs keep their share by the card's log through the change and their grant with id and name, and one line
# in the new agent's log says whom it follows. (A new library beside the old one: upgrade.sh.)
source "$(dirname "$0")/common.sh"
source "$here/held_program.sh"
measured
next=$SLUICE_BUILD/tests/agent_of_the_next_release
[ -x "$next" ] || fail "$next is missing; build everything first"
this_version=$(sluice-agent --version | awk '{print $2}')
next_version=$("$next" --version | awk '{print $2}')
[ "$this_version" != "$next_version" ] || fail "both agents are of version $this_version"
background agent0 sluice-agent --run-dir "$SLUICE_RUN_DIR" --idle-seconds 0
old=$pid
within 10000 holds "the agent is ready" "$work/agent0.err" || fail "$(cat "$work/agent0.err")"
start_held
undisturbed limits_hold "before"

changes=0
# Agents of the two releases take turns; each follows the one that is $old.
through_a_change() {
  local program=$next version=$next_version before=$this_version
  [ $((changes % 2)) = 0 ] || { program=sluice-agent version=$this_version before=$next_version; }
  changes=$((changes + 1))
  local log=$work/agent$changes.err
  window_begins
  background "agent$changes" "$program" --run-dir "$SLUICE_RUN_DIR" --idle-seconds 0
  local new=$pid
  within 5000 holds "waiting for it to leave" "$log" || fail "it does not wait: $(cat "$log")"
  sleep 0.5
  kill -TERM "$old"
  wait "$old" || fail "the agent before ended with $?"
  within 10000 holds "the agent is ready" "$log" || fail "$(cat "$log")"
  local why="what runs under its grants goes on\" version=$version before=\"pid $old of $before\""
  old=$new
  sleep 3
  window_ends
  [ "$(lines_with "$log" "$why")" = 1 ] && [ "$(lines_with "$log" "follows another")" = 1 ] ||
    fail "expected one line with $why: $(cat "$log")"
  [ "$(complaints "$log")" = 0 ] || fail "something was lost: $(cat "$log")"
  [ "$(grants "(list['agent_version'], [(g['name'], g['id'], g['taken_over'], len(g['processes'])) for g in list['grants']])")" = \
    "('$version', [('held', '$held_id', True, 2)])" ] || fail "it serves $(grants "list")"
  share_is card 30 --whole 3
}
undisturbed through_a_change
undisturbed limits_hold "under the next release's agent"
expect 0 sluice set held --gpu-core 60
expect 0 sluice set held --gpu-core 30
expect 0 sluice run --gpu-mem 5 --gpu-core 5 -- cuda alloc 1000
expect 0 sluice doctor
holds "the agent is $next_version, this tool $this_version" "$work/out" || fail "$(cat "$work/out")"
undisturbed through_a_change
undisturbed limits_hold "under this release's agent again"
