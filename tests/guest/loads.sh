#!/usr/bin/env bash
# The guest libraries must load into images of any age: only allowed imports, without versions, no constructors, every name
# of the tables exported. Then they are loaded for real, without a grant, where nothing may be printed and cuInit must say
# SYSTEM_NOT_READY, and with a grant of 10487 MiB, in front of a driver that refuses nothing, where 11 GiB and what is over
# the limit in sum must be refused: by the host's C library, by musl, and with --roots by Debian's glibc 2.31, 2.36 and 2.41.
set -euo pipefail

guest="$SLUICE_BUILD/guest"
source="$SLUICE_SOURCE"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "loads: $*" >&2; exit 1; }

allowed="dlopen dlsym dladdr getauxval memcpy memmove memset memcmp strlen pthread_create pthread_detach"
for library in libcuda.so.1 libnvidia-ml.so.1 libsluice-preload.so; do
  file="$guest/$library"
  [ -f "$file" ] || fail "$file has not been built"
  for import in $(nm -D --undefined-only "$file" | awk '{print $NF}'); do
    case "$import" in *@*) fail "$library imports $import with a version" ;; esac
    grep -qw -- "$import" <<<"$allowed" || fail "$library imports $import, which is not on the list of allowed imports"
  done
  readelf -d "$file" | grep -qE '\((INIT|FINI|INIT_ARRAY|FINI_ARRAY|PREINIT_ARRAY)\)' && fail "$library has constructors or destructors"
  readelf -d "$file" | grep -q "SONAME.*\[$library\]" || fail "$library does not carry its SONAME"
  readelf -d "$file" | grep -q NODELETE || fail "$library could be unloaded under a running thread"
  needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
  [ "$needed" = "libc.so.6 libdl.so.2 libpthread.so.0 " ] || fail "$library needs: $needed"
  readelf -lW "$file" | grep -q 'GNU_STACK.*RWE' && fail "$library asks for an executable stack"
  [ "$(objdump -T "$file" | grep -c 'GLIBC_' || true)" = 0 ] || fail "$library refers to glibc versions"
done
tls=$(( $(readelf -lW "$guest/libcuda.so.1" | awk '$1 == "TLS" {print $6}') + 0 ))
[ "$tls" -le 64 ] || fail "libcuda.so.1 takes $tls bytes of static thread storage, more than 64"

exports() { nm -D --defined-only "$guest/$1" | awk '{print $NF}' | sort; }
table() { grep -v '^#' "$source/src/abi/$1" | cut -f1 | sort; }
diff <(exports libcuda.so.1) <(table cuda_names.tsv) >"$work/difference" || fail "exports of libcuda.so.1 differ from the table: $(head -5 "$work/difference")"
diff <(exports libnvidia-ml.so.1) <(table nvml_names.tsv) >"$work/difference" || fail "exports of libnvidia-ml.so.1 differ from the table: $(head -5 "$work/difference")"

# The probe is linked like the guest itself.
for soname in libdl.so.2 libpthread.so.0 libc.so.6; do
  echo | gcc -shared -nostdlib -x c - -Wl,-soname,$soname -o "$work/stub-$soname"
done
gcc -shared -fPIC -O1 -nostdlib -fno-stack-protector -Wl,--no-as-needed "$source/tests/guest/probe.c" "$work"/stub-* -o "$work/probe.so"

gcc -shared -fPIC -O1 -nostdlib -fno-stack-protector -Wl,--no-as-needed "$source/tests/guest/limit_probe.c" "$work"/stub-* -o "$work/limit_probe.so"
mkdir "$work/driver" "$work/guest"
for library in "cuda $source/bench/null_driver/exports.cc" "nvidia-ml -DSMALL_NVML"; do
  read -r name more <<<"$library"
  g++ -shared -fPIC -O1 -std=c++20 -nostdlib -fno-stack-protector -fno-exceptions -fno-rtti -fno-threadsafe-statics -I "$source/src" \
    -I "$SLUICE_BUILD/generated" "$source/tests/guest/small_driver.cc" $more -Wl,-soname,lib$name.so.1 -o "$work/driver/lib$name.so.1"
done
cp "$guest"/lib*.so* "$work/guest/"

expect="cuInit=802 cuCtxSetCurrent=3 nvmlInit_v2=9 nvmlDeviceGetFanSpeed=1 "
check() {  # check NAME COMMAND...: the probe's line and nothing else
  local name=$1 output
  shift
  output=$("$@" 2>&1) || fail "$name: exit status $?: $output"
  [ "$output" = "$expect" ] || fail "$name: expected '$expect', got '$output'"
  echo "loads: $name: ok"
}
limit=10487
# limited NAME ROOT PROGRAM: the second probe's line and nothing else, through the files laid over the driver's.
limited() {
  local name=$1 root=$2 program=$3 output most
  "$SLUICE_BUILD/tests/guest_with_grant" --driver "$root/driver" --guest "$root/guest" --state "$work/state-${name//[^a-z0-9]/-}" \
    ${root_option[@]+"${root_option[@]}"} --limit-mib $limit -- "$program" >"$work/said" 2>&1 || fail "$name, with a grant: $(cat "$work/said")"
  output=$(cat "$work/said")
  most=${output##* }
  [ "$output" = "limit $limit $limit 2 0 2 0 0 $most" ] || fail "$name, with a grant: '$output'"
  [ "$most" = 9216 ] || fail "$name: the driver gave $most MiB at a time, expected 9216"
  echo "loads: $name: the limit holds"
}
may_mount() { [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null && [ -x "$SLUICE_BUILD/tests/guest_with_grant" ]; }
may_mount || echo "loads: no root or no mount namespaces: limits not tried" >&2
probe_environment=(LD_PRELOAD="$work/probe.so" SLUICE_PROBE_CUDA="$guest/libcuda.so.1" SLUICE_PROBE_NVML="$guest/libnvidia-ml.so.1")
[ -e /run/sluice/container/grant/page ] && { echo "loads: this process has a grant; not running the load part" >&2; exit 77; }
check "glibc of this machine" env "${probe_environment[@]}" /bin/true
root_option=()
program() {  # SCRIPT PROGRAM PROBES DRIVER: the program with the second probe, as a script
  printf '%s\n' "#!/bin/bash" "exec /usr/bin/env LD_PRELOAD=$3/limit_probe.so LD_LIBRARY_PATH=$4 $2" >"$1"
  chmod 755 "$1"
}
program "$work/glibc-run" /bin/true "$work" "$work/driver"
! may_mount || limited "glibc of this machine" "$work" "$work/glibc-run"
if command -v musl-gcc >/dev/null; then
  echo 'int main(void) { return 0; }' | musl-gcc -x c - -o "$work/musl-true"
  check "musl" env "${probe_environment[@]}" "$work/musl-true"
  program "$work/musl-run" "$work/musl-true" "$work" "$work/driver"
  ! may_mount || limited "musl" "$work" "$work/musl-run"
else
  echo "loads: no musl-gcc here (package musl-tools): musl not tried" >&2
fi

if [ "${1:-}" = --roots ]; then
  command -v mmdebstrap >/dev/null || { echo "loads: --roots needs mmdebstrap" >&2; exit 77; }
  for suite in bullseye bookworm trixie; do
    root="$work/$suite"
    mmdebstrap --quiet --variant=extract --include=libc6,bash,coreutils $suite "$root" >/dev/null ||
      { echo "loads: no Debian mirror for $suite: not tried" >&2; exit 77; }
    mkdir -p "$root/probe"
    cp "$guest"/lib*.so* "$work/probe.so" "$root/probe/"
    version=$(grep -ao 'GNU C Library .*version [0-9]*[.][0-9]*' "$root"/usr/lib/x86_64-linux-gnu/libc.so.6 \
      "$root"/lib/x86_64-linux-gnu/libc.so.6 2>/dev/null | grep -o '[0-9]*[.][0-9]*$' | sort -u | tail -1 || true)
    check "Debian $suite, glibc ${version:-?}" chroot "$root" /usr/bin/env LD_PRELOAD=/probe/probe.so SLUICE_PROBE_CUDA=/probe/libcuda.so.1 SLUICE_PROBE_NVML=/probe/libnvidia-ml.so.1 /bin/true
    mkdir -p "$root/driver" "$root/guest" "$root/run"
    cp "$work"/driver/* "$root/driver/"
    cp "$work"/guest/* "$root/guest/"
    cp "$work/limit_probe.so" "$root/probe/"
    program "$root/probe/run" /bin/true /probe /driver
    root_option=(--root "$root")
    ! may_mount || limited "Debian $suite, glibc ${version:-?}" "$root" /probe/run
  done
fi
