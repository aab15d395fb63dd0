"""The launch plan: what runs is what --dry-run prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack_builder.errors import UsageError
from stack_builder.serve.plan import Mount, Request, make_plan
from stack_builder.stack import spec as stacks
from stack_builder.stack.spec import ServeProfile

from .conftest import Serve

PROFILE = ServeProfile(args={"attention-backend": "flashinfer", "enable-metrics": True, "tp-size": 8})
# read in the wheels' own code: triton/knobs.py, tvm_ffi/cpp/extension.py, torch/_inductor/runtime/cache_dir_utils.py
CACHE_VARIABLES = ("TRITON_CACHE_DIR", "TVM_FFI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
PAIR = {"stack": "s", "spec": "eagle3", "model": "m", "draft": "d"}


def test_the_users_arguments_win_over_the_stacks() -> None:
    plan = make_plan(Request(**PAIR, extra=("--attention-backend", "triton")), PROFILE, python="python3")
    assert plan.argv.count("--attention-backend") == 1
    assert plan.argv[plan.argv.index("--attention-backend") + 1] == "triton"
    assert "--enable-metrics" in plan.argv


def test_eagle3_without_a_draft_is_refused() -> None:
    with pytest.raises(UsageError, match="draft"):
        make_plan(Request(stack="s", spec="eagle3", model="m"), PROFILE, python="python3")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "server.example"])
def test_a_public_address_needs_a_key_or_insistence(host: str) -> None:
    with pytest.raises(UsageError, match="--host"):
        make_plan(Request(**PAIR, host=host), PROFILE, python="python3")
    make_plan(Request(**PAIR, host=host, api_key="k"), PROFILE, python="python3")
    make_plan(Request(**PAIR, host=host, insecure=True), PROFILE, python="python3")


def test_the_key_is_never_shown() -> None:
    plan = make_plan(Request(**PAIR, api_key="planted-secret"), PROFILE, python="python3")
    assert "planted-secret" in plan.argv
    assert "planted-secret" not in plan.shell()
    assert "planted-secret" not in " ".join(plan.masked_argv())


def test_paths_are_those_inside_the_container() -> None:
    mount = Mount(Path("/data/models"), "/models")
    plan = make_plan(
        Request(stack="s", spec="none", model="/data/models/k"), PROFILE, python="python3", mounts=(mount,)
    )
    assert plan.argv[plan.argv.index("--model-path") + 1] == "/models/k"


def test_an_argument_that_stackb_sets_is_refused() -> None:
    with pytest.raises(UsageError, match="--port"):
        make_plan(Request(**PAIR, extra=("--port=1",)), PROFILE, python="python3")


def test_dry_run_prints_the_command_that_would_run(serve: Serve, port: int, venv: Path) -> None:
    child = serve("--spec", "eagle3", "--model", "m", "--draft", "d", "--dry-run")
    output, errors = child.communicate(timeout=30)
    assert child.returncode == 0, errors
    shown = json.loads(output)
    assert shown["command"][:3] == [str(venv / "bin" / "python3"), "-m", "sglang.launch_server"]
    assert shown["command"][shown["command"].index("--port") + 1] == str(port)
    [mount] = shown["mounts"]
    assert not mount["read_only"]
    for variable in CACHE_VARIABLES:
        assert shown["environment"][variable].startswith(mount["inside"])
    assert shown["environment"]["FLASHINFER_WORKSPACE_BASE"].endswith("/jit/standin")
    assert shown["environment"]["PATH"].split(os.pathsep)[0] == str(venv / "bin")  # where its ninja is
    assert "same in every arm" in shown["reasons"]["--max-running-requests"]


@pytest.mark.parametrize("stack", stacks.available())
@pytest.mark.parametrize("spec", ["none", "eagle3"])
def test_every_stack_has_a_profile_whose_arguments_have_reasons(stack: str, spec: str) -> None:
    command = ["serve", stack, "--spec", spec, "--model", "m", "--draft", "d", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-m", "stack_builder", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    profile = stacks.load(stacks.find(stack)).serve[spec]
    assert set(profile.args) | set(profile.env) == set(profile.reasons)
    writable = [volume["bind"] for volume in shown["container"]["volumes"].values() if volume["mode"] == "rw"]
    assert writable == [shown["container"]["environment"]["FLASHINFER_WORKSPACE_BASE"]]
    assert all(shown["container"]["environment"][name].startswith(writable[0]) for name in CACHE_VARIABLES)
    assert shown["container"]["image"] == f"stackb/{stack}"
    assert shown["container"]["command"] == shown["command"]
    assert ("--speculative-algorithm" in shown["command"]) == (spec == "eagle3")
