#!/usr/bin/env bash
# Shares in real time through the whole stack, alone and beside two spinning processes: a lone 30, 70 + 30, four times 25,
# 30 beside an uncapped one. SECONDS_EACH (60) of each; a line of figures for every program, by the card's own log. The bars
# are 3 points in every 5 s and 1 over the whole.
source "$(dirname "$0")/common.sh"
measured
seconds=${SECONDS_EACH:-60}

cat >"$work/agent" <<TEXT
#!/bin/sh
exec $SLUICE_BUILD/bin/sluice-agent "\$@" --mixed
TEXT
chmod 755 "$work/agent"
export SLUICE_AGENT=$work/agent
missed=0

# shares NAME SPINNERS PERCENT...: one program each; `-` is one without a cap, that is to have what is left.
shares() {
  local name=$1 spinners=$2 percent left=100 here_pids=() runners=() spinning=() asked=()
  shift 2
  for percent in "$@"; do [ "$percent" = - ] || left=$((left - percent)); done
  for percent in "$@"; do
    local options=(--gpu-mem 5)
    [ "$percent" = - ] || options+=(--gpu-core "$percent")
    background "p${#runners[@]}" sluice run "${options[@]}" -- long_kernels --kernel-ms 1 --depth 8 --seconds $((seconds + 30))
    runners+=("$pid")
    asked+=("${percent/-/$left}")
  done
  until_is 10000 $# grants "sum(len(g['processes']) for g in list['grants'])"
  local i
  # In a session of their own, as another container's would be: the scheduler shares processors between sessions first.
  for ((i = 0; i < spinners; ++i)); do
    setsid bash -c 'while :; do :; done' &
    spinning+=($!) started+=($!)
  done
  sleep 2
  local from to
  from=$(card_now); sleep "$seconds"; to=$(card_now)
  for i in "${!runners[@]}"; do
    echo -n "$name, $spinners spinning: "
    "$here/shares.py" "$SLUICE_SIM_DIR/card0" "$(program_of "${runners[$i]}")" "${asked[$i]}" "$from" "$to" || missed=1
  done
  kill "${runners[@]}" "${spinning[@]}" 2>/dev/null || true
  wait "${runners[@]}" 2>/dev/null || true
  until_is 10000 0 grants "len(list['grants'])"
}

for spinners in 0 2; do
  shares "lone 30" $spinners 30
  shares "70 + 30" $spinners 70 30
  shares "4 x 25" $spinners 25 25 25 25
  shares "30 + uncapped" $spinners 30 -
done
[ $missed = 0 ] || fail "a share is not what was granted"
