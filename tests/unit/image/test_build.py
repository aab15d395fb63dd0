"""Whole images from wheels of a few bytes: the same digest whatever varies, another one for what must count."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.image import output
from stack_builder.image.build import Built, build, forecast
from stack_builder.image.subject import Rule, Subject
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.progress import Silent
from stack_builder.stack import receipt as receipts
from stack_builder.wheels.store import Store

MakeWheel = Callable[..., Path]
LIBRARY = b"\x7fELF" + bytes(3000)


@pytest.fixture
def wheels(make_wheel: MakeWheel) -> dict[str, Path]:
    made = [
        make_wheel("torch", {"torch/__init__.py": b"", "torch/lib/libtorch.so": LIBRARY}),
        make_wheel("nvidia_cuda_runtime", {"nvidia/cu13/lib/libcudart.so.13": LIBRARY}),
        make_wheel("sglang", {"sglang/__init__.py": b"x = 1\n" * 500}),
        make_wheel("tqdm", {"tqdm.py": b"y = 2\n"}),
    ]
    return {path.name: path for path in made}


@pytest.fixture
def subject(wheels: dict[str, Path], kit: SimpleNamespace) -> Subject:
    return subject_of(wheels, kit)


def subject_of(wheels: dict[str, Path], kit: SimpleNamespace, *rules: Rule) -> Subject:
    records = sorted((kit.wheel_record(path) for path in wheels.values()), key=lambda record: record.name)
    return Subject("demo", "A demo", "3.11", "linux_x86_64", "13.0", "sm_120", "0" * 64, tuple(records), rules)


@pytest.fixture
def options(base_layout: Path) -> Options:
    return Options(base=f"oci:{base_layout}", bytecode=False, jobs=1)


def run(subject: Subject, wheels: dict[str, Path], options: Options, cache: Path) -> Built:
    return build(subject, wheels, options, Workspace(cache), Silent())


def layers(built: Built) -> dict[str, str]:
    """What holds what: digest by the wheels in a layer, or by its title."""
    return {" ".join(layer.holds) or layer.title: layer.digest for layer in built.receipt.layers}


SCRIPT = """
import os, sys, time
from pathlib import Path
os.umask(int(sys.argv[3], 8))
from stack_builder.image.build import build
from stack_builder.image.wheel_layers import Options
from stack_builder.image.subject import Subject
from stack_builder.image.workspace import Workspace
from stack_builder.progress import Silent
from stack_builder.stack.receipt import WheelRecord

def main():
    wheels = {path.name: path for path in map(Path, sys.argv[5:])}
    import hashlib
    records = sorted(
        (
            WheelRecord(n.split("-")[0].replace("_", "-"), "1.0", n, hashlib.sha256(p.read_bytes()).hexdigest(),
                        p.stat().st_size, "default")
            for n, p in wheels.items()
        ),
        key=lambda record: record.name,
    )
    subject = Subject("demo", "A demo", "3.11", "linux_x86_64", "13.0", "sm_120", "0" * 64, tuple(records), ())
    options = Options(base="oci:" + sys.argv[2], bytecode=False, jobs=int(sys.argv[4]))
    print(build(subject, wheels, options, Workspace(Path(sys.argv[1])), Silent()).image.manifest_digest)

if __name__ == "__main__":
    main()
"""


def test_folder_umask_zone_locale_hash_seed_and_cores_do_not_show(
    subject: Subject, wheels: dict[str, Path], options: Options, base_layout: Path, tmp_path: Path
) -> None:
    first = run(subject, wheels, options, tmp_path / "one").image.manifest_digest
    elsewhere = tmp_path / "quite another place"
    elsewhere.mkdir()
    shutil.copytree(base_layout, elsewhere / "base")
    script = elsewhere / "script.py"
    script.write_text(SCRIPT)
    paths = []
    for path in reversed(wheels.values()):  # copies with another time and mode
        copy = elsewhere / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
        os.utime(copy, (1, 1))
        paths.append(copy)
    environment = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(elsewhere)}
    argv = [sys.executable, str(script), str(elsewhere / "cache"), str(base_layout), "077", "3", *map(str, paths)]
    done = subprocess.run(argv, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == first


def test_a_second_build_writes_nothing(
    subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path
) -> None:
    first = run(subject, wheels, options, tmp_path)
    second = run(subject, wheels, options, tmp_path)
    assert len(first.written) == len(first.receipt.layers) - 1  # the base's is no layer of ours
    assert second.written == ()
    assert second.receipt == first.receipt


def test_one_changed_wheel_changes_one_layer(
    subject: Subject,
    wheels: dict[str, Path],
    options: Options,
    kit: SimpleNamespace,
    make_wheel: MakeWheel,
    tmp_path: Path,
) -> None:
    before = layers(run(subject, wheels, options, tmp_path))
    changed = dict(wheels)
    del changed["tqdm-1.0-py3-none-any.whl"]
    newer = make_wheel("tqdm", {"tqdm.py": b"y = 3\n"}, version="1.1")
    changed[newer.name] = newer
    built = run(subject_of(changed, kit), changed, options, tmp_path)
    after = layers(built)
    assert {name for name in after if after[name] != before.get(name)} == {"tqdm 1.1"}
    assert len(built.written) == 1


def test_the_manifest_and_the_blobs_agree(
    subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path
) -> None:
    built = run(subject, wheels, options, tmp_path)
    store = Workspace(tmp_path).blobs
    manifest = json.loads(store.path(built.image.manifest_digest).read_bytes())
    config = json.loads(store.path(manifest["config"]["digest"]).read_bytes())
    for descriptor in (manifest["config"], *manifest["layers"]):
        assert store.path(descriptor["digest"]).stat().st_size == descriptor["size"]
        assert store.intact(descriptor["digest"])
    tars = [
        subprocess.run(["gzip", "-dc", store.path(layer["digest"])], stdout=subprocess.PIPE, check=True).stdout
        for layer in manifest["layers"]
    ]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]
    assert config["created"] == "2025-01-01T00:00:00Z"
    variables = dict(variable.split("=", 1) for variable in config["config"]["Env"])
    site = "/opt/venv/lib/python3.11/site-packages"
    assert variables["FROM_BASE"] == "yes"
    assert variables["PATH"] == f"/opt/venv/bin:{site}/nvidia/cu13/bin:/usr/bin"
    assert variables["CUDA_HOME"] == f"{site}/nvidia/cu13"
    assert variables["LD_LIBRARY_PATH"] == f"{site}/nvidia/cu13/lib:{site}/torch/lib"
    assert config["config"]["Labels"]["dev.stackb.lock"] == "0" * 64


def test_the_image_holds_the_winners_bytes_whatever_the_order_of_layers(
    options: Options, kit: SimpleNamespace, make_wheel: MakeWheel, tmp_path: Path
) -> None:
    made = [make_wheel("aaa", {"shared.txt": b"a"}), make_wheel("zzz", {"shared.txt": b"z"})]
    wheels = {path.name: path for path in made}
    with pytest.raises(IntegrityError, match="ship different bytes"):
        run(subject_of(wheels, kit), wheels, options, tmp_path)
    for winner, byte in (("aaa", b"a"), ("zzz", b"z")):
        rule = Rule(frozenset({"aaa", "zzz"}), winner, "tested")
        built = run(subject_of(wheels, kit, rule), wheels, options, tmp_path)
        root = tmp_path / winner
        root.mkdir()
        for layer in built.image.layers:
            blob = Workspace(tmp_path).blobs.path(layer.digest)
            subprocess.run(["tar", "-xzf", blob, "-C", root], check=True)
        assert (root / "opt/venv/lib/python3.11/site-packages/shared.txt").read_bytes() == byte
        assert [(d.winner, d.paths) for d in built.receipt.decisions] == [(winner, 1)]


def test_a_wheel_that_is_not_the_locked_one_is_refused(
    subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path
) -> None:
    other = tuple(replace(record, sha256="1" * 64) if record.name == "tqdm" else record for record in subject.wheels)
    with pytest.raises(IntegrityError, match=f"the lock says {'1' * 64}"):
        run(replace(subject, wheels=other), wheels, options, tmp_path)


def test_a_base_without_this_python_is_refused(
    subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack_builder.image.build.can_enter", lambda: None)
    wanting = replace(subject, python="3.12")
    with pytest.raises(UsageError, match=r"has no /usr/bin/python3\.12"):
        run(wanting, wheels, replace(options, bytecode=True), tmp_path)


def test_where_programs_of_the_base_cannot_run_the_option_is_named(
    subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack_builder.image.build.can_enter", lambda: "not root, and user namespaces are not allowed")
    with pytest.raises(UsageError, match=r"not root.*--no-bytecode"):
        run(subject, wheels, replace(options, bytecode=True), tmp_path)


def test_a_forecast_changes_nothing_and_comes_true(
    subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path
) -> None:
    space, store = Workspace(tmp_path / "cache"), Store(tmp_path / "wheels-store")
    before = forecast(subject, store, options, space, Silent())
    assert before.fetch == 4
    assert not space.root.exists()
    for record in subject.wheels:
        store.add_file(wheels[record.filename], record.sha256, record.filename)
    built = run(subject, wheels, options, space.root)
    assert set(built.written) == {*before.write, "virtual environment", "linker and toolkit"}
    after = forecast(subject, store, options, space, Silent())
    assert (after.fetch, after.fetch_bytes, after.write, after.reuse) == (0, 0, (), len(before.write))


def test_the_receipt_says_it_all_and_reads_back(
    subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path
) -> None:
    built = run(subject, wheels, options, tmp_path)
    place = output.parse(str(tmp_path / "out"))
    output.write(built, place, Workspace(tmp_path).blobs, Silent())
    read = receipts.load(tmp_path / "out" / output.RECEIPT)
    assert read == built.receipt
    assert [wheel.sha256 for wheel in read.wheels] == [wheel.sha256 for wheel in subject.wheels]
    index = json.loads((tmp_path / "out" / "index.json").read_bytes())
    assert index["manifests"][0]["digest"] == read.manifest_digest
    blobs = {path.name for path in (tmp_path / "out/blobs/sha256").iterdir()}
    assert blobs == {digest.removeprefix("sha256:") for digest in built.image.digests}


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_an_output_is_the_same_twice(
    kind: str, subject: Subject, wheels: dict[str, Path], options: Options, tmp_path: Path
) -> None:
    built = run(subject, wheels, options, tmp_path)
    names = [str(tmp_path / f"out-{number}{'.tar' if kind == 'archive' else ''}") for number in (1, 2)]
    for name in names:
        output.write(built, output.parse(name), Workspace(tmp_path).blobs, Silent())
    assert subprocess.run(["diff", "--recursive", *names], check=False).returncode == 0


@pytest.mark.parametrize("text", ["docker:Upper", "docker:", "docker:a b", "docker:-x"])
def test_a_malformed_tag_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an image name"):
        output.parse(text)


def test_an_empty_output_is_no_place() -> None:
    with pytest.raises(UsageError, match="--output: is empty"):
        output.parse("")


def test_a_folder_with_other_things_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="other things"):
        output.parse(str(tmp_path))
