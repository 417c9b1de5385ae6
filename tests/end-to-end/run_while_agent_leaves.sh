#!/usr/bin/env bash
# The agent leaves when idle. Runs that come just then, over and over, start a new one or are still served: none fails.
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
