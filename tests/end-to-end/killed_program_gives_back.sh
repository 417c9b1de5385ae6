#!/usr/bin/env bash
# SIGKILL for a program: its share is free for the next within 100 ms, and its memory as soon as the card has freed it.
# The card takes its time (teardown), which sluice must not hide: until then the units are not given twice.
source "$(dirname "$0")/common.sh"

free_units() { sluice cards --json | python3 -c "import json,sys; print(json.load(sys.stdin)[0]['free_units'])"; }
background victim sluice run --gpu-mem 20 --name victim -- cuda hold 15000 60
running victim
[ "$(free_units)" = 11 ] || fail "free: $(free_units)"
program=$(program_of "$pid")
start=$(now_ms)
kill -KILL "$program"
wait "$pid" || status=$?
[ "${status:-0}" = 137 ] || fail "the runner gave ${status:-0}, expected 137"
until_is 3000 31 free_units
say "share back after $(($(now_ms) - start)) ms (with the time that asking takes)"
expect 0 sluice run --gpu-mem 31 -- cuda alloc 20000
