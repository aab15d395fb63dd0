"""RECORD against the bytes."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable

import pytest

from stack_builder.errors import IntegrityError
from stack_builder.wheels import record
from stack_builder.wheels.archive import WheelArchive

NAME = "demo-1.0-py3-none-any.whl"
Make = Callable[..., bytes]


def opened(data: bytes, name: str = NAME) -> WheelArchive:
    return WheelArchive(io.BytesIO(data), name)


def line(path: str, data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{path},{algorithm}={digest},{len(data)}\n"


def test_an_honest_wheel_has_no_differences(make_wheel: Make) -> None:
    archive = opened(make_wheel())
    lines = record.read_record(archive)
    assert record.verify(archive, lines) == ()
    assert lines.lines["demo/__init__.py"].digest == hashlib.sha256(b"x = 1\n").hexdigest()


def test_names_every_difference(make_wheel: Make) -> None:
    info = "demo-1.0.dist-info"
    text = (
        line("changed.py", b"AAAA")
        + line("longer.py", b"AAA")
        + line("absent.py", b"")
        + "unhashed.py,,\n"
        + f"{info}/RECORD,,\n"
        + line(f"{info}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "sha512")
    )
    files = {"changed.py": b"BBBB", "longer.py": b"AAAA", "unhashed.py": b"", "unlisted.py": b""}
    archive = opened(make_wheel(files=files, record=text.encode()))
    found = {(d.path, d.what.split(",")[0].split(" 6")[0]) for d in record.verify(archive, record.read_record(archive))}
    shas = hashlib.sha256(b"BBBB").hexdigest()
    assert ("absent.py", "is listed in RECORD but not in the wheel") in found
    assert ("unlisted.py", "is not listed in RECORD") in found
    assert ("unhashed.py", "is listed in RECORD without a hash") in found
    assert ("longer.py", "has 4 bytes") in found
    assert ("changed.py", f"has sha256 {shas}") in found
    assert {path for path, _ in found} == {
        *("absent.py", "unlisted.py", "unhashed.py", "longer.py", "changed.py", f"{info}/METADATA"),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a.py,sha256=AAAA,1\n", "sha256 or better"),
        ("a.py,md5=1B2M2Y8AsgTpgAmY7PhCfg,0\n", "sha256 or better"),
        ("a.py,,x\n", "no number"),
        ("a.py\n", "1 columns"),
        ("../a.py,,\n", "leaves the wheel"),
        ("/a.py,,\n", "absolute"),
        ("a.py,,\na.py,,\n", "listed twice"),
        ('"a.py,,\n', "malformed RECORD"),
        ("\udcff", "malformed RECORD"),
    ],
)
def test_refuses_malformed_records(make_wheel: Make, text: str, reason: str) -> None:
    archive = opened(make_wheel(record=text.encode("utf-8", "surrogateescape")))
    with pytest.raises(IntegrityError, match=reason):
        record.read_record(archive)


def test_refuses_other_or_several_dist_infos(make_wheel: Make) -> None:
    with pytest.raises(IntegrityError, match="another distribution"):
        record.dist_info(opened(make_wheel(), "other-1.0-py3-none-any.whl"))
    with pytest.raises(IntegrityError, match=r"2 \.dist-info"):
        record.dist_info(opened(make_wheel(files={"x-1.dist-info/METADATA": b""})))
