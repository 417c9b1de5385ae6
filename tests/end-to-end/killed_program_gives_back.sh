#!/usr/bin/env bash
# SIGKILL for a program: its share of compute is free again within 100 ms of its end, and its share of memory within 100 ms
# of the moment at which the card has freed it (teardown); until then nobody else is given it.
source "$(dirname "$0")/common.sh"
measured

kill_and_time() {  # WHAT: prints what came back when
  local result=0 status=0
  background victim sluice run --gpu-mem 20 --gpu-core 60 --name victim -- cuda hold 15000 60
  running victim
  window_begins
  python3 "$here/release_times.py" "$SLUICE_RUN_DIR/agent.sock" "$SLUICE_SIM_DIR/card0" "$(program_of "$pid")" || result=$?
  window_ends
  [ "$result" = 0 ] || [ "$result" = 3 ] || fail "$1"
  [ "$result" = 0 ] || not_so "$1: late"
  wait "$pid" || status=$?
  [ "$status" = 137 ] || fail "the runner gave $status, expected 137"
}

undisturbed kill_and_time "with the card's usual teardown"
sluice-sim set "$SLUICE_SIM_DIR/card0" teardown_delay_ns=1500000000
undisturbed kill_and_time "with a card that takes long to free"
sluice-sim set "$SLUICE_SIM_DIR/card0" teardown_delay_ns=0
undisturbed kill_and_time "with a card that frees at once"
expect 0 sluice run --gpu-mem 31 -- cuda alloc 20000
