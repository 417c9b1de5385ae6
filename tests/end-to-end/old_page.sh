#!/usr/bin/env bash
# A grant page of another major version: the guest fails closed (cuInit gives 802, nothing is printed), and doctor names
# the page, both versions and the mend.
source "$(dirname "$0")/common.sh"

background program sluice run --gpu-mem 10 --name old -- cuda hold-after "$work/go" 100 5
pages() { find "$SLUICE_RUN_DIR" -path "*grant/page" 2>/dev/null | wc -l; }
until_is 10000 1 pages
kill -STOP "$(agent_pid)"  # it would put its page right
printf '\x63\x00' | dd of="$(find "$SLUICE_RUN_DIR" -path "*grant/page")" bs=1 seek=8 conv=notrunc status=none
touch "$work/go"
wait "$pid" && fail "the program ran with a page of another version"
holds "cuInit 802" "$work/program.out" || fail "expected code 802, got: $(cat "$work/program.out")"
[ ! -s "$work/program.err" ] || fail "something was printed: $(cat "$work/program.err")"

expect 1 sluice doctor
holds "broken  agent: the agent (pid $(agent_pid)) did not answer: it is stopped" "$work/out" || fail "$(cat "$work/out")"
holds "the grant page is of version 99, this sluice knows" "$work/out" || fail "$(cat "$work/out")"
holds "mend: end the programs of this grant and start them again" "$work/out" || fail "$(cat "$work/out")"
truncate -s 100 "$(find "$SLUICE_RUN_DIR" -path "*grant/page")"
expect 1 sluice doctor
holds "the grant page is " "$work/out" && ! holds "of version 99" "$work/out" || fail "$(cat "$work/out")"
