#!/usr/bin/env bash
# What tests/gpu/run builds on a machine without our packages: it must need no header of theirs. They are on this machine,
# so headers under the same names that refuse to be compiled stand in front of them. Then the limits hold with that build.
set -euo pipefail
: "${SLUICE_BUILD:?run through ctest, or set SLUICE_BUILD to a build folder}"
: "${SLUICE_SOURCE:?run through ctest, or set SLUICE_SOURCE to the source folder}"
fail() { echo "gpu_bare_build: FAILED: $*" >&2; exit 1; }
[ -x "$SLUICE_BUILD/bin/sluice-sim" ] || { echo "no simulated card in this build"; exit 77; }

work=$(mktemp -d /tmp/sluice-gpu-bare-XXXXXX)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
# In one place for every run: its path is part of what a compiler cache compares.
forbidden=$SLUICE_BUILD/tests/gpu/forbidden
for header in fmt/core.h fmt/format.h CLI/CLI.hpp boost/json.hpp boost/json/value.hpp yaml-cpp/yaml.h gtest/gtest.h curl/curl.h; do
  mkdir -p "$forbidden/$(dirname "$header")"
  echo "#error $header is not there" >"$forbidden/$header"
done
"$SLUICE_BUILD/bin/sluice-sim" create "$work/cards" --card T4 --seed 8 >/dev/null
export SLUICE_SIM_DIR=$work/cards LD_LIBRARY_PATH=$SLUICE_BUILD/sim PATH=$SLUICE_BUILD/bin:$PATH
CXXFLAGS="-I$forbidden" nice -n 5 "$SLUICE_SOURCE/tests/gpu/run" --bare --sim-tools "$SLUICE_BUILD/bin" --out "$work/out" \
  --coarse --only symbols,memory,stack >"$work/text" || fail "$(cat "$work/text")"
grep -q "skipped .*sluice run and doctor" "$work/text" || fail "it does not say that the agent was left out: $(cat "$work/text")"
grep -q "met .*total seen in the container" "$work/text" || fail "$(cat "$work/text")"
echo "gpu_bare_build: done"
