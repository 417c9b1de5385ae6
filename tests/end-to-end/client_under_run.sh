#!/usr/bin/env bash
# A real program or package of the field under sluice run: it works, what it sees as the card's memory is its grant, and
# memory and busy time agree with the card's own log. Argument: the client's name, see tests/clients/run_clients.py.
source "$(dirname "$0")/common.sh"
measured
[ "$1" != numba ] || [ "${SLUICE_NUMBA:-}" = 1 ] || skip "numba-cuda is checked by request: SLUICE_NUMBA=1"

use_node "$work/a100" A100-40GB  # some packages refuse cards older than compute capability 7.5
limit_mib=$(sluice cards --json | python3 -c "import json,sys; c = json.load(sys.stdin)[0]; print(c['memory_mib'] * 10 // c['units'])")
clients=(python3 "$SLUICE_SOURCE/tests/clients/run_clients.py" "$1" --cards "$SLUICE_SIM_DIR" --total-bytes $((limit_mib << 20)))
case $1 in
  # A viewer shows the processes of its own grant: it and the process that it looks at belong into one.
  nvml | nvitop | gpustat) sluice run -q --gpu-mem 10 -- "${clients[@]}" ;;
  *) "${clients[@]}" --prefix "$SLUICE_BUILD/bin/sluice run -q --gpu-mem 10 --" ;;
esac || fail "client $1"
