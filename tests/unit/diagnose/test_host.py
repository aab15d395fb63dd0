import json
import os
from pathlib import Path

import pytest

from stack_builder.diagnose.host import (
    Compiler,
    Device,
    Driver,
    DriverLibrary,
    HostFacts,
    HostNeed,
    collect_host,
    judge_host,
)
from stack_builder.errors import UsageError

CU13 = HostNeed("13.0")
PRO_6000 = Device("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0", 102_000_000_000)
H200 = Device("NVIDIA H200", "9.0", 150_000_000_000)
GXX = (Compiler("/usr/bin/g++", "PATH", "13.3.0"),)
NVCC = (Compiler("/usr/local/cuda/bin/nvcc", "/usr/local/cuda", "13.0"),)
LIBCUDA = DriverLibrary("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "ld.so.cache", "580.159.04", compat=False)
COMPAT = DriverLibrary("/usr/local/cuda/compat/libcuda.so.1", "ld.so.cache", "580.65.06", compat=True)
# The text of a driver whose kernel module is the open one, and of a proprietary one.
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n"


def facts(**changes: object) -> HostFacts:
    """A sound host with one RTX PRO 6000, changed in one respect."""
    sound = {
        "machine": "x86_64",
        "kernel": "6.8.0",
        "driver": Driver("580.159.04", "580.159.04", "13.0"),
        "devices": (PRO_6000,),
        "driver_libraries": (LIBCUDA,),
        "nvcc": NVCC,
        "host_compiler": GXX,
        "shm_bytes": 64 << 30,
        "iommu": False,
    }
    return HostFacts(**{**sound, **changes})  # type: ignore[arg-type]


def rules(host: HostFacts, need: HostNeed = CU13) -> list[str]:
    return [finding.rule for finding in judge_host(host, need)[0]]


def test_a_sound_host_has_no_findings_and_nothing_is_skipped() -> None:
    assert judge_host(facts(), CU13) == ((), ())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # CUDA release notes: 13.x needs driver 580, 12.x 525 by minor-version compatibility.
        ({"driver": Driver("570.133.20"), "driver_libraries": ()}, ["HOST001"]),
        ({"driver": Driver("580.65.06"), "driver_libraries": ()}, []),
        ({"driver": Driver("570.133.20"), "driver_libraries": (), "devices": (H200,)}, ["HOST001", "HOST005"]),
        # Forward compatibility: the compat copy is as new as needed and the GPU a data-centre one.
        ({"driver": Driver("570.133.20"), "driver_libraries": (COMPAT,), "devices": (H200,)}, []),
        ({"driver": Driver("570.133.20"), "driver_libraries": (COMPAT,)}, ["HOST001"]),
        # Error 803: compat copy older than the host's driver, found first.
        ({"driver_libraries": (COMPAT, LIBCUDA)}, ["HOST004"]),
        ({"driver_libraries": (LIBCUDA, COMPAT)}, []),
        ({"driver": Driver("580.95.05")}, ["HOST003"]),
        ({"driver_libraries": (), "missing": {"devices": "NVML: no such file"}}, ["HOST002"]),
        # sm_120a needs nvcc 12.8; Ubuntu's own nvcc is 11.5 and comes first on PATH.
        ({"nvcc": (Compiler("/usr/bin/nvcc", "PATH", "11.5"), *NVCC)}, ["HOST006", "HOST012"]),
        ({"nvcc": (Compiler("/usr/bin/nvcc", "PATH", "12.8"),)}, ["HOST012"]),
        (
            {"nvcc": (Compiler("/x/nvcc", "PATH", "12.8"),), "devices": (Device("GB10", "12.1"),)},
            ["HOST006", "HOST012"],
        ),
        ({"nvcc": ()}, ["HOST007"]),
        ({"environment": {"CUDA_HOME": ":/usr/local/cuda"}}, ["HOST008"]),
        ({"environment": {"CUDA_HOME": "/usr/local/none"}}, ["HOST008"]),
        ({"environment": {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/cuda-12.4/lib64"}}, ["HOST009"]),
        ({"environment": {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}}, []),
        ({"environment": {"LD_PRELOAD": "libtcmalloc.so.4"}}, ["HOST010"]),
        ({"host_compiler": ()}, ["HOST011"]),
        ({"host_compiler": (Compiler("/usr/bin/g++", "PATH", "16.1.0"),)}, ["HOST011"]),
        ({"devices": (PRO_6000, PRO_6000), "shm_bytes": 64 << 20}, ["HOST013"]),
        ({"devices": (PRO_6000, PRO_6000), "iommu": True}, ["HOST014"]),
        ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, ["HOST015"]),
    ],
)
def test_each_fault_gives_its_rule(changes: dict[str, object], expected: list[str]) -> None:
    assert rules(facts(**changes)) == expected


def test_cuda_12_runs_on_an_older_driver_and_an_explicit_minimum_counts() -> None:
    old = facts(driver=Driver("535.54.03"), driver_libraries=(), nvcc=(Compiler("/usr/bin/nvcc", "PATH", "12.8"),))
    assert rules(old, HostNeed("12.8")) == []
    assert rules(old, HostNeed("12.8", min_driver="570.26")) == ["HOST001"]


def test_the_fix_for_an_old_nvcc_names_the_good_one_further_down_the_path() -> None:
    host = facts(nvcc=(Compiler("/usr/bin/nvcc", "PATH", "11.5"), *NVCC))
    assert "/usr/local/cuda/bin/nvcc has 13.0" in judge_host(host, CU13)[0][0].detail


def test_what_cannot_be_judged_is_skipped_with_a_reason() -> None:
    host = facts(driver=None, devices=(), driver_libraries=(), missing={"driver": "no module"})
    found, skipped = judge_host(host, CU13)
    assert found == ()
    assert {(item.rule, item.reason) for item in skipped} >= {("HOST001", "no module"), ("HOST003", "no module")}
    assert "HOST006" in {item.rule for item in skipped}
    assert {item.rule for item in judge_host(facts(), HostNeed(None))[1]} == {"HOST001", "HOST007", "HOST012"}


def test_facts_survive_json() -> None:
    host = facts(environment={"CUDA_HOME": "/x"}, port_range=(32768, 60999))
    assert HostFacts.from_json(json.loads(json.dumps(host.to_json()))) == host
    with pytest.raises(UsageError, match=r"surprise"):
        HostFacts.from_json({**host.to_json(), "surprise": 1})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system of a host with driver 580.159.04, a compat copy and an nvcc that answers as NVIDIA's does."""
    for name, text in {
        "proc/driver/nvidia/version": OPEN,
        "proc/sys/net/ipv4/ip_local_port_range": "10000\t61000\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz quiet\n",
        "sys/class/iommu/dmar0": "",
        "usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04": "",
        "usr/local/cuda-13.0/compat/libcuda.so.580.65.06": "",
        "usr/local/cuda/bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "usr/local/cuda/bin/nvcc").chmod(0o755)
    (tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.580.159.04")
    (tmp_path / "usr/local/cuda-13.0/compat/libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    return tmp_path


def test_collecting_reads_driver_libraries_and_settings(root: Path) -> None:
    host = collect_host(
        root=root, environ={"PATH": "/nowhere", "HF_TOKEN": "x", "NCCL_API_KEY": "x", "NCCL_DEBUG": "INFO"}
    )
    assert host.driver == Driver("580.159.04", None, "13.0")
    assert [(item.version, item.compat, item.via) for item in host.driver_libraries] == [
        ("580.159.04", False, "/usr/lib/x86_64-linux-gnu"),
        ("580.65.06", True, "not searched"),
    ]
    assert (host.port_range, host.iommu, host.devices) == ((10000, 61000), True, ())
    assert host.environment == {"NCCL_DEBUG": "INFO"}
    assert [(item.via, item.version) for item in host.nvcc] == [("/usr/local/cuda", "13.0")]
    assert "devices" in host.missing


def test_loader_path_and_cuda_home_come_first(root: Path) -> None:
    environ = {"PATH": "/nowhere", "LD_LIBRARY_PATH": "/usr/local/cuda-13.0/compat", "CUDA_HOME": "/none"}
    host = collect_host(root=root, environ=environ)
    assert host.driver_libraries[0].compat
    assert [(item.via, item.version) for item in host.nvcc] == [("CUDA_HOME", None), ("/usr/local/cuda", "13.0")]
    assert {"HOST004", "HOST008"} <= set(rules(host))


def test_a_proprietary_module_and_a_stand_in_gpu(root: Path) -> None:
    (root / "proc/driver/nvidia/version").write_text(CLOSED)
    host = collect_host(root=root, environ={"PATH": "/nowhere"}, gpu="sm_121")
    assert host.driver == Driver("535.54.03", None, "12.2")
    assert (host.stand_in, host.devices) == (True, (Device("", "12.1"),))
    assert host.devices[0].architecture == "sm_121"


def test_this_host_can_be_collected() -> None:
    host = collect_host()
    assert host.kernel == os.uname().release
    assert HostFacts.from_json(host.to_json()) == host
