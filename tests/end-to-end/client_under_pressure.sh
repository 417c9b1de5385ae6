#!/usr/bin/env bash
# Real packages that take all the memory they can get under a grant of 1 GiB: each meets its own out-of-memory error, frees,
# and computes right afterwards, never over the grant by the card's log; a neighbour who works beside them is undisturbed.
source "$(dirname "$0")/common.sh"
clients=("$@")

use_node "$work/a100" A100-40GB  # some packages refuse cards older than compute capability 7.5
limit_mib=$(sluice cards --json | python3 -c "import json,sys; c = json.load(sys.stdin)[0]; print(c['memory_mib'] // c['units'])")
background neighbour sluice run --gpu-mem 10 --gpu-core 30 --name neighbour -- long_kernels --kernel-ms 1 --depth 4 --mem-mib 8000 --seconds 120
neighbour=$pid
until_is 10000 1 grants "len([g for g in list['grants'] if g['name'] == 'neighbour' and g['processes']])"
program=$(program_of "$neighbour")
held() { sluice-sim show "$SLUICE_SIM_DIR/card0" --json | python3 -c "
import json, sys
print(sum(p['resident_bytes'] for p in json.load(sys.stdin)['processes'] if p['pid'] == $program))"; }
within 5000 eval '[ "$(held)" -gt $((8000 << 20)) ]' || fail "the neighbour does not hold its memory: $(held)"
before=$(held)
used() { sluice-sim show "$SLUICE_SIM_DIR/card0" --json | python3 -c "
import json, sys
print(sum(p['resident_bytes'] for p in json.load(sys.stdin)['processes']))"; }
for client in "${clients[@]}"; do
  # What the client before had is on the card until the driver has torn it down, which the card's row of the log shows.
  within 10000 eval '[ "$(used)" = "$before" ]' || fail "the card holds $(used) bytes, the neighbour $before"
  python3 "$SLUICE_SOURCE/tests/clients/run_clients.py" "$client" --pressure --cards "$SLUICE_SIM_DIR" --total-bytes $((limit_mib << 20)) \
    --beside-bytes "$before" \
    --prefix "$SLUICE_BUILD/bin/sluice run -q --gpu-mem 1 --gpu-core 30 --" || fail "client $client"
  kill -0 "$program" 2>/dev/null || fail "$client: the neighbour's program is gone: $(cat "$work/neighbour.err")"
  [ "$(held)" = "$before" ] || fail "$client: the neighbour held $before bytes and holds $(held)"
done
from=$(card_now)
sleep 0.5
busy=$(sluice-sim log "$SLUICE_SIM_DIR/card0" --json --pid "$program" --window 500 --from "$from" --to $((from + 500)) | python3 -c "
import json, sys
print(sum(p['executing_percent'] > 0 for w in json.load(sys.stdin)['windows'] for p in w['processes'] if p['pid'] == $program))")
[ "$busy" -ge 1 ] || fail "the neighbour no longer works"
