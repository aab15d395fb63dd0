"""The probes as programs of their own, and what the runner makes of whatever one prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stack_builder import resources
from stack_builder.diagnose.probes import judge_driver, judge_probes
from stack_builder.probe.runner import ContainerInterpreter, Outcome, available, read_outcome
from tests.forbidden import said_of_a_forbidden_socket

PROBES = resources.checks() / "probes"
# nvml.h and cuda.h: what a driver of branch 575 answers, which speaks CUDA 12.9
DRIVER = """\
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "575.57.08", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return 0; }
int cuDriverGetVersion(int *version) { *version = 12090; return 0; }
"""
TORCH = """\
class cuda:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
class version:
    cuda = "13.0"
"""


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    done = subprocess.run(
        [sys.executable, "-m", "stack_builder", "schema", "probe"], capture_output=True, text=True, check=True
    )
    document = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def printed(probe: str, **env: str) -> dict[str, Any]:
    """What a probe prints when it runs by itself."""
    done = subprocess.run([sys.executable, PROBES / f"{probe}.py"], env=env, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("probe", available())
def test_every_probe_prints_what_the_schema_says(probe: str, schema: jsonschema.Draft202012Validator) -> None:
    schema.validate(printed(probe, PATH="/nowhere"))


NVCC = 'case "$1" in --version) echo "Cuda compilation tools, release 13.0, V13.0.48";; esac'


@pytest.mark.parametrize(
    ("tools", "cause", "says"),
    [
        ({"nvcc": NVCC}, "ninja_missing", "no ninja on PATH"),
        ({"ninja": "echo 1.12"}, "nvcc_missing", "no nvcc at"),
        ({"nvcc": NVCC, "ninja": "exit 126"}, "ninja_broken", "does not run"),
        (
            {"nvcc": NVCC, "ninja": '[ "$1" = --version ] || { echo FAILED: scale.o; exit 1; }'},
            "jit_build_failed",
            "FAIL",
        ),
    ],
)
def test_tools_of_the_jit_that_are_missing_or_broken_are_named(
    tools: dict[str, str], cause: str, says: str, tmp_path: Path, schema: jsonschema.Draft202012Validator
) -> None:
    for name, body in tools.items():
        program(tmp_path / "root" / "bin" if name == "nvcc" else tmp_path / "bin", name, body)
    result = printed("nvcc", PATH=str(tmp_path / "bin"), CUDA_HOME=str(tmp_path / "root"))
    schema.validate(result)
    assert (result["status"], result["cause"]) == ("failed", cause)
    assert says in result["reason"]


def test_the_object_is_built_by_the_ninja_on_path_with_the_nvcc_of_cuda_home(
    tmp_path: Path, schema: jsonschema.Draft202012Validator
) -> None:
    program(
        tmp_path / "root" / "bin",
        "nvcc",
        NVCC + '\n[ "$1" = --version ] && exit\nfor output; do :; done; echo "$*" > "$output"',
    )
    # takes the one rule from the file as ninja does: -v -C FOLDER -f FILE
    ninja = 'echo 1.12.1; [ "$1" = --version ] || exec /bin/sh -c "$(/bin/sed -n "s/^  command = //p" "$5" | '
    ninja += '/bin/sed "s,\\$out,$3/scale.o,g;s,\\$in,$3/scale.cu,")"'
    program(tmp_path / "bin", "ninja", ninja)
    settings = json.dumps({"gpu": "sm_120"})
    result = printed("nvcc", PATH=str(tmp_path / "bin"), CUDA_HOME=str(tmp_path / "root"), STACKB_PROBE=settings)
    schema.validate(result)
    assert result["status"] == "ok", result["reason"]
    assert result["facts"]["ninja"] == str(tmp_path / "bin" / "ninja")
    assert result["facts"]["architecture"] == "sm_120a"


def test_a_driver_that_is_too_old_is_judged_where_torch_says_only_that_there_is_no_gpu(
    tmp_path: Path, schema: jsonschema.Draft202012Validator
) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    (tmp_path / "torch.py").write_text(TORCH)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / name, tmp_path / "driver.c"], check=True)
    result = printed("gpu", PATH=os.defpath, PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path))
    schema.validate(result)
    outcome = read_outcome("gpu", 0, json.dumps(result), "", limit=1)
    [finding], _ = judge_probes([outcome])
    assert finding.rule == "HOST001"
    assert "575.57.08" in finding.detail
    assert "580" in finding.detail
    judged = judge_driver(outcome.facts)
    assert judged is not None
    assert judged["enough"] is False


@pytest.mark.parametrize(
    ("driver", "speaks", "enough"),
    [("580.65.06", "13.0", True), ("580.65.05", "12.9", False), ("535.183.01", "13.0", True)],
)
def test_the_driver_of_cuda_13_is_580_65_06_or_one_with_the_compatibility_package(
    driver: str, speaks: str, enough: bool
) -> None:
    judged = judge_driver({"driver": driver, "driver_cuda": speaks, "torch_cuda": "13.0"})
    assert judged is not None
    assert judged["enough"] is enough


GOOD = {"schema_version": 1, "probe": "import_flashinfer", "status": "ok", "reason": None, "cause": None}


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("", "exit code 0 without a result"),
        ("hello", "exit code 0 without a result"),
        ("{", "Expecting"),
        ('{"a": ' * 5000, "nested"),
        ("[1]", "exit code 0 without a result"),
        (json.dumps({**GOOD, "facts": {}}), "facts.file"),
        (json.dumps({**GOOD, "facts": {"file": 3, "version": None}}), "facts.file"),
        (json.dumps({**GOOD, "facts": {"file": "f", "version": None}, "schema_version": 2}), "schema_version"),
        (json.dumps({**GOOD, "probe": "nvcc2", "facts": {}}), "nvcc2"),
        (json.dumps({**GOOD, "status": "fine", "facts": {}}), "status"),
        (json.dumps({**GOOD, "probe": "import_sgl_kernel", "facts": {"file": "f", "version": None}}), "sgl_kernel"),
    ],
)
def test_what_is_no_result_of_the_probe_is_broken_output(output: str, says: str) -> None:
    outcome = read_outcome("import_flashinfer", 0, output, "", limit=1)
    assert outcome.status == "broken output"
    assert says in (outcome.reason or "")
    [finding], _ = judge_probes([outcome])
    assert finding.rule == "RUN104"


def test_what_libraries_print_around_a_result_is_passed_over() -> None:
    good = json.dumps({**GOOD, "facts": {"file": "f", "version": "1"}})
    outcome = read_outcome("import_flashinfer", 0, f"loading\n{good}\n[rank0] bye\n", "", limit=1)
    assert outcome == Outcome("import_flashinfer", "ok", None, {"file": "f", "version": "1"})


def test_a_probe_that_crashes_or_hangs_is_a_result() -> None:
    crashed = read_outcome("gpu", -11, "", "x\nFatal", limit=1)
    hung = read_outcome("gpu", None, "", "", limit=1)
    assert (crashed.reason, hung.status) == ("SIGSEGV; Fatal", "timed out")
    failed = Outcome("nvcc", "failed", "no ninja on PATH", {}, "missing_tool")
    absent = Outcome("nvrtc", "skipped", "no libnvrtc", {})
    findings, skipped = judge_probes([failed, crashed, hung, absent])
    assert [finding.rule for finding in findings] == ["RUN101", "RUN102", "RUN103"]
    assert findings[0].evidence == {"cause": "missing_tool"}
    assert [entry.reason for entry in skipped] == ["probe nvrtc: no libnvrtc"]


def test_an_engine_that_the_user_may_not_use_is_called_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = ContainerInterpreter("any")
    said = said_of_a_forbidden_socket(lambda: probe.run("gpu.py", {}, 1), monkeypatch, tmp_path)
    assert "no permission on the Docker engine's socket" in said
