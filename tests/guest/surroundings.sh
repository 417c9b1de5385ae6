#!/usr/bin/env bash
# The guest in every surrounding a program may bring: in each the program works, sees 10487 MiB, is refused 11 GiB, takes
# all it can get without ever being over its limit by the card's own log, and the library prints nothing.
set -euo pipefail

build="$SLUICE_BUILD"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "surroundings: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || { echo "surroundings: needs root and mount namespaces" >&2; exit 77; }
chmod 755 "$work"

limit=10487
routes="$work/bin/routes"  # a copy where any user may read and run it, with the libraries beside it
mkdir "$work/bin" "$work/driver" "$work/library" "$work/empty"
cp "$build/tests/guest_routes" "$routes"
cp "$build/tests/guest_seccomp_filter" "$work/bin/seccomp_filter"
cp "$build/sim/libcuda.so.1" "$build/sim/libnvidia-ml.so.1" "$work/driver/"
cp "$build/guest/"*.so* "$work/library/"
export LD_LIBRARY_PATH="$work/driver"

# surrounding NAME DELIVERY WANTED COMMAND...: one grant on a card of its own, and the command under it.
surrounding() {
  local name=$1 delivery=$2 wanted=$3 most
  shift 3
  export SLUICE_SIM_DIR="$work/cards-$name-$delivery"
  "$build/bin/sluice-sim" create "$SLUICE_SIM_DIR" --card V100-SXM2-32GB teardown_delay_ns=0 >/dev/null
  chmod -R a+rwX "$SLUICE_SIM_DIR"
  timeout 60 "$build/tests/guest_with_grant" --driver "$work/driver" --guest "$work/library" --state "$work/state-$name-$delivery" \
    --delivery "$delivery" --limit-mib $limit -- "$@" >"$work/said" 2>&1 </dev/null || fail "$name, $delivery: status $?: $(cat "$work/said")"
  for _ in $(seq 100); do [ "$(wc -l <"$work/said")" -ge "$(wc -l <<<"$wanted")" ] && break; sleep 0.02; done  # daemons
  [ "$(cat "$work/said")" = "$wanted" ] || fail "$name, $delivery: expected '$wanted', got '$(cat "$work/said")'"
  most=$("$build/bin/sluice-sim" log "$SLUICE_SIM_DIR/card0" --json | python3 -c '
import json, sys
print(max(p["most_resident_bytes"] for w in json.load(sys.stdin)["windows"] for p in w["processes"] if p["pid"] == 0) >> 20)')
  [ "$most" -le $limit ] || fail "$name, $delivery: the card held $most MiB for a container of $limit"
  [ "$most" -gt "${least:-$((limit - 1024))}" ] || fail "$name, $delivery: the card held $most MiB at most: the limit was not reached"
  rm -rf "$SLUICE_SIM_DIR"
  echo "$name, $delivery: at most $most MiB"
}

for delivery in bind preload; do
  surrounding fork $delivery "fork $limit 2" "$routes" fork "$work/driver"
  surrounding exec $delivery "soname $limit 2" "$routes" exec "$work/driver"
  surrounding vfork $delivery "soname $limit 2" "$routes" vfork "$work/driver"
  surrounding daemon $delivery "daemon $limit 2" "$routes" daemon "$work/driver"
  surrounding close-all $delivery "close-all $limit 2" "$routes" close-all "$work/driver"
  surrounding fork-in-use $delivery "soname $limit 2" "$routes" fork-in-use "$work/driver"
  surrounding two-copies $delivery "two-copies $limit 2
two-copies $limit 2" "$routes" two-copies "$work/driver"
  surrounding user $delivery "soname $limit 2" setpriv --reuid=12345 --regid=12345 --clear-groups "$routes" soname "$work/driver"
  if unshare -U true 2>/dev/null; then
    surrounding user-namespace $delivery "soname $limit 2" unshare -Ur "$routes" soname "$work/driver"
  else
    echo "left out: user-namespace, $delivery (this machine allows none)"
  fi

  # The calls that container runtimes deny by default.
  surrounding seccomp $delivery "soname $limit 2" "$work/bin/seccomp_filter" "$routes" soname "$work/driver"

  # Set-user-id programs ignore LD_LIBRARY_PATH and name the driver's file.
  cp "$routes" "$routes-setuid" && chmod 4755 "$routes-setuid"
  surrounding setuid-root $delivery "absolute $limit 2" setpriv --reuid=12345 --regid=12345 --clear-groups "$routes-setuid" absolute "$work/driver"
  chown 12345 "$routes-setuid" && chmod 4755 "$routes-setuid"
  surrounding setuid-user $delivery "absolute $limit 2" "$routes-setuid" absolute "$work/driver"

  # Neighbours in the search order: one that defines a call of the driver and forwards it to the next definition, and one
  # that does not touch it.
  surrounding neighbour $delivery "soname $limit 2" env LD_PRELOAD="$build/bin/workloads/libbinder_neighbour.so" "$routes" soname "$work/driver"

  # A root of its own that cannot be written to, as container images are.
  cat >"$work/enter" <<'TEXT'
set -e
root=$1 build=$2 cards=$3 work=$4
shift 4
mount -t tmpfs -o size=4m none "$root"
for folder in usr lib lib64 bin etc proc dev run/sluice; do
  [ -e "/$folder" ] || continue
  mkdir -p "$root/$folder" && mount --rbind "/$folder" "$root/$folder"
done
mkdir -p "$root$work" && mount --rbind "$work" "$root$work" && mount -o remount,bind,ro "$root$work"
mkdir -p "$root$cards" 2>/dev/null || true
mount --bind "$cards" "$root$cards"
[ -f /etc/ld.so.preload ] && mount --bind /etc/ld.so.preload "$root/etc/ld.so.preload"
mount -o remount,ro "$root"
chroot "$root" sh -c 'touch /written 2>/dev/null && echo "the root can be written to"; cd / && exec "$@"' sh "$@"
TEXT
  mkdir -p "$work/cards-chroot-$delivery"
  surrounding chroot $delivery "soname $limit 2" sh "$work/enter" "$work/empty" "$build" "$work/cards-chroot-$delivery" "$work" "$routes" soname "$work/driver"
done

# A static program: no preload list reaches it, a replaced driver file does.
for ask in "11 2 0" "9 0 9000"; do
  read -r gib code least <<<"$ask"
  surrounding "static-$gib" bind "$limit $code" sh -c "'$build/bin/workloads/binder_static' static $((gib << 30)) |
    sed 's/.*\"total_mib\":\([0-9]*\).*\"allocate_code\":\(-*[0-9]*\).*/\1 \2/'"
done
echo "surroundings: ok"
