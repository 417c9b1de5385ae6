#!/usr/bin/env bash
# --gpus 1 gives a card that nobody else gets, without limits; beside a share there is no whole card.
source "$(dirname "$0")/common.sh"

background whole sluice run --gpus 1 --name whole -- cuda hold 30000 20
running whole  # 30000 MiB
until_is 3000 1 grants "len(list['grants'][0]['processes'])"  # seen without a library in between
expect 121 sluice run --gpu-mem 1 -- true
one_sentence "sluice run: "
kill -KILL "$(program_of "$pid")"; wait "$pid" || true
until_is 4000 0 grants "len(list['grants'])"
background part sluice run --gpu-mem 1 -- cuda hold 10 20
running part
expect 121 sluice run --gpus 1 -- true
one_sentence "sluice run: "
