from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack_builder.errors import UsageError
from stack_builder.image import output
from stack_builder.image.build import Built, build
from stack_builder.image.subject import Subject
from stack_builder.image.verify import check_layout_version, compare, find_receipt, needs_layers, open_image, rebuild
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.progress import Silent
from stack_builder.report import Report, Target
from stack_builder.stack import receipt as receipts

MakeWheel = Callable[..., Path]
SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.fixture
def wheels(make_wheel: MakeWheel) -> dict[str, Path]:
    numbers = "\n".join(f"value_{number} = {number * 7919 % 1000}" for number in range(5000)).encode()
    made = [
        make_wheel("sglang", {"sglang/__init__.py": b"", "sglang/big.py": numbers, "sglang/last.py": numbers[::-1]}),
        make_wheel("tqdm", {f"tqdm/part{number}.py": b"x = %d\n" % number for number in range(50)}),
    ]
    return {path.name: path for path in made}


@pytest.fixture
def built(wheels: dict[str, Path], base_layout: Path, kit: SimpleNamespace, tmp_path: Path) -> Built:
    records = tuple(sorted((kit.wheel_record(path) for path in wheels.values()), key=lambda record: record.name))
    subject = Subject("demo", "A demo", "3.11", "linux_x86_64", "13.0", "sm_120", "0" * 64, records, ())
    options = Options(base=f"oci:{base_layout}", bytecode=False, jobs=1)
    made = build(subject, wheels, options, Workspace(tmp_path / "cache"), Silent())
    for name in ("image", "image.tar"):
        output.write(made, output.parse(str(tmp_path / name)), Workspace(tmp_path / "cache").blobs, Silent())
    return made


def verify(path: Path, wheels: dict[str, Path], tmp_path: Path, *, quick: bool = False) -> Report:
    space, scratch = Workspace(tmp_path / "cache"), Workspace(tmp_path / "scratch")
    scratch.root.mkdir()
    with open_image(Target("oci", str(path))) as opened:
        receipt = find_receipt(opened, None, space)
        if quick:
            return compare(opened, receipt, None, None)
        again = rebuild(receipt, wheels, space, scratch, 1, Silent(), keep=False)
        report = compare(opened, receipt, again, scratch.blobs)
        if needs_layers(report):
            again = rebuild(receipt, wheels, space, scratch, 1, Silent(), keep=True)
            report = compare(opened, receipt, again, scratch.blobs)
        return report


def layer_blob(built: Built, tmp_path: Path, holds: str) -> Path:
    digest = next(each.digest for each in built.receipt.layers if holds in each.holds)
    path = tmp_path / "image/blobs/sha256" / digest.removeprefix("sha256:")
    private = path.read_bytes()  # not the cache's own bytes behind the hard link
    path.unlink()
    path.write_bytes(private)
    return path


@pytest.mark.parametrize("form", ["image", "image.tar"])
def test_an_image_is_what_its_receipt_says(form: str, built: Built, wheels: dict[str, Path], tmp_path: Path) -> None:
    report = verify(tmp_path / form, wheels, tmp_path)
    assert report.findings == ()
    assert report.skipped == ()
    assert report.facts["rebuilt"] == built.image.manifest_digest


def as_saved(built: Built, tmp_path: Path) -> Path:
    """What ``docker save`` of Docker 28 writes of a classic store: plain layers, and a manifest without annotations."""
    blobs = tmp_path / "saved/blobs/sha256"
    blobs.mkdir(parents=True)

    def add(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    def blob(digest: str) -> bytes:
        return (tmp_path / "image/blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()

    layers = [add(gzip.decompress(blob(each.digest)), "layer.v1.tar") for each in built.receipt.layers]
    config = add(blob(built.image.config_digest), "config.v1+json")
    index = [add(json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode(), "manifest.v1+json")]
    (tmp_path / "saved/index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": index}))
    return tmp_path / "saved"


def test_an_image_of_a_classic_store_is_compared_by_its_configuration(
    built: Built, wheels: dict[str, Path], tmp_path: Path
) -> None:
    report = verify(as_saved(built, tmp_path), wheels, tmp_path)
    assert report.findings == ()
    assert report.facts["rebuilt"] == built.image.manifest_digest


def test_a_flipped_byte_of_a_classic_store_is_found(built: Built, wheels: dict[str, Path], tmp_path: Path) -> None:
    layer = next(each for each in built.receipt.layers if "sglang 1.0" in each.holds)
    saved = as_saved(built, tmp_path)
    blob = saved / "blobs/sha256" / layer.diff_id.removeprefix("sha256:")
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    report = verify(saved, wheels, tmp_path)
    assert [(finding.rule, finding.distribution) for finding in report.findings] == [("IMG001", layer.title)]


@pytest.mark.parametrize("name", ["sglang/big.py", "sglang/last.py", "tqdm/part31.py"])
def test_a_flipped_byte_is_named_by_layer_and_file(
    name: str, built: Built, wheels: dict[str, Path], tmp_path: Path
) -> None:
    holds = f"{name.partition('/')[0]} 1.0"
    blob = layer_blob(built, tmp_path, holds)
    data = bytearray(blob.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as archive:
        content = archive.extractfile(f"{SITE.strip('/')}/{name}")
        assert content is not None
        plain = content.read()
    if (at := bytes(data).find(plain)) < 0:  # deflated: its member is found by its CRC, which stands at its end
        at = bytes(data).find(zlib.crc32(plain).to_bytes(4, "little") + len(plain).to_bytes(4, "little")) - 100
    assert at > 0
    data[at] ^= 1
    blob.write_bytes(data)
    report = verify(tmp_path / "image", wheels, tmp_path)
    assert [(finding.rule, finding.object) for finding in report.findings] == [("IMG001", f"{SITE}/{name}")]
    title = next(layer.title for layer in built.receipt.layers if holds in layer.holds)
    assert report.findings[0].distribution == title


def test_without_a_rebuild_the_layer_is_named(built: Built, wheels: dict[str, Path], tmp_path: Path) -> None:
    blob = layer_blob(built, tmp_path, "sglang 1.0")
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 255
    blob.write_bytes(data)
    report = verify(tmp_path / "image", wheels, tmp_path, quick=True)
    assert [(finding.rule, finding.object) for finding in report.findings] == [("IMG001", "sglang 1.0")]
    assert {skipped.rule for skipped in report.skipped} == {"IMG002", "IMG003"}


def change(member: tarfile.TarInfo, data: bytes, field: str) -> bytes:
    match field:
        case "mode":
            member.mode = 0o666
        case "time":
            member.mtime += 1
        case "owner":
            member.uid = 1000
        case "content":
            data = data.replace(b"5", b"6", 1)
    return data


@pytest.mark.parametrize("field", ["content", "mode", "time", "owner", "presence"])
def test_a_layer_that_was_changed_is_named_by_file_and_field(
    field: str, built: Built, wheels: dict[str, Path], kit: SimpleNamespace, tmp_path: Path
) -> None:
    """An image that somebody opened, changed and closed: all its digests agree with each other."""
    target = f"{SITE.strip('/')}/sglang/big.py"
    number = next(n for n, layer in enumerate(built.receipt.layers) if "sglang 1.0" in layer.holds)
    blobs = tmp_path / "image/blobs/sha256"
    plain = gzip.decompress((blobs / built.receipt.layers[number].digest.removeprefix("sha256:")).read_bytes())
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(plain)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            content = old.extractfile(member)
            data = content.read() if content else b""
            if member.name == target:
                if field == "presence":
                    continue
                data = change(member, data, field)
            new.addfile(member, io.BytesIO(data))
    index = json.loads((tmp_path / "image/index.json").read_bytes())
    manifest = json.loads((blobs / index["manifests"][0]["digest"].removeprefix("sha256:")).read_bytes())

    def add(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return f"sha256:{digest}"

    manifest["layers"][number]["digest"] = add(gzip.compress(out.getvalue()))
    index["manifests"][0]["digest"] = add(json.dumps(manifest).encode())
    (tmp_path / "image/index.json").unlink()
    (tmp_path / "image/index.json").write_text(json.dumps(index))
    report = verify(tmp_path / "image", wheels, tmp_path)
    found = {(finding.rule, finding.object) for finding in report.findings}
    assert ("IMG004", None) in found
    assert ("IMG002", f"/{target}") in found
    details = [finding.detail for finding in report.findings if finding.object == f"/{target}"]
    assert [detail for detail in details if f": {field} is " in detail] == details
    assert ("IMG003", f"manifest.layers[{number}].digest") in found


def test_the_cache_is_not_asked(built: Built, wheels: dict[str, Path], tmp_path: Path) -> None:
    """A layer that is wrong in the cache and in the image alike is still found."""
    digest = next(each.digest for each in built.receipt.layers if "sglang 1.0" in each.holds).removeprefix("sha256:")
    for folder in ("cache/oci", "image"):
        blob = tmp_path / folder / "blobs/sha256" / digest
        data = bytearray(blob.read_bytes())
        data[-20] ^= 1
        blob.unlink()
        blob.write_bytes(data)
    report = verify(tmp_path / "image", wheels, tmp_path)
    assert [finding.rule for finding in report.findings] == ["IMG001"]


def test_without_a_receipt_nothing_can_be_said(built: Built, wheels: dict[str, Path], tmp_path: Path) -> None:
    for path in (tmp_path / "cache/receipts").iterdir():
        path.unlink()
    (tmp_path / "image" / output.RECEIPT).unlink()
    with pytest.raises(UsageError, match="has no receipt"):
        verify(tmp_path / "image", wheels, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 99}'])
def test_a_malformed_receipt_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "receipt").write_text(text)
    with pytest.raises(UsageError):
        receipts.load(tmp_path / "receipt")


def test_another_layout_version_is_not_compared(built: Built) -> None:
    check_layout_version(built.receipt)
    with pytest.raises(UsageError, match="built with image layout 999"):
        check_layout_version(replace(built.receipt, layout=999))
