#!/usr/bin/env bash
# An agent that does not answer (stopped) is reported with its pid within the time limit, one that cannot be started with
# the reason; commands that need a running agent say that there is none (exit 123).
source "$(dirname "$0")/common.sh"

expect 123 sluice ps
one_sentence "no agent answers at $SLUICE_RUN_DIR/agent.sock"
expect 123 sluice set someone --gpu-core 5
one_sentence "no agent answers"
SLUICE_AGENT=/bin/false expect 123 sluice run --gpu-mem 10 -- true
one_sentence "sluice run: "
SLUICE_AGENT=$work/none expect 123 sluice run --gpu-mem 10 -- true
one_sentence "$work/none"
sluice run --gpu-mem 10 -- true
agent=$(agent_pid)
kill -STOP "$agent"
before=$(now_ms)
expect 123 sluice run --gpu-mem 10 -- true
one_sentence "sluice run: " "did not answer: it is stopped" "continue it (kill -CONT $agent)"
took=$(($(now_ms) - before))
[ "$took" -lt 5000 ] || fail "a stopped agent was reported after $took ms"
kill -CONT "$agent"
expect 0 sluice run --gpu-mem 10 -- true
