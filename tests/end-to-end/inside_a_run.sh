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
kill -KILL "$(agent_pid)"
until_is 5000 "" agent_pids
if "${inside[@]}" timeout 20 sluice cards >"$work/out" 2>"$work/err"; then fail "cards started an agent: $(cat "$work/out")"; fi
[ -z "$(agent_pids)" ] || fail "an agent was started inside the grant"
