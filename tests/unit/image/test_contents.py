"""What a wheel installs, held against PyPA's ``installer``."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

from stack_builder.errors import IntegrityError
from stack_builder.image.contents import Contents, Place, read
from stack_builder.wheels.record import hash_digest

MakeWheel = Callable[..., Path]

PLACE = Place("opt/venv", "3.11")
SITE = "opt/venv/lib/python3.11/site-packages"

EVERYTHING = {
    "demo/__init__.py": b"def main(): print('ran')\nclass App:\n    @staticmethod\n    def run(): print('app ran')\n",
    "demo/data/big.txt": b"0123456789" * 1000,
    "demo/tool": b"\x7fELF....",
    "demo-1.0.data/scripts/shebang": b"#!python -u\nprint('script ran')\n",
    "demo-1.0.data/scripts/native": b"\x7fELF....",
    "demo-1.0.data/data/share/man/man1/demo.1": b"manual",
    "demo-1.0.data/data/bin/from-data": b"#!/bin/sh\n",
    "demo-1.0.data/purelib/pure.py": b"x = 1\n",
    "demo-1.0.data/platlib/plat.py": b"x = 2\n",
    "demo-1.0.data/headers/demo.h": b"#define X\n",
    "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\ndemo-app = demo:App.run [extra]\n"
    b"[other]\nignored = demo:main\n",
}
SCRIPTS = "demo-1.0.data/scripts"
MODES = {
    "demo/tool": 0o777,
    f"{SCRIPTS}/native": 0o755,
    f"{SCRIPTS}/shebang": 0o755,
    "demo-1.0.data/data/bin/from-data": 0o744,
}


def tree(root: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in root.rglob("*")
        if path.is_file()
    }


def test_the_installed_files_are_those_of_installer(make_wheel: MakeWheel, tmp_path: Path) -> None:
    wheel = make_wheel("demo", EVERYTHING, modes=MODES)
    root = tmp_path / "root"
    prefix = root / "opt/venv"
    schemes = {
        "purelib": str(root / SITE),
        "platlib": str(root / SITE),
        "scripts": str(prefix / "bin"),
        "data": str(prefix),
        "headers": str(prefix / "include/site/python3.11/demo"),
    }
    with WheelFile.open(wheel) as source:
        install(
            source,
            SchemeDictionaryDestination(schemes, interpreter="/opt/venv/bin/python3", script_kind="posix"),
            {"INSTALLER": b"stackb\n"},
        )
    theirs = tree(root)
    # What stands in generated scripts differs between installers; that they run is tested below.
    own = {f"{SITE}/demo-1.0.dist-info/RECORD", "opt/venv/bin/demo", "opt/venv/bin/demo-app"}
    contents = read(wheel, wheel.name, PLACE)
    assert {file.path for file in contents.files} | {contents.record} == set(theirs)
    for file in contents.files:
        data, executable = theirs[file.path]
        assert file.mode == (0o755 if executable else 0o644), file.path
        if file.path not in own:
            algorithm, digest = hash_digest(file.hash)
            assert (algorithm, len(data)) == ("sha256", file.size)
            assert digest == hashlib.sha256(data).hexdigest(), file.path


@pytest.mark.parametrize(("script", "says"), [("demo", "ran"), ("demo-app", "app ran"), ("shebang", "script ran")])
def test_scripts_run(script: str, says: str, make_wheel: MakeWheel, tmp_path: Path) -> None:
    contents = read(make_wheel("demo", EVERYTHING), "demo-1.0-py3-none-any.whl", PLACE)
    text = next(file.text for file in contents.files if file.path == f"opt/venv/bin/{script}")
    assert text is not None
    assert text.splitlines()[0].split()[0] == "#!/opt/venv/bin/python3"
    (tmp_path / "demo.py").write_bytes(EVERYTHING["demo/__init__.py"])
    (tmp_path / "script").write_text(text)
    done = subprocess.run([sys.executable, "script"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == says


def test_bytecode_that_a_wheel_brings_is_left_out(make_wheel: MakeWheel) -> None:
    wheel = make_wheel("demo", {"demo.py": b"", "__pycache__/demo.cpython-311.pyc": b"whatever"})
    assert not [file for file in read(wheel, wheel.name, PLACE).files if "pycache" in file.path]


def test_contents_survive_the_cache(make_wheel: MakeWheel) -> None:
    contents = read(make_wheel("demo", EVERYTHING, modes=MODES), "demo-1.0-py3-none-any.whl", PLACE)
    assert Contents.from_json(contents.to_json()) == contents


@pytest.mark.parametrize(
    ("files", "record", "message"),
    [
        ({"a.py": b"x"}, lambda rows: rows.replace("a.py", "b.py"), "does not list a.py"),
        (
            {"a.py": b"x"},
            lambda rows: rows + f"ghost.py,sha256={'A' * 43},1\n",
            "lists ghost.py, which is not in the wheel",
        ),
        ({"a.py": b"x"}, lambda rows: rows.replace("a.py,sha256=", "a.py,md5="), "no hash, or a weak one, for a.py"),
        ({"a.py": b"x"}, lambda rows: rows + '"unfinished\n', "malformed row"),
        ({"demo-1.0.data/scripts/python3": b"x"}, None, "belongs to the environment"),
        ({"demo-1.0.data/data/pyvenv.cfg": b"x"}, None, "belongs to the environment"),
        ({"demo-1.0.data/nowhere/x": b"x"}, None, "in no scheme"),
        ({"other-2.dist-info/METADATA": b"x"}, None, "2 .dist-info folders"),
        ({"a.py": b"x", "demo-1.0.data/purelib/a.py": b"y"}, None, "two entries install to"),
        ({"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\nx = os; evil()\n"}, None, "no entry point"),
        ({"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\n../x = os:name\n"}, None, "no entry point"),
        ({"demo-1.0.dist-info/entry_points.txt": b"no section\n"}, None, "malformed"),
    ],
)
def test_a_wheel_that_is_not_in_order_is_refused(
    files: dict[str, bytes], record: object, message: str, make_wheel: MakeWheel
) -> None:
    wheel = make_wheel("demo", files, record=record)  # type: ignore[arg-type]
    with pytest.raises(IntegrityError, match=message) as caught:
        read(wheel, wheel.name, PLACE)
    assert "demo-1.0-py3-none-any.whl" in str(caught.value)


def test_a_wheel_of_another_name_is_refused(make_wheel: MakeWheel) -> None:
    wheel = make_wheel("demo", {"a.py": b""})
    with pytest.raises(IntegrityError, match="another distribution"):
        read(wheel, "torch-1.0-py3-none-any.whl", PLACE)
