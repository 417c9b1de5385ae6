#!/usr/bin/env bash
# Two programs that would each fill the card, at 70 and 30: each within 3 points over every 5 s and 1 over the whole, by
# the card's log, in real time; the card stays busy.
source "$(dirname "$0")/common.sh"
measured

both() {
  stop_all
  background big sluice run --gpu-mem 10 --gpu-core 70 --name big -- long_kernels --kernel-ms 1 --depth 8 --seconds 60
  local big=$pid
  background small sluice run --gpu-mem 10 --gpu-core 30 --name small -- long_kernels --kernel-ms 1 --depth 8 --seconds 60
  local small=$pid
  until_is 10000 2 grants "sum(len(g['processes']) for g in list['grants'])"
  sleep 2
  over 20
  share_is "$(program_of "$big")" 70
  share_is "$(program_of "$small")" 30
}
undisturbed both
