#!/usr/bin/env bash
# No driver and no card are told apart, each in one sentence (exit 122).
source "$(dirname "$0")/common.sh"

export LD_LIBRARY_PATH=
expect 122 sluice run --gpu-mem 10 -- true
one_sentence "sluice run: " "libnvidia-ml.so.1"
export LD_LIBRARY_PATH=$SLUICE_BUILD/sim SLUICE_SIM_DIR=$work/empty
mkdir "$work/empty"
expect 122 sluice run --gpu-mem 10 -- true
one_sentence "sluice run: " "card"
