#!/usr/bin/env bash
# An allocation over the limit fails with code 2 (out of memory) in the offender; the neighbour notices nothing, although
# the card itself has memory for both.
source "$(dirname "$0")/common.sh"

background neighbour sluice run --gpu-mem 10 --name neighbour -- cuda hold 9000 30
neighbour=$pid
running neighbour
expect 2 sluice run --gpu-mem 10 -- cuda alloc 10488
holds "alloc 2" "$work/out" || fail "$(cat "$work/out")"
expect 0 sluice run --gpu-mem 10 -- cuda alloc 9000
until_is 5000 21 free_units  # the card takes a while to free what the ended program had
expect 0 sluice run --gpu-mem 12 -- cuda alloc 10488
kill -0 "$neighbour" || fail "the neighbour ended"
[ ! -s "$work/neighbour.err" ] || fail "the neighbour was told: $(cat "$work/neighbour.err")"
[ "$(grants "[g['use'][0]['refused_allocations'] for g in list['grants'] if g['name'] == 'neighbour']")" = "[0]" ] ||
  fail "the neighbour was refused something"
