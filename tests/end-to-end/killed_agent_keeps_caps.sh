#!/usr/bin/env bash
# SIGKILL for the agent: the running program keeps its memory limit and its compute cap; the next agent takes it over
# under its name and id, and its share is not given to others.
source "$(dirname "$0")/common.sh"
measured

killed() {
  stop_all
  background program sluice run --gpu-mem 10 --gpu-core 30 --name kept -- long_kernels --kernel-ms 1 --depth 8 --seconds 60
  runner=$pid
  until_is 10000 1 grants "len(list['grants'][0]['processes'])"
  id=$(grants "list['grants'][0]['id']")
  kill -KILL "$(agent_pid)"
  sleep 1
  over 5
  share_is card 30
}
undisturbed killed
expect 121 sluice run --gpu-mem 22 -- true
[ "$(grants "[(g['id'], g['name'], g['taken_over']) for g in list['grants']]")" = "[('$id', 'kept', True)]" ] ||
  fail "the new agent shows: $(grants "list['grants']")"
kill -0 "$runner" || fail "the program did not survive"
