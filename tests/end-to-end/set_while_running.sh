#!/usr/bin/env bash
# sluice set changes a running program's compute and memory at once; what cannot be is refused with the reason.
source "$(dirname "$0")/common.sh"
measured

change() {
  stop_all
  background program sluice run --gpu-mem 10 --gpu-core 20 --name changed -- long_kernels --kernel-ms 1 --depth 8 --seconds 40
  until_is 10000 1 grants "sum(len(g['processes']) for g in list['grants'])"
  sleep 2
  over 4
  share_is card 20 --whole 3
  expect 0 sluice set changed --gpu-core 60 --gpu-mem 12
  holds 12584 "$work/out" || fail "the new limit, floor(32510 x 12 / 31), is not shown: $(cat "$work/out")"
  sleep 1
  over 4
  share_is card 60 --whole 3
}
undisturbed change
expect 120 sluice set changed --gpu-core 7
one_sentence "--gpu-core is 7"
expect 122 sluice set nobody --gpu-core 5
one_sentence "nobody"
expect 120 sluice set changed --gpu-mem 32
one_sentence "needs 32 GiB on one card, card 0 has 31"
