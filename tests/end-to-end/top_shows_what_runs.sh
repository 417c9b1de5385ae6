#!/usr/bin/env bash
# top without a terminal prints plain text, with --json a line of JSON per reading, and on a terminal draws and leaves it
# as it was.
source "$(dirname "$0")/common.sh"

background program sluice run --gpu-mem 10 --gpu-core 30 --name shown -- train --seconds 15
until_is 10000 1 grants "len(list['grants'])"
expect 0 sluice top -n 2 -d 500
[ "$(grep -c '^sluice top' "$work/out")" = 2 ] && holds shown "$work/out" || fail "$(cat "$work/out")"
! grep -q $'\x1b' "$work/out" || fail "control sequences without a terminal"
expect 0 sluice top --json -n 2 -d 500
[ "$(python3 -c "import json; print([json.loads(l)['grants'][0]['name'] for l in open('$work/out')])")" = "['shown', 'shown']" ] ||
  fail "$(cat "$work/out")"
expect 0 script -qec "stty rows 30 cols 100; sluice top -n 2 -d 500; stty -a" "$work/typescript"
grep -q $'\x1b\\[?1049h' "$work/typescript" && grep -q $'\x1b\\[?1049l' "$work/typescript" || fail "the screen is not given back"
grep -q ' echo ' "$work/typescript" || fail "the terminal's echo is not given back"
