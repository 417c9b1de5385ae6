#!/usr/bin/env bash
# Every way in which programs bind the driver (linked, dlopen by SONAME, bare name or full path, DEEPBIND, a namespace of
# its own, cuGetProcAddress) meets our library under both deliveries; a namespace of its own needs the bind mount.
source "$(dirname "$0")/common.sh"
zoo=$(command -v binder_zoo) || fail "binder_zoo is not built"

for delivery in bind preload; do
  expect 0 sluice run --gpu-mem 10 --delivery "$delivery" -- "$zoo" --expect-mib 10487
  say "$delivery: $(grep -c . "$work/out") ways"
done
