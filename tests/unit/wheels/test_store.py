"""The store: nothing in it that was not hashed, and no work lost."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.wheels.store import StoppedError, Store, hash_file

NAME = "demo-1.0-py3-none-any.whl"
DATA = random.Random(7).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, data: bytes = DATA, commit: bool = True) -> None:
    with store.part(SHA256, NAME, len(DATA), threading.Event()) as part:
        assert part is not None
        part.append(data[part.size :])
        if commit:
            part.commit()


def test_stores_and_finds(store: Store) -> None:
    assert store.find(SHA256, NAME, len(DATA)) is None
    put(store)
    path = store.find(SHA256, NAME, len(DATA))
    assert path is not None
    assert path.read_bytes() == DATA
    assert path.name == NAME
    assert path.stat().st_mode & 0o777 == 0o444
    assert sorted(p.name for p in path.parent.iterdir()) == [".checked", NAME]


def test_a_part_is_continued_after_being_hashed_again(store: Store) -> None:
    put(store, DATA[:1000], commit=False)
    assert store.part_size(SHA256, NAME) == 1000
    assert store.find(SHA256, NAME, len(DATA)) is None
    put(store)
    assert store.verify(SHA256, NAME)


def test_wrong_bytes_never_arrive(store: Store) -> None:
    wrong = DATA[:-1] + b"x"
    with pytest.raises(IntegrityError, match=hashlib.sha256(wrong).hexdigest()):
        put(store, wrong)
    assert store.find(SHA256, NAME, len(DATA)) is None
    assert store.part_size(SHA256, NAME) == 0


def test_the_name_alone_is_not_believed(store: Store) -> None:
    path = store.path(SHA256, NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA[:-1])
    assert store.find(SHA256, NAME, len(DATA)) is None
    path.write_bytes(DATA[:-1] + b"x")
    assert store.find(SHA256, NAME, None) is None
    assert not store.verify(SHA256, NAME)
    assert not path.exists()
    put(store)
    assert store.find(SHA256, NAME, None) is not None


@pytest.mark.parametrize(
    ("sha256", "name"),
    [
        ("../../etc", NAME),
        (SHA256.upper(), NAME),
        (hashlib.sha256(b"").hexdigest(), NAME),
        (SHA256, "../evil-1-py3-none-any.whl"),
        (SHA256, "evil.sh"),
    ],
)
def test_refuses_keys_that_are_none(store: Store, sha256: str, name: str) -> None:
    with pytest.raises(UsageError):
        store.path(sha256, name)


def test_takes_a_file_as_a_link_and_leaves_the_source_alone(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source.whl"
    source.write_bytes(DATA)
    source.chmod(0o640)
    path = store.add_file(source, SHA256, NAME)
    assert path.samefile(source)
    assert source.stat().st_mode & 0o777 == 0o640
    other = tmp_path / "other.whl"
    other.write_bytes(b"something else")
    with pytest.raises(IntegrityError, match=r"other\.whl: sha256 is"):
        Store(tmp_path / "second").add_file(other, SHA256, NAME)
    assert not list((tmp_path / "second").rglob("*.whl"))


def test_copies_where_links_are_not_possible(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    source = tmp_path / "source.whl"
    source.write_bytes(DATA)
    path = store.add_file(source, SHA256, NAME)
    assert not path.samefile(source)
    assert path.read_bytes() == DATA


_HOLD = """
import sys, threading
from pathlib import Path
from stack_builder.wheels.store import Store
with Store(Path(sys.argv[1])).part(sys.argv[2], sys.argv[3], 300000, threading.Event()) as part:
    print("held", flush=True)
    sys.stdin.readline()
    part.append(bytes.fromhex(sys.stdin.readline()))
    part.commit()
"""


def test_waits_for_another_process_and_uses_its_work(store: Store) -> None:
    command = [sys.executable, "-c", _HOLD, str(store.root), SHA256, NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        stop = threading.Event()
        stop.set()
        with pytest.raises(StoppedError), store.part(SHA256, NAME, len(DATA), stop):
            pass
        got: list[object] = []

        def wait() -> None:
            with store.part(SHA256, NAME, len(DATA), threading.Event()) as part:
                got.append(part)

        waiter = threading.Thread(target=wait)
        waiter.start()
        holder.stdin.write(f"\n{DATA.hex()}\n")
        holder.stdin.flush()
        waiter.join(20)
    assert got == [None]
    path = store.find(SHA256, NAME, None)
    assert path is not None
    assert sorted(p.name for p in path.parent.iterdir()) == [".checked", NAME]


def overwritten(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(data)


def test_a_wheel_that_was_overwritten_in_place_is_found_no_more(store: Store) -> None:
    put(store)
    path = store.path(SHA256, NAME)
    overwritten(path, b"xx")
    assert path.stat().st_size == len(DATA)
    assert store.find(SHA256, NAME, len(DATA)) is None
    put(store)
    assert path.read_bytes() == DATA


def test_a_wheel_is_hashed_again_only_where_it_is_not_what_was_checked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)
    path = store.path(SHA256, NAME)
    hashed: list[Path] = []
    real = hash_file
    monkeypatch.setattr("stack_builder.wheels.store.hash_file", lambda each: (hashed.append(each), real(each))[1])
    assert store.find(SHA256, NAME, len(DATA)) == path
    assert hashed == []
    overwritten(path, DATA[100:102])  # as it was, at another time
    for _ in range(2):
        assert store.find(SHA256, NAME, len(DATA)) == path
        assert hashed == [path]
    path.with_name(".checked").unlink()  # a store of before there were notes
    assert store.find(SHA256, NAME, len(DATA)) == path
    assert hashed == [path, path]
