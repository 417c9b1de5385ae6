#!/usr/bin/env bash
# Sixteen processes of one grant race for the last GiB of its memory and are killed while they do: at random microseconds,
# between two calls, some leaving a forked child asleep, on a card that frees the memory of the dead 0 to 500 ms late. By
# the card's own log the container is never over its limit, and at the end nothing is left on the card or in the ledger.
#
# The short form runs by default. The long form, in rounds of 500 lives each on a card of its own:
#   SLUICE_BUILD=build/dev SLUICE_SOURCE=. tests/end-to-end/race_for_the_last_gib.sh LIVES [SEED]    (10000 lives: minutes)
source "$(dirname "$0")/common.sh"

lives=${1:-150} seed=${2:-1} processes=16 units=7 ballast_mib=4800
per_round=500 max_teardown_ms=500 done_lives=0 round=0

figures() {  # of the card: most it ever held, what it holds now, both in bytes
  sluice-sim log "$SLUICE_SIM_DIR/card0" --json --pid 0 --window 86400000 | python3 -c '
import json, sys
print(max(p["most_resident_bytes"] for w in json.load(sys.stdin)["windows"] for p in w["processes"] if p["pid"] == 0))'
  sluice-sim show "$SLUICE_SIM_DIR/card0" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["used_bytes"])'
}

while [ "$done_lives" -lt "$lives" ]; do
  round=$((round + 1))
  now=$((lives - done_lives < per_round ? lives - done_lives : per_round))
  use_node "$work/round$round"
  sluice-sim set "$SLUICE_SIM_DIR/card0" context_bytes=$((64 << 20))
  limit=$(($(sluice cards --json | python3 -c "import json,sys; c = json.load(sys.stdin)[0]; print(c['memory_mib'] * $units // c['units'])") << 20))
  background race sluice run -q --gpu-mem $units --name race -- "$SLUICE_BUILD/tests/guest_race" $processes "$now" $((seed * 1000 + round)) $ballast_mib
  racing=$pid
  RANDOM=$((seed * 1000 + round))
  while kill -0 "$racing" 2>/dev/null; do
    sluice-sim set "$SLUICE_SIM_DIR/card0" teardown_delay_ns=$((RANDOM % (max_teardown_ms + 1) * 1000000))
    sleep 0.4
  done
  wait "$racing" || fail "round $round: $(cat "$work/race.out" "$work/race.err")"
  until_is 3000 31 free_units
  { read -r most; read -r left; } < <(figures)
  echo "round $round: at most $((most >> 20)) of $((limit >> 20)) MiB, $left bytes left on the card; $(cat "$work/race.out")"
  [ "$most" -le "$limit" ] || fail "round $round: the card held $most bytes for a container of $limit"
  [ "$most" -gt $((limit - (256 << 20))) ] || fail "round $round: the card held $most bytes at most: nobody raced for the last of $limit"
  [ "$left" = 0 ] || fail "round $round: the card still holds $left bytes"
  kill -KILL $(agent_pid)
  cat "$work/race.out" >>"$work/all"
  rm -rf "$work/round$round"
  done_lives=$((done_lives + now))
done
python3 - "$work/all" <<'TEXT'
import json, sys
rounds = [json.loads(line) for line in open(sys.argv[1])]
total = {name: sum(r[name] for r in rounds) for name in rounds[0] if not name.startswith(("left", "settled"))}
print("altogether:", ", ".join(f"{value} {name}" for name, value in total.items()))
TEXT
