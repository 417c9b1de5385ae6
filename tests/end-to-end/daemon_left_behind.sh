#!/usr/bin/env bash
# A daemon that the command leaves behind keeps its grant for as long as it holds the card; then the share is free.
source "$(dirname "$0")/common.sh"

expect 0 sluice run --gpu-mem 10 --name daemon -- cuda daemon 500 4
daemon=$(cat "$work/out")
started+=("$daemon")
kill -0 "$daemon" || fail "the daemon was ended with its command"
sleep 1.5
until_is 100 "[('daemon', 1)]" grants "[(g['name'], len(g['processes'])) for g in list['grants']]"
expect 121 sluice run --gpu-mem 22 -- true
until_is 8000 0 grants "len(list['grants'])"
