#!/usr/bin/env bash
# The example Jobs run as they are: shared.yaml sees 10487 MiB and its env, exclusive.yaml the whole card; what is left
# aside is said, --quiet says nothing.
source "$(dirname "$0")/common.sh"

mkdir "$work/bin"
cat >"$work/bin/train" <<'TEXT'
#!/bin/sh
echo "args: $*"
exec nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits
TEXT
chmod 755 "$work/bin/train"
export PATH=$work/bin:$PATH
expect 0 sluice run -f "$SLUICE_SOURCE/examples/shared.yaml"
[ "$(cat "$work/out")" = "args: --seconds 75
10487" ] || fail "$(cat "$work/out")"
one_sentence "left aside" "image"
expect 0 sluice run --quiet -f "$SLUICE_SOURCE/examples/exclusive.yaml"
holds 32510 "$work/out" || fail "$(cat "$work/out")"
[ ! -s "$work/err" ] || fail "--quiet printed $(cat "$work/err")"
cat "$SLUICE_SOURCE"/examples/shared.yaml <(echo ---) "$SLUICE_SOURCE"/examples/exclusive.yaml >"$work/both.yaml"
expect 120 sluice run -f "$work/both.yaml"
one_sentence "choose one with --job"
expect 0 sluice run -q -f "$work/both.yaml" --job benchmark-shared
holds 10487 "$work/out" || fail "$(cat "$work/out")"
expect 122 sluice run -f "$work/none.yaml"
one_sentence "$work/none.yaml"
