#!/usr/bin/env bash
# Every program: wrong usage is exit code 2 with a sentence on standard error, and output that does not arrive (a full disk
# behind a redirection) is an error that is said, never a quiet success.
source "$(dirname "$0")/common.sh"

# wrong TEXT PROGRAM OPTION...: exit code 2, TEXT on standard error, nothing on standard output.
wrong() {
  local text=$1
  shift
  expect 2 "$@"
  holds "$text" "$work/err" || fail "'$text' is not what '$*' says: $(cat "$work/err")"
  [ ! -s "$work/out" ] || fail "'$*' prints to standard output: $(head -n 3 "$work/out")"
}
touch "$work/key"
scheduler=(sluice-scheduler --signing-key "$work/key")
agent=(sluice-agent --kubernetes --kubelet-dir "$work" --node-name a)
wrong "unknown option '--nosuch'" sluice --nosuch
wrong "--nosuch" sluice ps --nosuch
wrong "--nosuch" kubectl-inspect-cgpu --nosuch
wrong "nosuch" sluice-sim nosuch
wrong "--nosuch" sluice-replay --nosuch
wrong "scenario" sluice-accuracy
wrong "--nosuch" nvidia-smi --nosuch
wrong "--nosuch" sluice-agent --nosuch
wrong "--metrics 'x': expected IP:PORT" sluice-agent --metrics x
wrong "--nosuch" "${agent[@]}" --nosuch
wrong "--node-name 'A_B': expected" sluice-agent --kubernetes --kubelet-dir "$work" --node-name A_B
wrong "--kubelet-dir '$work/none': there is no such directory" sluice-agent --kubernetes --node-name a --kubelet-dir "$work/none"
wrong "--force goes with --clean-up" "${agent[@]}" --force
(cd "$work" && mkdir -p relative && wrong "--run-dir 'relative': expected an absolute path" "${agent[@]}" --run-dir relative)
if grep -q "$work/relative" /proc/mounts; then fail "a refused run directory was mounted over"; fi
wrong "--signing-key" sluice-scheduler
wrong "--max-names" "${scheduler[@]}" --max-names -1
wrong "--listen-port" "${scheduler[@]}" --listen-port 65537
wrong "--memory-unit-mib" "${scheduler[@]}" --memory-unit-mib 0
wrong "--policy" "${scheduler[@]}" --policy best
wrong "--lease-namespace 'a/b': expected" "${scheduler[@]}" --lease-namespace a/b
wrong "--webhook-toleration 'a b': expected" "${scheduler[@]}" --webhook-toleration "a b"
wrong "--webhook-scheduler-name 'A': expected" "${scheduler[@]}" --webhook-scheduler-name A
wrong "--advertise-url is 'me', expected https://HOST:PORT" "${scheduler[@]}" --advertise-url me
wrong "--leader-elect needs --advertise-url" "${scheduler[@]}" --leader-elect
wrong "--tls-cert and --tls-key belong together" "${scheduler[@]}" --tls-cert "$work/key"

# lost STATUS PROGRAM...: its output goes to a full disk.
lost() {
  local wanted=$1 status=0
  shift
  timeout 60 "$@" >/dev/full 2>"$work/err" || status=$?
  [ "$status" = "$wanted" ] || fail "'$*' to a full disk gave $status, expected $wanted"
  one_sentence "cannot write standard output"
}
sluice run --gpu-mem 2 -q -- true
for verb in --help --version ps "ps --json" cards "cards --json" doctor "doctor --json" "top -n 1" "top -n 1 --json" "run --help"; do
  # shellcheck disable=SC2086
  lost 125 sluice $verb
done
lost 125 kubectl-inspect-cgpu --help
for program in sluice-sim sluice-replay sluice-accuracy sluice-agent sluice-scheduler; do lost 1 "$program" --help; done
lost 1 sluice-agent --kubernetes --help
lost 1 sluice-sim show "$SLUICE_SIM_DIR/card0"
lost 255 nvidia-smi
# The command's output is the command's.
expect 0 sluice run --gpu-mem 2 -q -- sh -c 'exec >/dev/full; echo x || exit 0'
