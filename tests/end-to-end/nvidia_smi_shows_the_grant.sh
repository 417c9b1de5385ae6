#!/usr/bin/env bash
# nvidia-smi under sluice run shows the limit as the card's memory, 10487 MiB = floor(32510 x 10 / 31), and without it
# the whole card; cuMemGetInfo says the same.
source "$(dirname "$0")/common.sh"

total() { "$@" nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; }
[ "$(total env)" = 32510 ] || fail "the bare card shows $(total env) MiB"
[ "$(total sluice run --gpu-mem 10 --gpu-core 30 --)" = 10487 ] || fail "10 units show $(total sluice run --gpu-mem 10 --)"
[ "$(total sluice run --gpu-mem 31 --)" = 32510 ] || fail "all units are not the whole card"
[ "$(total sluice run --gpus 1 --)" = 32510 ] || fail "a whole card is not shown whole"
expect 0 sluice run --gpu-mem 10 -- nvidia-smi
holds "10487MiB" "$work/out" || fail "the table shows: $(grep MiB "$work/out")"
expect 0 sluice run --gpu-mem 10 -- cuda info
holds "total 10487" "$work/out" || fail "cuMemGetInfo says $(cat "$work/out")"
