# For scripts in which something happens to the agent while a program runs: a grant of 10 GiB and 30 % with two programs, one
# that would fill the card and one that asks for memory when told to. To be sourced after common.sh.

# start_held [COMMAND...]: starts them, behind the words given (an environment, say).
start_held() {
  mkfifo "$work/asks"
  background held "$@" sluice run --gpu-mem 10 --gpu-core 30 --name held -- bash -c "
    cuda asked 1000 <'$work/asks' & long_kernels --kernel-ms 1 --depth 8 --seconds 300 & wait"
  held=$pid
  exec {asks}>"$work/asks"
  running held
  until_is 10000 2 grants "sum(len(g['processes']) for g in list['grants'] if g['name'] == 'held')"
  held_id=$(grants "[g['id'] for g in list['grants'] if g['name'] == 'held'][0]")
  questions=0
}

# limits_hold WHEN: 30 % by the card's log over 4 s; within the 10487 MiB, of which about 2000 are in use, 7000 MiB more
# are given and 10000 refused; the programs live.
limits_hold() {
  over 4
  share_is card 30 --whole 3
  asked_for 7000 0 "$1"
  asked_for 10000 2 "$1"
  kill -0 "$held" 2>/dev/null || fail "$1: the programs did not survive: $(cat "$work/held.err")"
  say "$1: the limits hold"
}

asked_for() {  # MIB CODE WHEN
  questions=$((questions + 1))
  echo "q$questions $1" >&"$asks"
  within 10000 grep -q "^q$questions " "$work/held.out" || fail "$3: no answer to a request for $1 MiB"
  holds "q$questions $2" "$work/held.out" || fail "$3: $1 MiB more gave $(grep "^q$questions " "$work/held.out"), expected $2"
}

# Lines of a log that hold a text, and those that are warnings or errors.
lines_with() { grep -c -F -- "$2" "$1" || true; }
complaints() { grep -c -E "level=(warning|error)" "$1" || true; }
