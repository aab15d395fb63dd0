from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stack_builder.image import environment, linker
from stack_builder.image.contents import Place

SITE = Place("opt/venv", "3.11").site
HOME = f"{SITE}/nvidia/cu13"


@pytest.mark.parametrize(
    ("platform", "machine"), [("linux_x86_64", "Advanced Micro Devices X86-64"), ("linux_aarch64", "AArch64")]
)
def test_readelf_reads_the_stand_in(platform: str, machine: str, tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(linker.stand_in("libnvrtc.so.13", platform))
    said = subprocess.run(
        ["readelf", "--file-header", "--dynamic", "--wide", tmp_path / "lib"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Library soname: [libnvrtc.so.13]" in said.stdout
    assert f"Machine:                           {machine}\n" in said.stdout
    assert "DYN (Shared object file)" in said.stdout
    assert not said.stderr


def test_ldconfig_lists_the_stand_ins(tmp_path: Path) -> None:
    """The machine's own ldconfig, over a folder of stand-ins: each is found under its file name."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("libcudart.so.13", "libnvrtc.alt.so.13", "libplain.so"):
        (folder / name).write_bytes(linker.stand_in(name, "linux_x86_64"))
    (tmp_path / "conf").write_text(f"{folder}\n")
    ldconfig = "/sbin/ldconfig"
    subprocess.run([ldconfig, "-X", "-f", tmp_path / "conf", "-C", tmp_path / "cache"], check=True)
    listed = subprocess.run(
        [ldconfig, "-p", "-C", tmp_path / "cache"], capture_output=True, text=True, check=True
    ).stdout
    for name in ("libcudart.so.13", "libnvrtc.alt.so.13", "libplain.so"):
        assert f"{name} (libc6,x86-64) => {folder}/{name}" in listed


def test_directories_follow_the_patterns_and_leave_stubs_out() -> None:
    paths = [
        f"{HOME}/lib/libcudart.so.13",
        f"{HOME}/lib/stubs/libcuda.so",
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9",
        f"{SITE}/nvidia/nothing/lib/readme.txt",
        f"{SITE}/torch/lib/libtorch.so",
        f"{SITE}/torch/lib/deeper/libx.so",
        f"{SITE}/numpy.libs/libopenblas.so",
    ]
    found = linker.directories(paths, SITE, ["nvidia/*/lib", "torch/lib"])
    assert found == [f"{HOME}/lib", f"{SITE}/nvidia/cudnn/lib", f"{SITE}/torch/lib"]
    assert linker.libraries(paths, found) == [paths[0], paths[2], paths[4]]


def test_toolkit_links_complete_what_wheels_leave_out() -> None:
    paths = [
        f"{HOME}/lib/{name}" for name in ("libcudart.so.13", "libnvvm.so.4", "libcufile.so", "libcufile.so.0", "a.txt")
    ]
    links = environment.toolkit_links(paths, HOME, {"lib64": "lib"})
    assert links == (
        (f"{HOME}/lib/libcudart.so", "libcudart.so.13"),
        (f"{HOME}/lib/libnvvm.so", "libnvvm.so.4"),
        (f"{HOME}/lib64", "lib"),
    )
    assert environment.toolkit_links(["opt/venv/x"], HOME, {"lib64": "lib"}) == ()
