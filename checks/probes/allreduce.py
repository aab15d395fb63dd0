"""NCCL all-reduce of 42 KB, the size of an EAGLE-3 verify step on an 8-GPU Kimi-K2.5: its latency distribution."""

import os
import socket
import subprocess
import sys

import _probe

ELEMENTS = 21504  # bfloat16: 43,008 bytes
WARM_UP = 50
REPEATS = 500


def probe():
    if "RANK" in os.environ:
        return worker()
    torch = _probe.import_torch_with_gpu(2)
    world = torch.cuda.device_count()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(world))
    workers = [
        subprocess.Popen([sys.executable, __file__], env=dict(env, RANK=str(rank)), stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    import json

    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    first = json.loads(outputs[0].strip().splitlines()[-1])
    if first["status"] != "ok":
        raise _probe.Fail(first["reason"])
    return first["facts"]


def worker():
    import time

    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    data = torch.ones(ELEMENTS, dtype=torch.bfloat16, device="cuda")
    dist.all_reduce(data)
    if float(data.float().mean()) != dist.get_world_size():
        raise _probe.Fail(f"the sum is wrong: {float(data.float().mean())}")
    times = []
    for number in range(WARM_UP + REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        dist.all_reduce(data)
        torch.cuda.synchronize()
        if number >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    version = torch.cuda.nccl.version()
    dist.destroy_process_group()
    return {
        "bytes": ELEMENTS * 2,
        "world_size": int(os.environ["WORLD_SIZE"]),
        "nccl": ".".join(map(str, version)),
        "repeats": REPEATS,
        "microseconds": {name: round(times[int(len(times) * part)], 1) for name, part in PARTS.items()},
    }


PARTS = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}

_probe.run("allreduce", probe)
