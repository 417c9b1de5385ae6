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
kill -STOP "$(agent_pid)"
expect 123 sluice run --gpu-mem 10 -- true
one_sentence "sluice run: " "did not answer"
