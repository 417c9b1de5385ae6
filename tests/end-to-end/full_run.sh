#!/usr/bin/env bash
# A full file system under the run directory: one sentence (exit 121), nothing half-made; with room again it works.
source "$(dirname "$0")/common.sh"
[ "$(id -u)" = 0 ] || skip "needs root for a small file system"

mount -t tmpfs -o size=256k,mode=0755 small "$SLUICE_RUN_DIR"
background keeper sluice-agent --run-dir "$SLUICE_RUN_DIR" --idle-seconds 0
within 5000 test -S "$SLUICE_RUN_DIR/agent.sock" || fail "$(cat "$work/keeper.err")"
head -c 1M /dev/zero >"$SLUICE_RUN_DIR/filler" 2>/dev/null || true
expect 121 sluice run --gpu-mem 10 -- true
one_sentence "sluice run: " "No space left"
[ "$(grants "len(list['grants'])")" = 0 ] || fail "a grant was left behind"
umount -l "$SLUICE_RUN_DIR"; kill "$pid"; wait "$pid" || true
expect 0 sluice run --gpu-mem 10 -- true
