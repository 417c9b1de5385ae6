#!/usr/bin/env bash
# tests/gpu/run over a simulated card, as far as that goes: the checks that need no PyTorch, short and with wide bars for
# times. Then that the checks can fail: a guest that limits nothing must be found out, and a machine without a card must be
# told so. On a machine with a real card and no simulated one the script runs there.
set -euo pipefail
: "${SLUICE_BUILD:?run through ctest, or set SLUICE_BUILD to a build folder}"
: "${SLUICE_SOURCE:?run through ctest, or set SLUICE_SOURCE to the source folder}"
run=$SLUICE_SOURCE/tests/gpu/run
fail() { echo "gpu_dry_run: FAILED: $*" >&2; exit 1; }

if [ ! -x "$SLUICE_BUILD/bin/sluice-sim" ]; then
  exec "$run" --build "$SLUICE_BUILD" --coarse --seconds 4  # 77 where there is no card either
fi
work=$(mktemp -d /tmp/sluice-gpu-dry-XXXXXX)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
unset SLUICE_AGENT SLUICE_GUEST_DIR SLUICE_RUN_DIR CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH SLUICE_SIM_DIR

no_card=0
env LD_LIBRARY_PATH=/nowhere "$run" --build "$SLUICE_BUILD" --out "$work/none" >"$work/none.txt" 2>&1 || no_card=$?
if [ ! -e /dev/nvidiactl ]; then
  [ $no_card = 77 ] || fail "without a card it ended with $no_card: $(cat "$work/none.txt")"
  grep -q "no NVIDIA card here" "$work/none.txt" || fail "without a card it said: $(cat "$work/none.txt")"
fi

"$SLUICE_BUILD/bin/sluice-sim" create "$work/cards" --card H200 --seed 7 >/dev/null
export SLUICE_SIM_DIR=$work/cards LD_LIBRARY_PATH=$SLUICE_BUILD/sim PATH=$SLUICE_BUILD/bin:$PATH
printf '# Page\n<!-- results: begin -->\nold\n<!-- results: end -->\nend\n' >"$work/page.md"
status=0
"$run" --build "$SLUICE_BUILD" --sim-tools "$SLUICE_BUILD/bin" --out "$work/out" --page "$work/page.md" --coarse --seconds 3 \
  --percents 10,50 --rounds 1 || status=$?
[ $status = 0 ] || fail "the checks ended with $status"
python3 - "$work/out/results.json" <<'TEXT' || fail "the results are not what they should be"
import json, sys
got = json.load(open(sys.argv[1]))
rows = got["rows"]
met = {row["check"] for row in rows if row["verdict"] == "met"}
assert {"symbols", "costs", "memory", "gate", "stack"} <= met, met
assert sum(row["verdict"] == "met" for row in rows) >= 18, rows
skipped = [row for row in rows if row["verdict"] == "skipped"]
assert skipped and all("PyTorch" in row["note"] for row in skipped), skipped
assert "simulated" in got["about"]["Card"], got["about"]
TEXT
grep -q "^| memory |" "$work/page.md" && grep -q "^end" "$work/page.md" && ! grep -q "^old" "$work/page.md" ||
  fail "the table was not put into the page: $(cat "$work/page.md")"

# A guest that is only the driver again: the memory and symbol checks must say so.
mkdir "$work/open" && ln -s "$SLUICE_BUILD/bin" "$work/open/bin" && ln -s "$SLUICE_BUILD/sim" "$work/open/guest"
status=0
"$run" --build "$work/open" --sim-tools "$SLUICE_BUILD/bin" --out "$work/bad" --coarse --only symbols,memory,gate --seconds 2 \
  --percents 30 >"$work/bad.txt" || status=$?
[ $status = 1 ] || fail "a guest that limits nothing passed: $(cat "$work/bad.txt")"
for what in "gives its hooks" "total seen in the container" "until refused" "ways of allocating" "1 ms kernels at 30" "5 us kernels at 30"; do
  grep -q -E "^ +(missed|failed) .*$what" "$work/bad.txt" || fail "'$what' did not notice a guest that limits nothing: $(cat "$work/bad.txt")"
done
echo "gpu_dry_run: done"
