"""Which wheel of several is taken: pip's own order of tags is the measure."""

import platform
import sys
from pathlib import Path

import pytest
from pip._internal.utils.compatibility_tags import get_supported

from stack_builder import resources
from stack_builder.resolve.target import Target
from stack_builder.stack import lock

DEBIAN = Target("3.11", "x86_64", "2.36")


def test_for_this_machine_they_are_the_tags_that_pip_accepts_here() -> None:
    here = Target(f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine(), platform.libc_ver()[1])
    mine = [str(tag) for tag in sorted(here.tags, key=here.tags.__getitem__)]
    pips = [str(tag) for tag in get_supported()]
    assert set(mine) == set(pips)
    # plain linux_… comes last in pip 23 and first in pip 26; no index serves it
    plain = f"-linux_{platform.machine()}"
    assert [tag for tag in mine if not tag.endswith(plain)] == [tag for tag in pips if not tag.endswith(plain)]


@pytest.mark.parametrize(
    ("files", "best"),
    [
        # aiohttp 3.14.5, apache-tvm-ffi 0.1.11: a binary beats pure Python, the newer manylinux the older one
        (["a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_28_x86_64.whl"], 1),
        (
            [
                "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
                "a-1-cp311-cp311-manylinux_2_28_x86_64.whl",
            ],
            1,
        ),
        (["a-1-cp38-abi3-manylinux_2_28_x86_64.whl", "a-1-cp310-abi3-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-1-py3-none-any.whl", "a-1-2-py3-none-any.whl", "a-1-py3-none-any.whl"], 1),
        (["a-1-cp312-cp312-manylinux_2_28_x86_64.whl", "a-1-py3-none-any.whl", "a-1.tar.gz"], 1),
        (["a-1-cp311-cp311-manylinux_2_39_x86_64.whl"], None),
        (["a-1-cp311-cp311-manylinux_2_28_aarch64.whl", "a-1-cp311-cp311-win_amd64.whl"], None),
        ([], None),
    ],
)
def test_the_best_file(files: list[str], best: int | None) -> None:
    assert DEBIAN.best(files) == (None if best is None else files[best])
    assert DEBIAN.best(reversed(files)) == (None if best is None else files[best])


def test_sgl_kernels_two_names() -> None:
    names = [f"sgl_kernel-0.3.21+cu130-{tag}-abi3-manylinux2014_x86_64.whl" for tag in ("cp310", "cp312")]
    assert Target("3.12", "x86_64", "2.39").best(names) == names[1]
    assert DEBIAN.best(names) == names[0]


@pytest.mark.parametrize("folder", sorted(p.parent for p in resources.lockfiles().glob("*/artifacts.json")))
def test_every_locked_wheel_fits_its_stack(folder: Path) -> None:
    from stack_builder.stack import spec

    target = Target.of(spec.load(folder))
    assert [a.filename for a in lock.load(folder).artifacts if target.best([a.filename]) is None] == []
