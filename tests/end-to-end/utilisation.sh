#!/usr/bin/env bash
# The utilisation of a program at 30 and at 70 as `sluice ps`, the metrics port and nvidia-smi inside the run show it:
# within a point of each other and of the card's own log.
source "$(dirname "$0")/common.sh"
measured

background agent sluice-agent --run-dir "$SLUICE_RUN_DIR" --metrics 127.0.0.1:0
within 10000 holds "the agent is ready" "$work/agent.err" || fail "$(cat "$work/agent.err")"
port=$(grep -o "port=[0-9]*" "$work/agent.err" | head -n 1 | cut -d= -f2)
agent=$pid
started=()
all_say() {  # PERCENT
  stop_all
  background seen sluice run --gpu-mem 10 --gpu-core "$1" --name seen -- bash -c "
    long_kernels --kernel-ms 1 --depth 8 --seconds 60 >/dev/null & exec nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -lms 100"
  until_is 10000 1 grants "len(list['grants'][0]['processes'])"
  sleep 2
  local status=0
  window_begins
  "$here/utilisation.py" "$SLUICE_SIM_DIR/card0" seen "$port" "$work/seen.out" 12 || status=$?
  window_ends
  [ $status = 0 ] || [ $status = 3 ] || fail "nothing was measured"
  [ $status = 0 ] || not_so "utilisation at $1"
}
undisturbed all_say 30
undisturbed all_say 70
stop_all
started=("$agent")
