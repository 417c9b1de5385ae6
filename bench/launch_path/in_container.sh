#!/usr/bin/env bash
# Runs a command where a container's grant lies at its fixed path and the null driver is the real driver behind it:
#   in_container.sh BUILD CORE_PERMILLE COMMAND...
# A private mount namespace with a tmpfs over /run/sluice; nothing of it outlives the command. Needs root, or a kernel
# that lets users make namespaces.
set -euo pipefail
build=$(realpath "$1") permille=$2
shift 2
options=(--mount)
[ "$(id -u)" = 0 ] || options=(--user --map-root-user --mount)
[ -d /run/sluice ] || [ "$(id -u)" = 0 ] || { echo "in_container: /run/sluice does not exist and making it needs root" >&2; exit 1; }
mkdir -p /run/sluice
exec unshare "${options[@]}" bash -c '
  set -euo pipefail
  build=$1 permille=$2
  shift 2
  mount -t tmpfs tmpfs /run/sluice
  mkdir -p /run/sluice/container/driver
  "$build/bin/grant_pages" /run/sluice/container --core-permille "$permille"
  mount --bind "$build/null_driver" /run/sluice/container/driver
  exec "$@"' in_container "$build" "$permille" "$@"
