#!/usr/bin/env bash
# A new version beside the old one: what runs keeps the library it has mapped and its limit, under the next agent too; what
# starts from then on gets the new files. Only the old files' removal would hurt, and not even that what runs.
source "$(dirname "$0")/common.sh"

mkdir "$work/old" "$work/new"
cp "$SLUICE_BUILD"/guest/*.so* "$work/old/"
cp "$SLUICE_BUILD"/guest/*.so* "$work/new/"
chmod -R a+rX "$work/old" "$work/new"
inode() { stat -c %i "$1/libcuda.so.1"; }
mapped() { awk '/libcuda/ {print $5; exit}' "/proc/$1/maps"; }

export SLUICE_GUEST_DIR=$work/old
background old sluice run --gpu-mem 10 --gpu-core 30 --name old -- cuda hold-two 3000 "$work/go" 8000 60
running old
program=$(program_of "$pid")
[ "$(mapped "$program")" = "$(inode "$work/old")" ] || fail "the program has mapped $(mapped "$program")"

export SLUICE_GUEST_DIR=$work/new
kill -KILL "$(agent_pid)"
expect 0 sluice run --gpu-mem 10 --gpu-core 30 --name new -- cuda alloc 9000
background new sluice run --gpu-mem 10 --gpu-core 30 --name new -- cuda hold 9000 60
running new
[ "$(mapped "$(program_of "$pid")")" = "$(inode "$work/new")" ] || fail "a program started later has the old library"
until_is 5000 "[('new', False), ('old', True)]" grants "sorted((g['name'], g['taken_over']) for g in list['grants'])"
[ "$(mapped "$program")" = "$(inode "$work/old")" ] || fail "the running program's library was exchanged"

rm -r "$work/old"
touch "$work/go"
within 10000 holds "second 2" "$work/old.out" || fail "its limit of 10487 MiB no longer holds: $(cat "$work/old.out")"
kill -0 "$program" || fail "the program did not survive"
