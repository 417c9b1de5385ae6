#!/usr/bin/env bash
# SIGKILL for a program: its share is free again within 100 ms of its end, and while the card still holds its memory
# (teardown), within 100 ms of the moment at which the card has freed it; until then nobody else is given it.
source "$(dirname "$0")/common.sh"
measured

kill_and_time() {  # LIMIT-MS: prints what came back when
  background victim sluice run --gpu-mem 20 --gpu-core 60 --name victim -- cuda hold 15000 60
  running victim
  python3 "$here/release_times.py" "$SLUICE_RUN_DIR/agent.sock" "$SLUICE_SIM_DIR/card0" "$(program_of "$pid")" || fail "$1"
  wait "$pid" || status=$?
  [ "${status:-0}" = 137 ] || fail "the runner gave ${status:-0}, expected 137"
}

kill_and_time "with the card's usual teardown"
sluice-sim set "$SLUICE_SIM_DIR/card0" teardown_delay_ns=0
kill_and_time "with a card that frees at once"
expect 0 sluice run --gpu-mem 31 -- cuda alloc 20000
