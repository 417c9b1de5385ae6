# What every end-to-end script starts from: a scratch folder, one simulated card, programs of the build in PATH, and
# an end that leaves nothing running. A script sources this file, says what it expects, and exits 0 or at the first
# thing that is not so. Limits are judged by the card's own log, never by what our own parts say.
#
#   SLUICE_BUILD, SLUICE_SOURCE   set by ctest
#   work                          the scratch folder; $work/node is "the machine": its card, its agent
set -euo pipefail

: "${SLUICE_BUILD:?run through ctest, or set SLUICE_BUILD to a build folder}"
: "${SLUICE_SOURCE:?run through ctest, or set SLUICE_SOURCE to the source folder}"
export SLUICE_BUILD SLUICE_SOURCE
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
test_name=$(basename "$0" .sh)
work=$(mktemp -d /tmp/sluice-e2e-XXXXXX)
chmod 755 "$work"
started=()

say() { echo "$test_name: $*"; }
fail() { echo "$test_name: FAILED: $*" >&2; exit 1; }
skip() { say "skipped: $*"; exit 77; }

at_end() {
  local status=$?
  set +e
  local pid
  # Runners with their programs: a runner that is killed leaves its program behind.
  for pid in "${started[@]}"; do kill -KILL $(descendants "$pid") "$pid" 2>/dev/null; done
  for pid in $(agent_pids); do kill -KILL "$pid" 2>/dev/null; done
  # Grants' usage files lie on small file systems of their own.
  local mounted
  for mounted in $(awk -v under="$work/" 'index($2, under) == 1 {print $2}' /proc/mounts | sort -r); do umount -l "$mounted"; done
  if [ $status != 0 ] && [ $status != 77 ]; then
    local text
    for text in "$work"/out "$work"/err "$work"/*/run/agent.log; do
      [ -s "$text" ] && { echo "--- $text (last lines)"; tail -n 20 "$text"; }
    done
  fi
  rm -rf "$work"
}
trap at_end EXIT

# Agents that serve a folder of this test. An agent is named by its --run-dir.
agent_pids() {
  local file
  for file in /proc/[0-9]*/cmdline; do
    if tr '\0' ' ' 2>/dev/null <"$file" | grep -q -E "sluice-agent .*$work/"; then basename "$(dirname "$file")"; fi
  done 2>/dev/null || true
}
agent_pid() { agent_pids | head -n 1; }

# use_node FOLDER [CARD-PROFILE]: makes the folder a machine with one card, and everything below speak of it.
use_node() {
  local folder=$1 profile=${2:-V100-SXM2-32GB}
  if [ ! -d "$folder" ]; then
    mkdir -p "$folder/run" && chmod 755 "$folder" && chmod 700 "$folder/run"
    "$SLUICE_BUILD/bin/sluice-sim" create "$folder/cards" --card "$profile" --seed "$(od -An -N4 -tu4 /dev/urandom | tr -d " ")" >"$work/create.log" 2>&1 || {
      cat "$work/create.log" >&2; fail "sluice-sim create"; }
  fi
  export SLUICE_SIM_DIR=$folder/cards SLUICE_RUN_DIR=$folder/run LD_LIBRARY_PATH=$SLUICE_BUILD/sim
}

for program in sluice sluice-agent sluice-sim nvidia-smi; do
  [ -x "$SLUICE_BUILD/bin/$program" ] || fail "$SLUICE_BUILD/bin/$program is missing; build everything first"
done
export PATH=$SLUICE_BUILD/bin:$SLUICE_BUILD/bin/workloads:$PATH
mkdir "$work/tools" && ln -s "$here/cuda.py" "$work/tools/cuda"  # `cuda ...`: a program of a few driver calls
export PATH=$work/tools:$PATH
unset SLUICE_AGENT SLUICE_GUEST_DIR XDG_RUNTIME_DIR CUDA_VISIBLE_DEVICES
use_node "$work/node"

# expect STATUS COMMAND...: runs it with its output in $work/out and $work/err, and wants this exit status.
expect() {
  local wanted=$1 status=0
  shift
  timeout 60 "$@" >"$work/out" 2>"$work/err" || status=$?
  [ "$status" = "$wanted" ] || fail "'$*' gave $status, expected $wanted; it said: $(tail -n 3 "$work/err" "$work/out")"
}

# one_sentence TEXT...: standard error is one line that holds every TEXT.
one_sentence() {
  [ "$(wc -l <"$work/err")" = 1 ] || fail "expected one line on standard error, found: $(cat "$work/err")"
  local text
  for text in "$@"; do grep -q -F -- "$text" "$work/err" || fail "'$text' is not in: $(cat "$work/err")"; done
}

# background NAME COMMAND...: starts it with output in $work/NAME.out and .err; its pid is in $pid.
background() {
  local name=$1
  shift
  "$@" >"$work/$name.out" 2>"$work/$name.err" &
  pid=$!
  started+=("$pid")
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# within MILLISECONDS COMMAND...: true as soon as the command is; false when it never was in that time.
within() {
  local end=$(($(now_ms) + $1))
  shift
  while ! "$@"; do
    [ "$(now_ms)" -lt $end ] || return 1
    sleep 0.01
  done
}

# until_is MILLISECONDS WANTED COMMAND...: repeats the command until it prints this, fails with what it printed last.
until_is() {
  local end=$(($(now_ms) + $1)) wanted=$2 last=""
  shift 2
  while last=$("$@" 2>&1 || true); [ "$last" != "$wanted" ]; do
    [ "$(now_ms)" -lt $end ] || fail "'$*' gives '$last', expected '$wanted'"
    sleep 0.02
  done
}

# running NAME: waits until the program started as NAME by `background` and `cuda hold` holds its memory.
running() { within 15000 holds holding "$work/$1.out" || fail "$1 did not start: $(cat "$work/$1.out" "$work/$1.err")"; }

# Units of card 0 that nobody has.
free_units() { sluice cards --json | python3 -c "import json,sys; print(json.load(sys.stdin)[0]['free_units'])"; }

holds() { grep -q -F -- "$1" "$2" 2>/dev/null; }

# grants EXPRESSION: a Python expression over `list`, the parsed `sluice ps --json`.
grants() {
  sluice ps --json 2>/dev/null | python3 -c "import json, sys
list = json.load(sys.stdin)
print($1)"
}

# measured: what follows is timed. It goes ahead of builds and other work on the machine where that is allowed (root), so
# that shares of the card are measured and not shares of the processor. Not by real-time priority: programs would then
# come before the agent's keeper, which no real program does.
measured() { { echo -15 >/proc/self/autogroup || renice -n -10 $$; } >/dev/null 2>&1 || true; }

# Card time in milliseconds, the card's log speaks of it.
card_now() { sluice-sim show "$SLUICE_SIM_DIR/card0" --json | python3 -c "import json,sys; print(json.load(sys.stdin)['now_ns'] // 1000000)"; }

# over SECONDS: lets what runs run on for so long. $from and $to are the card's times, $others what everybody else on the
# machine used of its processors meanwhile, in percent of one. Where something is done meanwhile: between its two halves.
over() { window_begins; sleep "$1"; window_ends; }
window_begins() {
  load_before=$("$here/machine_load.py" show $$ "$work")
  from=$(card_now)
}
window_ends() {
  to=$(card_now)
  others=$("$here/machine_load.py" since $$ "$work" $load_before)
}

# share_is PID|card PERCENT [FROM TO] [--five P] [--whole P]: by the card's log, for the time that `over` has run. A wrong
# share is a failure; under `undisturbed` it is measured again first.
share_is() {
  local who=$1 percent=$2
  shift 2
  case "${1:-}" in [0-9]*) ;; *) set -- "$from" "$to" "$@" ;; esac
  "$here/shares.py" "$SLUICE_SIM_DIR/card0" "$who" "$percent" "$@" && return
  not_so "the share is not what was granted"
}

# A measurement has gone wrong.
not_so() {
  [ -n "${may_be_disturbed:-}" ] || fail "$1"
  wrong="$1, while others used $others % of a processor"
  [ "${others:-0}" -ge 50 ] || undisturbed_and_wrong=$wrong
}

# undisturbed FUNCTION: waits (a minute in all of the script) until the machine has a processor to spare, and runs the function,
# which measures; when it was wrong a second and a third time (one that starts programs ends them first: stop_all). 70 and 30
# of a card leave nothing for the turns between them, and lie within a tenth of a point of their bar on two processors; so a
# share is wrong when it is wrong three times. When others used half a processor and more each time, that is no verdict: it
# says so and counts as skipped.
patience_s=60
undisturbed() {
  local may_be_disturbed=1 undisturbed_and_wrong="" attempt
  for attempt in 1 2 3; do
    local began=$SECONDS
    "$here/machine_load.py" wait $$ "$work" "$patience_s"
    patience_s=$((patience_s - (SECONDS - began) > 5 ? patience_s - (SECONDS - began) : 5))
    wrong=""
    "$@"
    [ -n "$wrong" ] || return 0
    say "$wrong: measured once more"
  done
  [ -z "$undisturbed_and_wrong" ] || fail "$undisturbed_and_wrong, and not once right in three times"
  skip "NO VERDICT: $wrong, three times; run it alone"
}

# Ends the programs started so far, and waits until their grants are gone.
stop_all() {
  local started_pid
  for started_pid in "${started[@]}"; do kill -KILL $(descendants "$started_pid") "$started_pid" 2>/dev/null || true; done
  [ ${#started[@]} = 0 ] || wait "${started[@]}" 2>/dev/null || true
  started=()
  [ -z "$(agent_pid)" ] || until_is 10000 0 grants "len(list['grants'])"
}

# The command of a runner started by `background`.
program_of() { pgrep -P "$1" | head -n 1; }

descendants() { local child; for child in $(pgrep -P "$1"); do descendants "$child"; echo "$child"; done; }
