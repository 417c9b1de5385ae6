#!/usr/bin/env bash
# The libraries in front of the driver never write into a program's output, whether they serve or refuse.
source "$(dirname "$0")/common.sh"

cat >"$work/silent.py" <<'TEXT'
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1"); nvml = ctypes.CDLL("libnvidia-ml.so.1")
cuda.cuInit(0); nvml.nvmlInit_v2()
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 40))
cuda.cuMemAlloc_v2(None, 1); cuda.cuMemFree_v2(12345)
TEXT
for delivery in bind preload; do
  expect 0 sluice run --gpu-mem 10 --delivery "$delivery" -- python3 "$work/silent.py"
  [ ! -s "$work/out" ] && [ ! -s "$work/err" ] || fail "$delivery: printed $(cat "$work/out" "$work/err")"
done
# Refusing: the same libraries with no grant at all.
expect 0 env LD_LIBRARY_PATH="$SLUICE_BUILD/guest" python3 "$work/silent.py"
[ ! -s "$work/out" ] && [ ! -s "$work/err" ] || fail "refusing printed: $(cat "$work/out" "$work/err")"
