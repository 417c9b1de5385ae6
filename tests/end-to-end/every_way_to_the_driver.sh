#!/usr/bin/env bash
# Every way in which programs bind the driver (linked, dlopen by SONAME, bare name or full path, DEEPBIND, a link-map list
# of its own, cuGetProcAddress) meets our library: each way sees the limit as the card's memory, none the whole card.
# `dlmopen` and what it loads need the bind mount; "cleared-environment" finds the driver only where the loader's cache
# knows it, so it may find none, but never the real one.
source "$(dirname "$0")/common.sh"

cat >"$work/check.py" <<'TEXT'
import json, sys
delivery, limit = sys.argv[1], 10487
ways = json.load(open(sys.argv[2]))["ways"]
assert len(ways) > 15, ways
for way in ways:
    total = way.get("total_bytes", way.get("total_mib", 0) << 20) >> 20
    name = way["way"]
    if name == "fork-after":
        assert way["code"] == 3, way
    elif total != limit:
        none = name in ("cleared-environment", "static") and total == 0
        # Preloading reaches no linker namespace of the program's own and no static program (docs/security.md).
        aside = delivery == "preload" and ("dlmopen" in name or name == "static")
        assert none or aside, f"{delivery}: way {name} sees {way}"
print(f"{delivery}: {sum(1 for w in ways if w.get('total_bytes', w.get('total_mib', 0)))} of {len(ways)} ways see a card")
TEXT
for delivery in bind preload; do
  expect 0 sluice run --gpu-mem 10 --delivery "$delivery" -- binder_zoo --json
  python3 "$work/check.py" "$delivery" "$work/out" || fail "$delivery"
done
