#!/usr/bin/env bash
# What high priority and the policies do in real time through the whole stack: `sluice run`, the agent, a simulated card.
# SECONDS_EACH (20) of each; shares by the card's log, latencies as the server counts them, from arrival. Scenes:
#
#   priority   a server at 20 beside a trainer at 80, without and with --high-priority: with it requests are answered
#              clearly sooner, and both have the share of the card that they have without
#   burst      one at 50 that pauses beside one at 30: the second has what is idle, the first its own as soon as it works
#   weighted, preemptive, fair, fixed, native   give two programs what docs/kubernetes.md says
#
# --short: some seconds of each within wide bars, for machines of which nothing is known.
source "$(dirname "$0")/common.sh"
measured
seconds=${SECONDS_EACH:-20} points=3 back=10 p50_ratio=0.9 p99_ratio=0.6
if [ "${1:-}" = --short ]; then
  shift
  seconds=6 points=8 back=25 p50_ratio=1 p99_ratio=0.8 patience_s=10
fi
[ $# -gt 0 ] || set -- priority burst weighted preemptive fair fixed native

# Agents end with their last grant, so that the next scene's first program chooses the policy anew.
cat >"$work/agent" <<TEXT
#!/bin/sh
exec $SLUICE_BUILD/bin/sluice-agent "\$@" \$(cat $work/agent-options)
TEXT
chmod 755 "$work/agent"
export SLUICE_AGENT=$work/agent
: >"$work/agent-options"

fresh_agent() {
  stop_all
  local old
  for old in $(agent_pids); do kill "$old"; done
  within 10000 no_agent || fail "the agent does not end"
  echo "$*" >"$work/agent-options"
}
no_agent() { [ -z "$(agent_pid)" ]; }
programs() { until_is 15000 "$1" grants "sum(len(g['processes']) for g in list['grants'])"; }
number() { python3 -c "import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])" "$1" "$2"; }
compute() { python3 -c "print(f'{$1:.4g}')"; }
holds_that() { [ "$(python3 -c "print($1)")" = True ]; }

# Requests of 3 ms, 30 a second: 9 % of the card, less than half of the server's cap. served NAME [OPTION]: p50 and p99.
request_ms=3
served() {
  local name=$1 trainer server
  shift
  fresh_agent
  background trainer sluice run --gpu-mem 10 --gpu-core 80 -- long_kernels --kernel-ms 1 --depth 8 --seconds $((seconds + 60))
  local trainer_runner=$pid
  programs 1
  trainer=$(program_of "$trainer_runner")
  sleep 1
  window_begins
  background "$name" sluice run --gpu-mem 10 --gpu-core 20 "$@" -- \
    infer --rate 30 --request-ms $request_ms --seconds "$seconds" --json
  local server_runner=$pid
  programs 2
  server=$(program_of "$server_runner")
  wait "$server_runner" || fail "the server: $(cat "$work/$name.err")"
  window_ends
  p50=$(number "$work/$name.out" p50_ms) p99=$(number "$work/$name.out" p99_ms)
  say "$name: p50 $(compute "$p50") ms, p99 $(compute "$p99") ms"
  share_is "$trainer" 80 --five "$points" --whole "$points"
  # Every request was served, and the card ran its kernels for no more and no less.
  share_is "$server" "$(compute "$(number "$work/$name.out" requests) * $request_ms * 100 / ($to - $from)")" --five 100 --whole "$points"
}
priority() {
  served without
  local p50_without=$p50 p99_without=$p99
  served with --high-priority
  holds_that "$p50 < $p50_ratio * $p50_without" || not_so "p50 with --high-priority is not below $p50_ratio of that without"
  holds_that "$p99 < $p99_ratio * $p99_without" ||
    not_so "p99 with --high-priority is not below $p99_ratio of that without"
}

burst() {
  fresh_agent
  background pausing sluice run --gpu-mem 10 --gpu-core 50 --policy burst -- \
    long_kernels --kernel-ms 1 --depth 8 --work-ms 1500 --pause-ms 1500 --seconds $((seconds + 60))
  local pausing=$pid
  background steady sluice run --gpu-mem 10 --gpu-core 30 --policy burst -- \
    long_kernels --kernel-ms 1 --depth 8 --seconds $((seconds + 60))
  local steady=$pid
  programs 2
  sleep 2
  over "$seconds"
  "$here/pauses.py" "$SLUICE_SIM_DIR/card0" "$(program_of "$pausing")" 50 "$(program_of "$steady")" 30 "$from" "$to" \
    --points "$points" --back "$back" ||
    not_so "idle time is not lent, or not taken back"
}

# two POLICY WANTED WANTED [OPTION... -- OPTION...]: two programs that would each fill the card.
two() {
  local policy=$1 first second mine=()
  local wanted=("$2" "$3")
  shift 3
  while [ $# -gt 0 ] && [ "$1" != -- ]; do mine+=("$1"); shift; done
  shift || true
  fresh_agent ${agent_options:-}
  background first sluice run --gpu-mem 10 --policy "$policy" "${mine[@]}" -- long_kernels --kernel-ms 1 --depth 8 --seconds $((seconds + 60))
  first=$pid
  programs 1
  background second sluice run --gpu-mem 10 --policy "$policy" "$@" -- long_kernels --kernel-ms 1 --depth 8 --seconds $((seconds + 60))
  second=$pid
  programs 2
  sleep 2
  over "$seconds"
  say "$policy"
  # What hand-overs and time slices cost is missing from shares that fill the card.
  share_is "$(program_of "$first")" "${wanted[0]}" --five "$points" --whole "$points"
  share_is "$(program_of "$second")" "${wanted[1]}" --five "$points" --whole "$points"
}
weighted() { two weighted 75 25 --weight 3 -- --weight 1; }
preemptive() { two preemptive 50 50; }
fair() { agent_options="--max-grants-per-card 5" two fair 20 20; }
fixed() { two fixed 40 20 --gpu-core 40 -- --gpu-core 20; }
# Nothing is held: both have the card's own halves, caps or not.
native() { two native 50 50 --gpu-core 40 -- --gpu-core 20; }

for scene in "$@"; do
  case $scene in
    priority | burst | weighted | preemptive | fair | fixed | native) undisturbed "$scene" ;;
    *) fail "there is no scene '$scene'" ;;
  esac
done
