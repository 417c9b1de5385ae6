#!/usr/bin/env python3
"""What is asked of PyTorch, one verb per process. One line of JSON at the end.

  torch_program.py parts                 matrix products, cuBLAS, cuDNN, a CUDA graph, NCCL, CUPTI, Triton: each ok or why not
  torch_program.py memory                total by mem_get_info, then blocks until it is full, then whether it goes on
  torch_program.py loop KIND SECONDS     gemm, small or graph: iterations per second
  torch_program.py train SECONDS         the training benchmark of the example: steps per second
"""

import json
import os
import sys
import time

import torch

CARD = "cuda"


def result_of(part):
    try:
        return part()
    except Exception as error:  # the text is the result: error 103 must be seen, whatever part it comes from
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def close(a, b, limit):
    worst = (a.double() - b.double()).abs().max().item()
    return "ok" if worst <= limit else f"wrong by {worst:g}"


def part_matmul():
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    return close((a.to(CARD) @ b.to(CARD)).cpu(), a @ b, 0.5)


def part_cublas_half():
    a = torch.randn(2048, 2048, device=CARD, dtype=torch.float16)
    product = torch.mm(a, a)
    return close(product.float().cpu(), (a.float() @ a.float()).cpu(), 2.0)


def part_cudnn():
    x, w = torch.randn(4, 8, 32, 32), torch.randn(16, 8, 3, 3)
    return close(torch.nn.functional.conv2d(x.to(CARD), w.to(CARD)).cpu(), torch.nn.functional.conv2d(x, w), 0.5)


def part_backward():
    layer = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(CARD)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01)
    x = torch.randn(64, 256, device=CARD)
    first = last = None
    for _ in range(20):
        loss = (layer(x) - 1).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        first, last = (loss.item() if first is None else first), loss.item()
    return "ok" if last < first else f"loss went from {first} to {last}"


def captured_graph():
    x = torch.zeros(1024, device=CARD)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            x.add_(0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            x.add_(1)
    return graph, x


def part_graph():
    graph, x = captured_graph()
    x.zero_()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    return "ok" if float(x[0]) == 1000.0 else f"counted {float(x[0])}, expected 1000"


def part_streams():
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs = []
    for stream in streams:
        with torch.cuda.stream(stream):
            outs.append(torch.ones(1 << 20, device=CARD).sum())
    torch.cuda.synchronize()
    return "ok" if all(float(out) == 1 << 20 for out in outs) else "wrong sums"


def part_nccl():
    import torch.distributed as distributed
    if not distributed.is_nccl_available():
        return "skipped: this PyTorch has no NCCL"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    distributed.init_process_group("nccl", rank=0, world_size=1)
    x = torch.ones(1024, device=CARD)
    distributed.all_reduce(x)
    torch.cuda.synchronize()
    distributed.destroy_process_group()
    return "ok" if float(x.sum()) == 1024 else "wrong sum"


def part_cupti():
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        torch.ones(1 << 20, device=CARD).sum().item()
    return "ok" if len(profiler.events()) > 0 else "skipped: the profiler recorded no kernel (it may not be allowed here)"


def part_triton():
    try:
        import triton  # noqa: F401
    except ImportError:
        return "skipped: no Triton"
    function = torch.compile(lambda x: torch.sin(x) * 2 + 1)
    x = torch.randn(1 << 16, device=CARD)
    return close(function(x).cpu(), (torch.sin(x) * 2 + 1).cpu(), 1e-3)


def parts():
    every = [part_matmul, part_cublas_half, part_cudnn, part_backward, part_graph, part_streams, part_nccl, part_cupti, part_triton]
    return {part.__name__[5:]: result_of(part) for part in every}


def memory():
    free, total = torch.cuda.mem_get_info()
    blocks, text = [], ""
    try:
        while len(blocks) < 1 << 16:
            blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device=CARD))
    except torch.cuda.OutOfMemoryError as error:
        text = str(error).splitlines()[0][:200]
    full_free = torch.cuda.mem_get_info()[0]
    held = torch.cuda.memory_reserved()
    blocks.clear()
    torch.cuda.empty_cache()
    again = float(torch.ones(1 << 20, device=CARD).sum()) == 1 << 20
    return {"total": total, "free": free, "reserved_at_oom": held, "free_at_oom": full_free, "oom": text, "works_again": again}


def loop(kind, seconds):
    if kind == "graph":
        graph, _ = captured_graph()
        step, group = graph.replay, 20
    else:
        size = 4096 if kind == "gemm" else 64
        a = torch.randn(size, size, device=CARD, dtype=torch.float16)
        out = torch.empty_like(a)
        step, group = (lambda: torch.mm(a, a, out=out)), 20 if kind == "gemm" else 500
    step()
    torch.cuda.synchronize()
    start, done = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        for _ in range(group):
            step()
        done += group
        torch.cuda.synchronize() if kind != "gemm" or done % 200 == 0 else None
    torch.cuda.synchronize()
    return {"per_second": done / (time.monotonic() - start)}


def train(seconds):
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(6)]).to(CARD)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(2048, 4096).pin_memory()
    start, steps = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        loss = model(batch.to(CARD, non_blocking=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss.item()
        steps += 1
    return {"per_second": steps / (time.monotonic() - start)}


def main(verb="", *rest):
    verbs = {"parts": parts, "memory": memory, "loop": lambda: loop(rest[0], float(rest[1])), "train": lambda: train(float(rest[0]))}
    if verb not in verbs:
        sys.exit(__doc__)
    print(json.dumps(verbs[verb]()), flush=True)


main(*sys.argv[1:])
