#!/usr/bin/env bash
# From inside a sluice run: no further run, no change of limits, and no agent is started there (it would take the grant's
# view of the card for the machine, and refuse the machine's next programs).
source "$(dirname "$0")/common.sh"

background job sluice run --gpu-mem 2 --gpu-core 30 --name job -- sleep 30
until_is 10000 1 grants "len(list['grants'])"
inside=(nsenter -t "$(program_of "$pid")" -m env PATH="$PATH" SLUICE_SIM_DIR="$SLUICE_SIM_DIR" SLUICE_RUN_DIR="$SLUICE_RUN_DIR")
for refused in "run --gpu-mem 2 -- true" "set job --gpu-mem 20"; do
  # shellcheck disable=SC2086
  expect 120 "${inside[@]}" sluice $refused
  one_sentence "inside of a sluice run"
done
# doctor knows where it is: the driver here is Sluice's, which is no broken link.
expect 0 "${inside[@]}" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" sluice doctor
holds "note    place: this is the inside of a grant" "$work/out" || fail "$(cat "$work/out")"
holds "mend: sluice verify checks the limits from in here" "$work/out" || fail "$(cat "$work/out")"
if grep -q -E "^broken|all links hold" "$work/out"; then fail "$(cat "$work/out")"; fi
kill -KILL "$(agent_pid)"
until_is 5000 "" agent_pids
if "${inside[@]}" timeout 20 sluice cards >"$work/out" 2>"$work/err"; then fail "cards started an agent: $(cat "$work/out")"; fi
[ -z "$(agent_pids)" ] || fail "an agent was started inside the grant"
# A card that the caller has open (a device file, or a simulated card, which stands for one) stays the caller's.
exec 9<"$SLUICE_SIM_DIR/card0" 8<"$work/out"
expect 0 sluice run --gpu-mem 2 --gpu-core 5 -q -- ls -l /proc/self/fd
exec 9<&- 8<&-
if grep -q card0 "$work/out"; then fail "the command inherits a card: $(cat "$work/out")"; fi
grep -q "8 -> $work/out" "$work/out" || fail "the command inherits too little: $(cat "$work/out")"
