#!/usr/bin/env bash
# A tenant who attacks the node from inside a container, as its root: each attempt leaves the neighbour's memory, limit and
# figures, the agent and its answers, and what others may still start as they were. The card's own word counts.
source "$(dirname "$0")/common.sh"

# Whether a process is shown as one that the card knows and no grant accounts for.
shown() { sluice cards --json | python3 -c "
import json, sys
print('yes' if $1 in [p['pid'] for c in json.load(sys.stdin) for p in c.get('strangers', [])] else 'no')"; }
neighbour_figures() { grants "[(g['name'], c['memory_limit_mib'], u['used_mib']) for g in list['grants'] if g['name'] == 'neighbour' for c in g['cards'] for u in g['use']]"; }

background neighbour sluice run --gpu-mem 10 --name neighbour -- cuda hold 6000 170
running neighbour
until_is 10000 1 grants "len([g for g in list['grants'] if g['name'] == 'neighbour' and g['processes']])"
agent=$(agent_pid)
program=$(program_of "$pid")
sleep 2.5  # the card is read once a second
figures=$(neighbour_figures)
[ "$figures" != "[]" ] || fail "the neighbour is not shown"

# The most that these processes had of the card at any moment, summed, by the card's own log.
had_mib() {
  sluice-sim log "$SLUICE_SIM_DIR/card0" --json | python3 -c '
import json, sys
most = {}
for window in json.load(sys.stdin)["windows"]:
    for p in window["processes"]:
        most[p["pid"]] = max(most.get(p["pid"], 0), p["most_resident_bytes"])
print(sum(most.get(int(pid), 0) for pid in sys.argv[1:]) >> 20)' "$@"
}

unharmed() {
  [ "$(agent_pid)" = "$agent" ] || fail "$1: the agent is another or gone"
  kill -0 "$program" 2>/dev/null || fail "$1: the neighbour's program is gone"
  [ "$(neighbour_figures)" = "$figures" ] || fail "$1: the neighbour was $figures and is $(neighbour_figures)"
  expect 0 sluice run --gpu-mem 2 --name visitor -- cuda alloc 1000
  expect 2 sluice run --gpu-mem 2 --name visitor -- cuda alloc 2100
  expect 0 sluice cards
}

for attack in zeros noise truncate fill locks files stop; do
  background "$attack" sluice run --gpu-mem 4 --name "hostile-$attack" -- "$here/hostile.py" "$attack"
  runner=$pid
  within 20000 holds done "$work/$attack.out" || fail "$attack did not come to its end: $(cat "$work/$attack.out" "$work/$attack.err")"
  sleep 2
  unharmed "$attack"
  case $attack in
    fill) [ "$(awk '{print $2}' "$work/fill.out")" -le 4 ] || fail "the tenant wrote $(cat "$work/fill.out") MiB to the node's memory" ;;
    files) [ "$(cat "$work/files.out")" = "done nothing" ] || fail "the tenant could $(cat "$work/files.out")" ;;
  esac
  had=$(had_mib $(descendants "$runner"))
  [ "$had" -le 4194 ] || fail "$attack: the tenant had $had MiB of its 4194"
  [ "$attack" != stop ] || [ "$had" -ge 1024 ] || fail "the card's log knows nothing of the tenant"
  kill -KILL $(descendants "$runner") "$runner"
  until_is 10000 0 grants "len([g for g in list['grants'] if g['name'] == 'hostile-$attack'])"
  say "$attack: neighbour, agent and newcomers unharmed"
done

# What cannot be stopped from inside a process is seen from outside: the driver called past our library.
background copy sluice run --gpu-mem 4 --name hostile-copy -- "$here/hostile.py" own-copy
within 20000 holds done "$work/copy.out" || fail "own-copy did not come to its end: $(cat "$work/copy.out" "$work/copy.err")"
if [ "$(cat "$work/copy.out")" = "done 0" ]; then
  copier=$(program_of "$pid")
  until_is 15000 yes shown "$copier"
  say "own copy of the driver: it works, and is shown"
  # What it takes that way is no longer there for the container's programs that do use the library.
  inside=(nsenter -t "$copier" -m env PATH="$PATH" SLUICE_SIM_DIR="$SLUICE_SIM_DIR" LD_LIBRARY_PATH="$LD_LIBRARY_PATH")
  until_is 5000 2 bash -c '"$@" >"$0" 2>&1; echo $?' "$work/inside.out" "${inside[@]}" "$here/cuda.py" alloc 100
fi
unharmed "own copy"

# The real pair at its private path, preloaded: the same by an environment variable alone.
background preload sluice run --gpu-mem 4 --name hostile-preload -- env LD_PRELOAD=/run/sluice/container/driver/real-cuda cuda hold 5000 60
running preload
preloader=$(program_of "$pid")
until_is 15000 yes shown "$preloader"
say "the real driver, preloaded: it works, and is shown"
unharmed "preload"
