#!/usr/bin/env bash
# A tenant at 70 who attacks the compute share of a neighbour at 30: its programs are stopped, traced and frozen with
# kernels in flight, and it writes to its slots what is not so (noise, waiting: hostile_compute.py). By the card's own log
# the neighbour keeps its 30 within 3 points all the time, and the agent is the one it was.
#
#   hostile_compute.sh [ATTACK...]   default: none stopped traced frozen noise waiting. By name also account, which keeps
#                                    the share of the turns' time, not of what is lost between them
source "$(dirname "$0")/common.sh"
measured

attacks=("$@")
[ $# -gt 0 ] || attacks=(none stopped traced frozen noise waiting)
window_s=${WINDOW_S:-4}
group=""
unfreeze() { [ -z "$group" ] || { echo THAWED >"$group/freezer.state" || echo 0 >"$group/cgroup.freeze"; } 2>/dev/null || true; }
leave() {
  local status=$?
  set +e
  unfreeze
  (exit $status)
  at_end
  [ -z "$group" ] || { sleep 0.1; rmdir "$group"; }
}
trap leave EXIT

# freeze PID...: by the kernel's freezer, of either version of cgroups; false where there is none to write to.
freeze() {
  local first second
  first=/sys/fs/cgroup/freezer/sluice-test-$$ second=/sys/fs/cgroup/sluice-test-$$
  if [ -d /sys/fs/cgroup/freezer ] && mkdir "$first" 2>/dev/null; then
    group=$first
  elif [ -e /sys/fs/cgroup/cgroup.controllers ] && mkdir "$second" 2>/dev/null; then
    group=$second
  else
    return 1
  fi
  local pid
  for pid in "$@"; do echo "$pid" >"$group/cgroup.procs" || return 1; done
  { [ -e "$group/freezer.state" ] && echo FROZEN >"$group/freezer.state"; } || echo 1 >"$group/cgroup.freeze" || return 1
  within 2000 frozen || fail "the kernel did not freeze $*"
}
frozen() { grep -q -x FROZEN "$group/freezer.state" 2>/dev/null || grep -q -x "frozen 1" "$group/cgroup.events" 2>/dev/null; }

background neighbour sluice run --gpu-mem 10 --gpu-core 30 --name neighbour -- long_kernels --kernel-ms 1 --depth 8 --seconds 900
neighbour=$pid
until_is 10000 1 grants "len([g for g in list['grants'] if g['name'] == 'neighbour' and g['processes']])"
agent=$(agent_pid)
program=$(program_of "$neighbour")

neighbour_keeps() {
  over "$window_s"
  share_is "$program" 30 --whole 3
}

for attack in "${attacks[@]}"; do
  how=$attack
  case $attack in none | frozen) how=working ;; esac
  background "$attack" sluice run --gpu-mem 4 --gpu-core 70 --name "hostile-$attack" -- "$here/hostile_compute.py" "$how"
  attacker=$pid
  within 20000 holds attacking "$work/$attack.out" || fail "$attack did not begin: $(cat "$work/$attack.out" "$work/$attack.err")"
  if [ "$attack" = frozen ] && ! freeze $(cut -d' ' -f2- "$work/$attack.out"); then
    say "frozen: this machine has no freezer that may be written; not tried"
    continue
  fi
  sleep 0.3  # the 50 ms in which an overdue holder of the turn is noticed, and the window of the last second
  undisturbed neighbour_keeps
  kill -0 "$attacker" 2>/dev/null || fail "$attack: the attack ended early: $(cat "$work/$attack.err")"
  [ "$(agent_pid)" = "$agent" ] || fail "$attack: the agent is another or gone"
  unfreeze
  kill -KILL $(descendants "$attacker") "$attacker"
  until_is 10000 0 grants "len([g for g in list['grants'] if g['name'] == 'hostile-$attack'])"
  say "$attack: the neighbour keeps its share"
done
