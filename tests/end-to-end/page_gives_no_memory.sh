#!/usr/bin/env bash
# A tenant who writes its usage page as fast as it can gains no memory by it: zeroing its slots before each allocation,
# closing the file's locks away, cutting the file, alone and with many processes. By the card's own log the container
# stays within its limit plus 16 MiB for each other process (docs/security.md), also where processes end in turn and leave
# memory on the card that is in nobody's page and nobody's tally. The agent tells of it.
source "$(dirname "$0")/common.sh"

limit=4194
most_mib() {
  sluice-sim log "$SLUICE_SIM_DIR/card0" --json | python3 -c '
import json, sys
print(max(p["most_resident_bytes"] for w in json.load(sys.stdin)["windows"] for p in w["processes"] if p["pid"] == 0) >> 20)'
}

now_mib() { sluice-sim show "$SLUICE_SIM_DIR/card0" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["used_bytes"] >> 20)'; }

for attack in "zeros 1" "zeros 8" "close 1" "close 8" "ended 4" "cut 2" "ended 4 neighbour" "cut 2 neighbour"; do
  read -r how count beside <<<"$attack"
  name="$how-$count${beside:+-$beside}"
  use_node "$work/$name"
  background "$name" sluice run --gpu-mem 4 --name "$name" -- "$here/hostile.py" greedy "$how" "$count"
  attacker=$pid
  if [ "$beside" ]; then
    background neighbour bash -c 'for _ in 1 2 3 4 5; do sluice run --gpu-mem 20 --name neighbour -- cuda alloc 15000 || exit 1; done'
    neighbour=$pid
  fi
  within 40000 holds done "$work/$name.out" || fail "$attack did not come to its end: $(cat "$work/$name.out" "$work/$name.err")"
  most=$(most_mib)
  if [ "$beside" ]; then
    # What ended processes still have on the card is at nobody's expense: neighbours who ask for their own get it.
    wait "$neighbour" || fail "$attack: a neighbour did not get its memory: $(cat "$work/neighbour.err" "$work/neighbour.out")"
    until_is 3000 True eval '[ "$(now_mib)" -le $limit ] && echo True'
    kill -KILL "$(agent_pid)" $(descendants "$attacker") "$attacker" 2>/dev/null || true
    say "$attack: the neighbour got its memory five times"
    continue
  fi
  [ "$most" -le $((limit + 16 * (count - 1))) ] || fail "$attack: the card held $most MiB for a container of $limit"
  [ "$how" = cut ] || [ "$most" -ge $((limit - 600)) ] || fail "$attack: the card held $most MiB at most: nothing was tried"
  [ "$how" = cut ] || until_is 5000 True grants "any(e['what'] == 'tampering' for e in list['events'])"
  kill -KILL "$(agent_pid)" $(descendants "$attacker") "$attacker" 2>/dev/null || true
  say "$attack: at most $most of $limit MiB, $(cut -d' ' -f2 "$work/$name.out") MiB asked for and given"
done
