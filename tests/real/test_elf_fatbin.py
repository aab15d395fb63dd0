"""The fat binary walker against NVIDIA's own cuobjdump, both from the package index."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from stack_builder.elf.fatbin import device_code

pytestmark = [
    pytest.mark.online,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="cuobjdump is taken for x86_64"),
]

CUOBJDUMP = "nvidia-cuda-cuobjdump==13.5.37"
WHEELS = ["torchaudio==2.11.0", "torch_memory_saver==0.0.10"]  # 1.8 and 2.6 MB; the second has no device code


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]
    platforms = [f"--platform={tag}" for tag in ("manylinux2014_x86_64", "manylinux_2_28_x86_64")]
    subprocess.run([*command, *platforms, "-d", folder, CUOBJDUMP, *WHEELS], check=True, capture_output=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / wheel.name.split("-")[0])
    return folder


def test_targets_equal_cuobjdump(downloads: Path) -> None:
    tool = next(downloads.rglob("bin/cuobjdump"))
    tool.chmod(0o755)
    objects = [path for path in downloads.rglob("*.so") if "cuobjdump" not in str(path)]
    assert len(objects) >= 2
    with_code = 0
    for path in objects:
        out = subprocess.run([tool, "-all", path], capture_output=True, text=True, check=False).stdout
        expected = Counter(re.findall(r"Fatbin (elf|ptx) code:\n=+\narch = sm_(\S+)", out))
        found = device_code(path.read_bytes(), path.name)
        ours = Counter({("elf", target.removeprefix("sm_")): n for target, n in found.sass.items()})
        ours.update({("ptx", target.removeprefix("compute_")): n for target, n in found.ptx.items()})
        assert ours == expected, path.name
        with_code += bool(found)
    assert with_code
