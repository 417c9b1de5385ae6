#!/usr/bin/env bash
# Runs a command where a container's grant lies at its fixed path and the null driver is the real driver behind it:
#   in_container.sh BUILD CORE_PERMILLE|free COMMAND...
# DRIVER=null_driver_timed takes the driver whose streams take time.
# A private mount namespace with a tmpfs over /run/sluice; nothing of it outlives the command. Needs root, or a kernel
# that lets users make namespaces.
set -euo pipefail
build=$(realpath "$1") permille=$2 driver=${DRIVER:-null_driver}
shift 2
[ "$permille" = free ] && share=--free || share="--core-permille $permille"
options=(--mount)
[ "$(id -u)" = 0 ] || options=(--user --map-root-user --mount)
[ -d /run/sluice ] || [ "$(id -u)" = 0 ] || { echo "in_container: /run/sluice does not exist and making it needs root" >&2; exit 1; }
mkdir -p /run/sluice
exec unshare "${options[@]}" bash -c '
  set -euo pipefail
  build=$1 share=$2 driver=$3
  shift 3
  mount -t tmpfs tmpfs /run/sluice
  mkdir -p /run/sluice/container/driver
  "$build/bin/grant_pages" /run/sluice/container $share
  touch /run/sluice/container/driver/real-cuda
  mount --bind "$build/$driver/libcuda.so.1" /run/sluice/container/driver/real-cuda
  exec "$@"' in_container "$build" "$share" "$driver" "$@"
