"""One kernel of each kernel library runs and gives the right numbers."""

import _probe


def probe():
    torch = _probe.import_torch_with_gpu()
    torch.manual_seed(0)
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    weight = torch.rand(1024, device="cuda", dtype=torch.bfloat16)
    # the reference: RMS norm written out in float32
    wide = x.float()
    expected = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
    results = {"torch": difference(x.float() @ x.float().T, (x.double() @ x.double().T).float())}
    for name in ("sgl_kernel", "flashinfer"):
        try:
            module = __import__(name)
            results[name] = difference(module.rmsnorm(x, weight, 1e-6).float(), expected)
        except Exception as error:
            raise _probe.Fail(f"{name}.rmsnorm: {type(error).__name__}: {error}") from error
    # one part in 100: bfloat16 keeps 8 bits of mantissa
    wrong = {name: value for name, value in results.items() if not value < 1e-2}
    if wrong:
        raise _probe.Fail(f"wrong numbers (relative to the largest value): {wrong}")
    torch.cuda.synchronize()
    return {"largest_relative_difference": results}


def difference(value, expected):
    return float((value - expected).abs().max() / expected.abs().max())


_probe.run("kernels", probe)
