from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from stack_builder import resources
from stack_builder.cli.app import run
from stack_builder.diagnose import doctor
from stack_builder.diagnose.abi.fixes import FixSource
from stack_builder.diagnose.abi.history import TorchHistory
from stack_builder.diagnose.environment.facts import (
    DeviceCode,
    Distribution,
    Environment,
    MissingLibrary,
    MissingSymbol,
    Object,
    Python,
    SharedFile,
    Torch,
)
from stack_builder.report import Severity
from stack_builder.stack.gpu import Gpu

SITE = "/v/lib/python3.11/site-packages"
SOURCE = FixSource(TorchHistory((), {}), ())
PLAIN = Environment("x86_64", Python("3.11", "/v", (SITE,)), torch=Torch(f"{SITE}/torch", "2.14.1+cu130", "13.0"))


def test_what_explains_the_rest_comes_first() -> None:
    path = f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so"
    missing = (MissingLibrary("libtorch_cuda.so", path), MissingLibrary("libnuma.so.1", path))
    owners = ("sgl-kernel 0.3.21", "sglang-kernel 0.4.5")
    facts = dataclasses.replace(
        PLAIN,
        torch=Torch(f"{SITE}/torch", "2.9.1+cpu", None),
        objects=(Object(path, "sglang-kernel 0.4.5", missing_libraries=missing),),
        shared_files=(SharedFile(f"{SITE}/sgl_kernel/__init__.py", owners, owners[0]),),
    )
    findings, _ = doctor.judge(facts, SOURCE)
    assert [f.rule for f in findings] == ["CUDA003", "ABI009", "ABI002"]
    assert findings[2].object == "sgl_kernel/sm100/common_ops.abi3.so"


def test_a_kernel_that_is_not_for_torch_comes_before_a_library_that_torch_lacks() -> None:
    cpu, ops = f"{SITE}/torch/lib/libtorch_cpu.so", f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so"
    cupti = MissingLibrary("libcupti.so.12", cpu, other_majors=(f"{SITE}/nvidia/cu13/lib/libcupti.so.13",))
    symbol = "_ZN3c1013MessageLoggerC1EPKciib"
    facts = dataclasses.replace(
        PLAIN,
        torch=Torch(f"{SITE}/torch", "2.8.0+cu128", "12.8"),
        objects=(
            Object(cpu, "torch 2.8.0", missing_libraries=(cupti,)),
            Object(ops, "sglang-kernel 0.4.10", missing_symbols=(MissingSymbol(symbol, symbol),)),
        ),
    )
    findings, _ = doctor.judge(facts, SOURCE)
    assert [(f.rule, f.severity) for f in findings] == [("ABI001", Severity.ERROR), ("CUDA001", Severity.ERROR)]


def test_notes_of_one_distribution_stand_together_and_lose_nothing() -> None:
    objects = tuple(
        Object(
            f"{SITE}/nvshmem/{name}.so",
            "nvidia-nvshmem-cu13 3",
            missing_libraries=(MissingLibrary(f"lib{name}.so", "x"),),
        )
        for name in ("fabric", "mpi")
    )
    (finding,), _ = doctor.judge(dataclasses.replace(PLAIN, objects=objects), SOURCE)
    assert finding.severity is Severity.NOTE
    together = finding.evidence["objects"]
    assert isinstance(together, dict)
    assert {path: seen["libraries"] for path, seen in together.items()} == {
        "nvshmem/fabric.so": ["libfabric.so"],
        "nvshmem/mpi.so": ["libmpi.so"],
    }


def test_features_without_code_for_the_gpu_keep_a_note_each() -> None:
    names = ("flash_ops", "flashmla_ops")
    code = tuple(DeviceCode(f"{SITE}/sgl_kernel/{n}.abi3.so", "sgl-kernel 0.3.21", ("sm_90a",)) for n in names)
    findings, skipped = doctor.judge(dataclasses.replace(PLAIN, device_code=code), SOURCE, gpu=Gpu.parse("sm_120"))
    assert [f.object for f in findings] == [f"sgl_kernel/{name}.abi3.so" for name in names]
    assert skipped == ()


def test_rules_that_could_not_run_say_why() -> None:
    _, skipped = doctor.judge(dataclasses.replace(PLAIN, torch=None, base=False), SOURCE)
    reasons = {s.rule: s.reason for s in skipped}
    assert "--gpu" in reasons["ARCH001"]
    assert "system libraries" in reasons["ABI004"]
    assert "torch" in reasons["ABI001"]


def test_the_facts_name_what_people_ask_for_first() -> None:
    facts = dataclasses.replace(
        PLAIN,
        distributions=(Distribution("sglang-kernel", "0.4.10", "x"),),
        device_code=(DeviceCode(f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so", None, ("sm_90a", "sm_120a")),),
    )
    summary = doctor.summary(facts, Gpu.parse("sm_120"))
    assert list(summary)[:3] == ["python", "torch", "gpu"]
    assert summary["torch"] == "2.14.1+cu130, CUDA 13.0"
    assert summary["code in sgl_kernel/sm100/common_ops.abi3.so"] == "sm_90a, sm_120a"


def test_locked_sets_are_what_the_locks_hold() -> None:
    sets = {found.stack: (found.torch, found.kernel_name, found.kernel) for found in doctor.locked_sets()}
    # read from the public metadata of sglang 0.5.23 and 0.5.17
    assert sets["cu130-sglang-0.5.23"] == ("2.14.1", "sglang-kernel", "0.4.10")
    assert sets["cu130-sglang-0.5.17"] == ("2.11.0", "sglang-kernel", "0.4.5")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["doctor", "nowhere"], 2, "no file, folder, stack or tagged image"),
        (["doctor", "wheels:/dev"], 2, "holds no wheels"),
        (["doctor", "stack:cu130-sglang-0.5.23"], 3, "run stackb fetch cu130-sglang-0.5.23"),
        (["doctor", "--gpu", "blackwell", "stack:cu130-sglang-0.5.23"], 2, "sm_120"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    progress = [line for line in err.splitlines() if line.startswith("reading ")]
    said = [line for line in err.splitlines() if line not in progress]
    assert len(said) == 1
    assert says in said[0].lower()


def test_a_venv_without_torch_is_incomplete_and_strict_fails_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    call = ["doctor", f"venv:{tmp_path / 'env'}", "--no-host", "--format", "json"]
    assert run(call) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "incomplete"
    jsonschema.validate(report, json.loads((resources.checks() / "schemas/report-1.json").read_text()))
    assert run([*call, "--strict"]) == 3
