"""Peer-to-peer copies that arrive: copy and compare, then bandwidth. Some platforms report P2P and corrupt the data."""

import _probe

COPY_BYTES = 64 << 20
REPEATS = 20


def probe():
    torch = _probe.import_torch_with_gpu(2)
    pairs = []
    for source in range(torch.cuda.device_count()):
        for target in range(torch.cuda.device_count()):
            if source != target:
                pairs.append(copied(torch, source, target))
    broken = [pair for pair in pairs if not pair["intact"]]
    if broken:
        raise _probe.Fail(f"data did not arrive intact: {broken}")
    return {"pairs": pairs, "copy_bytes": COPY_BYTES}


def copied(torch, source, target):
    sent = torch.arange(COPY_BYTES // 4, dtype=torch.int32, device=f"cuda:{source}")
    received = torch.empty_like(sent, device=f"cuda:{target}")
    received.copy_(sent)
    torch.cuda.synchronize(target)
    intact = bool((received.cpu() == sent.cpu()).all())
    with torch.cuda.device(source):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPEATS):
            received.copy_(sent, non_blocking=True)
        stop.record()
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        seconds = start.elapsed_time(stop) / 1000
    return {
        "from": source,
        "to": target,
        "peer_access": torch.cuda.can_device_access_peer(source, target),
        "intact": intact,
        "gigabytes_per_second": round(COPY_BYTES * REPEATS / seconds / 1e9, 1),
    }


_probe.run("peer_to_peer", probe)
