#!/usr/bin/env bash
# Ten runs that start together, with no agent yet, get one agent and ten grants, and all end well.
source "$(dirname "$0")/common.sh"

pids=()
for i in 1 2 3 4 5 6 7 8 9 10; do
  background "run$i" sluice run --gpu-mem 3 --name "run$i" -- sh -c "echo started; while [ ! -e $work/go ]; do sleep 0.05; done"
  pids+=("$pid")
done
for i in 1 2 3 4 5 6 7 8 9 10; do
  within 20000 holds started "$work/run$i.out" || fail "run $i did not start: $(cat "$work/run$i.err")"
done
[ "$(agent_pids | wc -l)" = 1 ] || fail "agents: $(agent_pids)"
[ "$(grants "len(list['grants'])")" = 10 ] || fail "grants: $(grants "list['grants']")"
touch "$work/go"
for one in "${pids[@]}"; do wait "$one" || fail "a run ended with $?"; done
