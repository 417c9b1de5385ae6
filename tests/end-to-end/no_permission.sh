#!/usr/bin/env bash
# Another user's agent, and a kernel that allows no namespaces, are refused in one sentence (exit 124); the command does
# not run without its limits.
source "$(dirname "$0")/common.sh"
[ "$(id -u)" = 0 ] || skip "needs root to be two users"

chmod -R a+rwX "$work/node/cards"
sluice run --gpu-mem 10 -- true
expect 124 setpriv --reuid 65534 --regid 65534 --clear-groups "$SLUICE_BUILD/bin/sluice" ps
one_sentence "sluice ps: " "permission"
# Inside a user namespace that may make no further one and mount nothing.
expect 124 unshare --user --map-root-user sh -c \
  'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --inh-caps=-all --bounding-set=-all "$@"' - \
  sluice run --gpu-mem 10 -- touch "$work/ran"
one_sentence "sluice run: " "private mount namespace" "sysctl user.max_user_namespaces"
[ ! -e "$work/ran" ] || fail "the command ran without its limits"
