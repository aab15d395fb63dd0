"""Faults on demand, and the commands that they meet: each on the smallest world that has all its parts."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stack_builder.bench import history
from stack_builder.bench.results import read
from stack_builder.diagnose.patches.site import JOURNAL
from tests.hardening.faulty import Faulty, Host
from tests.hardening.keeping import locking, pruning  # noqa: F401 - fixtures
from tests.hardening.moving import pulling, pushing, registry  # noqa: F401 - fixtures
from tests.hardening.scenes import Scene, right_blobs, right_wheels
from tests.hardening.tiny import tiny  # noqa: F401 - a fixture
from tests.hardening.web import server  # noqa: F401 - a fixture
from tests.unit.bench.test_history import FOUNDING, GUIDELLM
from tests.unit.image.conftest import base_layout, kit, make_wheel  # noqa: F401 - fixtures
from tests.unit.patch.conftest import FILES, HEAD, TABLE_PATCH, WRAPPER_PATCH, record_of, tree
from tests.unit.resolve.conftest import serve_index  # noqa: F401 - a fixture
from tests.unit.serve.conftest import port, serve, stack, venv  # noqa: F401 - fixtures
from tests.unit.wheels.conftest import index_server, stack_folder  # noqa: F401 - fixtures

FAULTS = Path(__file__).parents[1] / "fixtures" / "faults.c"


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One process for all runs."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the fixtures with")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, FAULTS, "-ldl"], check=True)
    started = Host(library)
    yield started
    started.close()


@pytest.fixture
def faulty(host: Host, tmp_path: Path) -> Faulty:
    """``faulty(*ARGV, mode=, at=)`` runs ``stackb`` in ``tmp_path/run``, with its cache and state there."""
    folder = tmp_path / "run"
    folder.mkdir()
    return Faulty(host, folder, {"STACKB_CACHE_DIR": str(folder / "cache"), "STACKB_STATE_DIR": str(folder / "state")})


@pytest.fixture
def fetching(faulty: Faulty, index_server: Any, stack_folder: Callable[[], Path]) -> Scene:  # noqa: F811
    """A fetch of three wheels from an index."""
    for number in range(3):
        data = random.Random(number).randbytes(40_000 + number)
        index_server.add(f"p{number}-1.0-py3-none-any.whl", data)
    faulty.env |= {"UV_DEFAULT_INDEX": f"{index_server.url}/simple", "NETRC": os.devnull}
    faulty.env["SSL_CERT_FILE"] = str(faulty.folder)  # no certificates: loading them takes longer than the run
    return Scene(faulty, ("fetch", stack_folder(), "--jobs", 1), lambda: right_wheels(faulty.folder / "cache"))


@pytest.fixture
def building(
    faulty: Faulty,
    make_wheel: Callable[..., Path],  # noqa: F811
    kit: SimpleNamespace,  # noqa: F811
    base_layout: Path,  # noqa: F811
) -> Callable[[str], Scene]:
    """``building(output)``: a build of two wheels in a folder onto a base of one file."""
    place = faulty.folder.with_name("tiny")
    kit.write_stack(
        place, [kit.wheel_record(make_wheel(name, {f"{name}.py": b"x = 1\n"})) for name in ("demo", "tool")]
    )
    argv = ("build", place, "--base", f"oci:{base_layout}", "--offline", "--from", base_layout.with_name("wheels"))

    def scene(output: str) -> Scene:
        def trusted() -> None:
            right_wheels(faulty.folder / "cache")
            right_blobs(faulty.folder / "cache" / "oci", faulty.folder / output)

        return Scene(faulty, (*argv, "--no-bytecode", "--jobs", 1, "--output", output), trusted)

    return scene


@pytest.fixture
def patching(faulty: Faulty) -> Callable[[str], Scene]:
    """``patching("apply" or "revert")``: two patches of three files of a distribution."""
    root = faulty.folder / "venv" / "lib" / "python3.11" / "site-packages"
    record = "demo-1.0.dist-info/RECORD"
    for path, data in {**FILES, record: record_of(FILES, record)}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (faulty.folder / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    chosen: list[object] = []
    for name, body in {"tables": TABLE_PATCH, "wrapper": WRAPPER_PATCH}.items():
        path = faulty.folder.with_name(f"{name}.toml")
        path.write_text(f'id = "{name}"\n{HEAD}\n{body}')
        chosen += ["--patch", path]
    states = [tree(root)]
    assert faulty("patch", "apply", "venv:venv", *chosen).code == 0
    states.append(tree(root))

    def trusted() -> None:
        now = {path: data for path, data in tree(root).items() if not path.startswith(JOURNAL)}
        if (root / JOURNAL / "journal.json").is_file():  # half-way, and every command of the tool says so
            assert faulty("patch", "status", "venv:venv", *chosen).code == 1
            assert all(data in (state.get(path) for state in states) for path, data in now.items())
        else:
            assert now in states

    def scene(verb: str) -> Scene:
        if verb == "apply":
            assert faulty("patch", "revert", "venv:venv").code == 0
        return Scene(faulty, ("patch", verb, "venv:venv", *(chosen if verb == "apply" else ())), trusted)

    return scene


@pytest.fixture
def importing(faulty: Faulty) -> Scene:
    """A bench goes into a log that holds one."""
    log, new = faulty.folder / "state" / "history.jsonl", faulty.folder.with_name("guidellm.json")
    new.write_text(json.dumps(GUIDELLM))
    old = read(FOUNDING)
    history.append(old, log)

    def logged(_: Path) -> set[str]:
        return {results.source for results in history.read_log(log)[0]}

    def trusted() -> None:
        assert old in history.read_log(log)[0]

    return Scene(faulty, ("history", "--import", new), trusted, logged)


SCENES = {
    "fetch": ("fetching",),
    "lock": ("locking",),
    "build layout": ("building", "layout"),
    "build archive.tar": ("building", "archive.tar"),
    "patch apply": ("patching", "apply"),
    "patch revert": ("patching", "revert"),
    "history": ("importing",),
    "cache prune": ("pruning",),
    "pull": ("pulling",),
    "push": ("pushing",),
}
"""The fixture of each command, and what it is called with."""


@pytest.fixture(params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    """Each of them in turn; its test's parameter names it."""
    name, *arguments = SCENES[request.param]
    made = request.getfixturevalue(name)
    return made(*arguments) if arguments else made
