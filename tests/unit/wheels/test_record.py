"""RECORD against the bytes."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from stack_builder.errors import IntegrityError
from stack_builder.wheels import record
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.layout import read_layout

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
Make = Callable[..., bytes]


def opened(data: bytes, name: str = NAME) -> WheelArchive:
    return WheelArchive(io.BytesIO(data), name)


def line(path: str, data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{path},{algorithm}={digest},{len(data)}\n"


def read(data: bytes, name: str = NAME) -> Mapping[str, record.RecordHash]:
    archive = opened(data, name)
    return record.read_record(archive, read_layout(archive))


def test_gives_what_is_promised_of_every_file_but_itself(make_wheel: Make) -> None:
    promised = read(make_wheel())
    assert set(promised) == {"demo/__init__.py", "demo-1.0.dist-info/METADATA", "demo-1.0.dist-info/WHEEL"}
    assert promised["demo/__init__.py"].digest == hashlib.sha256(b"x = 1\n").hexdigest()
    assert f"demo/__init__.py,{promised['demo/__init__.py'].text},6\n" == line("demo/__init__.py", b"x = 1\n")


def test_hashes_better_than_sha256_are_taken(make_wheel: Make) -> None:
    content = {"a.py": b"x", f"{INFO}/METADATA": b"Name: demo\n", f"{INFO}/WHEEL": WHEEL}
    text = "".join(line(path, data, "sha512") for path, data in content.items())
    promised = read(make_wheel(files={"a.py": b"x"}, metadata=b"Name: demo\n", record=text.encode()))
    assert {(path, each.digest) for path, each in promised.items()} == {
        (path, hashlib.sha512(data).hexdigest()) for path, data in content.items()
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.py,sha256=AAAA,1\n", "no hash, or a weak one, for a.py"),
        ("a.py,md5=1B2M2Y8AsgTpgAmY7PhCfg,0\n", "no hash, or a weak one, for a.py"),
        ("a.py,,\n", "no hash, or a weak one, for a.py"),
        ("a.py,sha256=AAAAA,1\n", "hash is not base64"),
        (line("a.py", b"") + line("a.py", b""), "listed twice"),
        (line("gone.py", b""), "does not list demo"),
        ("a.py,,x\n", "no number"),
        ("a.py\n", "1 columns"),
        ("../a.py,,\n", "leaves the wheel"),
        ("/a.py,,\n", "absolute"),
        ("a\\b.py,,\n", "backslash"),
        ('"a.py,,\n', "malformed row"),
        ("\udcff", "RECORD: is not UTF-8"),
    ],
)
def test_refuses_malformed_records(make_wheel: Make, text: str, reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason):
        read(make_wheel(record=text.encode("utf-8", "surrogateescape")))


def test_refuses_a_record_of_more_than_the_wheel(make_wheel: Make) -> None:
    content = {"demo/__init__.py": b"x = 1\n", f"{INFO}/METADATA": b"Name: demo\n", f"{INFO}/WHEEL": WHEEL}
    rows = "".join(line(path, data) for path, data in content.items())
    make = partial(make_wheel, metadata=b"Name: demo\n")
    assert set(read(make(record=rows.encode()))) == set(content)
    with pytest.raises(IntegrityError, match=r"lists gone.py, which is not in the wheel \(1 in all\)"):
        read(make(record=(rows + line("gone.py", b"")).encode()))


def test_refuses_other_or_several_dist_infos(make_wheel: Make) -> None:
    with pytest.raises(IntegrityError, match="another distribution"):
        read_layout(opened(make_wheel(), "other-1.0-py3-none-any.whl"))
    with pytest.raises(IntegrityError, match=r"2 \.dist-info"):
        read_layout(opened(make_wheel(files={"x-1.dist-info/METADATA": b""})))
