#!/usr/bin/env bash
# The command's exit status is sluice run's own, a deadly signal gives 128 + N, a missing command 127, one that is no
# program 126; SIGTERM for the runner reaches the command, and killing the runner leaves the command under its caps.
source "$(dirname "$0")/common.sh"

expect 0 sluice run --gpu-mem 1 -- true
expect 42 sluice run --gpu-mem 1 -- sh -c 'exit 42'
expect 137 sluice run --gpu-mem 1 -- sh -c 'kill -9 $$'
expect 127 sluice run --gpu-mem 1 -- sluice-no-such-program
one_sentence "cannot start 'sluice-no-such-program'"
expect 126 sluice run --gpu-mem 1 -- /etc/passwd
background trapped sluice run --gpu-mem 1 -- sh -c 'trap "echo got it; exit 7" TERM; echo ready; while :; do sleep 0.1; done'
within 10000 holds ready "$work/trapped.out" || fail "$(cat "$work/trapped.err")"
kill -TERM "$pid"
wait "$pid" || status=$?
[ "${status:-0}" = 7 ] && holds "got it" "$work/trapped.out" || fail "status ${status:-0}: $(cat "$work/trapped.out")"
background killed sluice run --gpu-mem 10 -- cuda hold 100 20
running killed
program=$(program_of "$pid")
started+=("$program")
kill -KILL "$pid"
sleep 1
kill -0 "$program" || fail "the command died with its runner"
[ "$(grants "len(list['grants'])")" = 1 ] || fail "the running command lost its grant"
