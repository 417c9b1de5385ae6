#!/usr/bin/env bash
# The agent leaves when idle, or is killed. Runs that come just then, over and over, start a new one or are still served:
# none fails, and none leaves a share taken.
source "$(dirname "$0")/common.sh"

cat >"$work/agent" <<TEXT
#!/bin/sh
exec $SLUICE_BUILD/bin/sluice-agent "\$@" --idle-seconds 1
TEXT
chmod 755 "$work/agent"
export SLUICE_AGENT=$work/agent
for pause in 0.9 1.0 1.05 1.1 1.15 1.2 1.3; do
  expect 0 sluice run --gpu-mem 10 -- true
  sleep "$pause"
done
until_is 5000 "" agent_pids
# Every agent says when it is ready, in a log that they share.
[ "$(grep -c "the agent is ready" "$work/node/run/agent.log")" -gt 1 ] || fail "the agent never left; this test showed nothing"

# Killed at any moment of a run's start.
for pause in 0 0.002 0.004 0.006 0.008 0.010 0.012 0.015 0.020 0.030; do
  sluice run --gpu-mem 10 -- true
  background run sluice run --gpu-mem 20 -- true
  sleep "$pause"
  kill -KILL $(agent_pids) 2>/dev/null || true
  wait "$pid" || fail "killed $pause s after its start: $(cat "$work/run.err")"
  until_is 10000 31 free_units
done
