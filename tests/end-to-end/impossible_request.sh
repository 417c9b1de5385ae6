#!/usr/bin/env bash
# A wrong request, and one that no card could ever serve, are refused in one sentence that names rule, need and have
# (exit 120); one that would fit if the card were free as such (exit 121). Nothing is left behind.
source "$(dirname "$0")/common.sh"

refused() { local status=$1 text=$2; shift 2; expect "$status" sluice run "$@" -- true; one_sentence "sluice run: " "$text"; }
refused 120 "--gpu-core: needs a multiple of 5, at least 5, have 7" --gpu-mem 10 --gpu-core 7
refused 120 "--gpu-core: needs --gpu-mem beside it" --gpu-core 30
refused 120 "have '10G'" --gpu-mem 10G
refused 120 "needs 40 GiB on one card, largest has 31 GiB" --gpu-mem 40
refused 120 "needs 2 cards" --gpus 2
background first sluice run --gpu-mem 20 -- cuda hold 100 30
running first
refused 121 "needs 12 GiB on one card, most free on any card 11 GiB" --gpu-mem 12
[ "$(grants "len(list['grants'])")" = 1 ] || fail "a refused request left a grant behind"
