#!/usr/bin/env bash
# Code with global variables beyond the limit, by every call that loads code; what the card holds is asked of the card.
set -euo pipefail

build="$SLUICE_BUILD"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || { echo "code_over_limit: needs root and mount namespaces" >&2; exit 77; }

export SLUICE_SIM_DIR="$work/cards" LD_LIBRARY_PATH="$build/sim"
"$build/bin/sluice-sim" create "$work/cards" --card V100-SXM2-32GB teardown_delay_ns=0 >/dev/null
used="$build/bin/sluice-sim show $work/cards/card0 --json | sed -n 's/.*\"used_bytes\": \\([0-9]*\\),/\\1/p'"
"$build/tests/guest_with_grant" --driver "$build/sim" --guest "$build/guest" --state "$work/state" --limit-mib 10240 -- \
  "$build/tests/guest_code_over_limit" 10240 "$work" "$used"
