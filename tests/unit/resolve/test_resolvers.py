"""uv and pip-tools, run for real against small indexes on the loopback interface."""

from __future__ import annotations

import hashlib
from functools import partialmethod
from pathlib import Path

import pytest

from stack_builder.errors import MachineError, UsageError
from stack_builder.progress import Silent
from stack_builder.resolve import RESOLVERS
from stack_builder.resolve.indexes import indexes_when_asked
from stack_builder.resolve.model import Pin, request_for
from stack_builder.stack import spec
from stack_builder.wheels.http import Http

both = pytest.mark.parametrize("resolver", list(RESOLVERS))


def resolve(folder: Path, resolver: str, prefer: dict[str, str] | None = None) -> dict[str, Pin]:
    stack = spec.load(folder)
    request = request_for(stack, None, [])
    if prefer:
        request = type(request)(request.spec, request.target, prefer)
    with indexes_when_asked(stack) as indexes:
        return {pin.name: pin for pin in RESOLVERS[resolver](indexes, Silent(), False).resolve(request)}


@both
def test_one_wheel_per_package_with_the_indexs_hash(default_index, stack_folder, resolver: str) -> None:
    default_index.add("sglang", "0.5.23", "torch==2.14.1", "nvidia-cuda-nvcc")
    default_index.add("torch", "2.14.1", tag="cp311-cp311-manylinux_2_28_x86_64")
    default_index.add("torch", "2.14.1", tag="cp311-cp311-manylinux_2_28_aarch64")
    default_index.add("torch", "2.14.1", tag="cp312-cp312-manylinux_2_28_x86_64")
    default_index.add("nvidia-cuda-nvcc", "13.0.88")
    default_index.add("nvidia-cuda-nvcc", "13.5.37", uploaded="2026-11-29T00:00:01Z")  # the day after exclude_newer
    default_index.add("nvidia-cuda-nvcc", "13.4.1", tag="py3-none-manylinux_2_39_x86_64")  # newer than the base's glibc
    pins = resolve(stack_folder(sglang="==0.5.23"), resolver)
    torch = pins["torch"]
    row = default_index.rows["torch"][0]
    assert {name: pin.version for name, pin in pins.items()} == {
        "sglang": "0.5.23",
        "torch": "2.14.1",
        "nvidia-cuda-nvcc": "13.0.88",
    }
    assert (torch.filename, torch.sha256, torch.size) == (row.filename, row.sha256, len(row.data))
    assert (torch.index, torch.uploaded) == ("default", "2026-11-28T12:00:00Z")
    assert hashlib.sha256(row.data).hexdigest() == torch.sha256


@both
def test_an_explicit_index_serves_its_packages_and_no_others(
    default_index, serve_index, stack_folder, resolver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = serve_index()
    default_index.add("sglang", "0.5.9", "torch==2.9.1", "numpy")
    default_index.add("torch", "2.9.1", "triton==3.5.1")  # PyPI's CUDA 12 build: must never be taken
    default_index.add("triton", "3.5.1", files={"triton/x.py": b"PyPI's bytes\n"})
    default_index.add("numpy", "2.3.5")
    ours = extra.add("torch", "2.9.1+cu130", "triton==3.5.1")
    other_bytes = extra.add("triton", "3.5.1", files={"triton/x.py": b"PyTorch's bytes\n"})
    extra.add("numpy", "9.9")  # indexes shadow common packages; this one is not asked for it
    more = f'[[index]]\nname = "cu130"\nurl = "https://{extra.url[7:]}"\npackages = ["torch", "triton"]\n'
    folder = stack_folder(more, sglang="==0.5.9", torch="==2.9.1+cu130")
    stack = spec.load(folder)
    plain = stack.index[0].model_copy(update={"url": extra.url})  # stack files refuse http; this server has no other
    monkeypatch.setattr(spec, "load", lambda _: stack.model_copy(update={"index": (plain,)}))
    pins = resolve(folder, resolver)
    assert (pins["torch"].version, pins["torch"].sha256, pins["torch"].index) == ("2.9.1+cu130", ours.sha256, "cu130")
    assert (pins["triton"].sha256, pins["triton"].index) == (other_bytes.sha256, "cu130")
    assert (pins["numpy"].version, pins["numpy"].index) == ("2.3.5", "default")
    assert set(extra.asked) == {"torch", "triton"}


@both
def test_an_override_goes_against_upstreams_pin(default_index, stack_folder, resolver: str) -> None:
    default_index.add("sglang", "0.5.9", 'flashinfer_python[cu13]==0.6.3; python_version > "3"')
    default_index.add("flashinfer-python", "0.6.3")
    default_index.add("flashinfer-python", "0.6.4")
    more = (
        '[[override]]\npackage = "flashinfer-python"\nversion = "==0.6.4"\n'
        'reason = "the report ran 0.6.4"\nexpires = 2027-01-01\n'
    )
    assert resolve(stack_folder(more, sglang="==0.5.9"), resolver)["flashinfer-python"].version == "0.6.4"
    with pytest.raises(UsageError, match=r"no set of wheels satisfies it: .*0\.6\.4"):
        resolve(stack_folder(sglang="==0.5.9", flashinfer_python="==0.6.4"), resolver)


@both
def test_versions_are_kept_unless_they_cannot_be(default_index, stack_folder, resolver: str) -> None:
    for version in ("1.0", "1.1", "2.0"):
        default_index.add("a", version)
        default_index.add("b", version)
    default_index.add("root", "1", "a", "b>=1.1")
    pins = resolve(stack_folder(root="==1"), resolver, prefer={"a": "1.0", "b": "1.0", "gone": "1"})
    assert {name: pin.version for name, pin in pins.items()} == {"root": "1", "a": "1.0", "b": "2.0"}


@both
def test_an_extra_of_a_root(default_index, stack_folder, resolver: str) -> None:
    default_index.add("dsl", "4.5.2", 'dsl-cu13; extra == "cu13"', 'dsl-cu12; extra == "cu12"')
    default_index.add("dsl-cu13", "4.5.2")
    pins = resolve(stack_folder('[extras]\ndsl = ["cu13"]\n', dsl="==4.5.2"), resolver)
    assert pins.keys() == {"dsl", "dsl-cu13"}


def test_source_archives_do_not_count(default_index, stack_folder) -> None:
    default_index.add("a", "1.0")
    archive = default_index.add("a", "2.0")
    archive.filename = "a-2.0.tar.gz"
    assert resolve(stack_folder(a=">=1"), "uv")["a"].version == "1.0"


def test_an_unknown_package_is_a_conflict_in_one_line(default_index, stack_folder) -> None:
    default_index.add("a", "1.0", "no-such-package")
    with pytest.raises(UsageError, match="no-such-package") as error:
        resolve(stack_folder(a="==1.0"), "uv")
    assert "\n" not in str(error.value)


@both
def test_an_index_that_is_not_there(
    default_index, stack_folder, resolver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setattr(Http, "__init__", partialmethod(Http.__init__, attempts=1))
    with pytest.raises(MachineError, match="Check the network"):
        resolve(stack_folder(a="==1.0"), resolver)


def test_pip_tools_refuses_what_it_cannot_do(default_index, stack_folder) -> None:
    folder = stack_folder(a="==1.0")
    text = (folder / "stack.toml").read_text()
    (folder / "stack.toml").write_text(text.replace('python = "3.11"', 'python = "3.99"'))
    with pytest.raises(MachineError, match=r"the stack is for 3\.99"):
        resolve(folder, "pip-tools")
    with indexes_when_asked(spec.load(folder)) as indexes, pytest.raises(UsageError, match="offline"):
        RESOLVERS["pip-tools"](indexes, Silent(), True).resolve(request_for(spec.load(folder), None, []))
