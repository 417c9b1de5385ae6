#!/usr/bin/env bash
# A program at 30 % beside one without a compute cap: 30 within 3 points over every 5 s by the card's log, and the other
# gets what is left.
source "$(dirname "$0")/common.sh"
measured

cat >"$work/agent" <<TEXT
#!/bin/sh
exec $SLUICE_BUILD/bin/sluice-agent "\$@" --mixed
TEXT
chmod 755 "$work/agent"
export SLUICE_AGENT=$work/agent
both() {
  stop_all
  background capped sluice run --gpu-mem 10 --gpu-core 30 --name capped -- long_kernels --kernel-ms 1 --depth 8 --seconds 60
  local capped=$pid
  background free sluice run --gpu-mem 10 --name free -- long_kernels --kernel-ms 1 --depth 8 --seconds 60
  local free=$pid
  until_is 10000 2 grants "sum(len(g['processes']) for g in list['grants'])"
  sleep 2
  over 20
  share_is "$(program_of "$capped")" 30
  share_is "$(program_of "$free")" 70
}
undisturbed both
