"""Small images for the tests: layers from (path, content) rows, as OCI layouts and as one tar for docker load."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

Row = tuple[str, bytes | str | None]
"""Path with bytes of a file, the target of a link, or None for a directory; ``=PATH`` is a hard link."""

LAYERS: list[list[Row]] = [
    [
        ("usr", None),
        ("usr/lib", None),
        ("lib", "usr/lib"),
        ("usr/lib/libc.so.6", b"first libc"),
        ("usr/lib/again.so", "=usr/lib/libc.so.6"),
        ("opt/gone/a", b"a"),
        ("opt/gone/b", b"b"),
        ("opt/file", b"file"),
        ("opt/cleared/old", b"old"),
        ("opt/cleared/deep/older", b"older"),
        ("opt/turned", b"a file that becomes a directory"),
    ],
    [
        ("usr/lib/libc.so.6", b"second libc, longer"),
        ("opt/gone/.wh.a", b""),
        (".wh.nothing", b""),
        ("opt/.wh.file", b""),
        ("opt/cleared/new", b"new"),
        ("opt/cleared/.wh..wh..opq", b""),
        ("opt/turned/inside", b"inside"),
        ("usr/lib/libx.so", "libc.so.6"),
    ],
    [("opt/.wh.gone", b""), ("opt/gone2", b"!"), ("./opt/dotted", b"."), ("usr/lib/libx.so", b"no link any more")],
]


def layer_tar(rows: Sequence[Row]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in rows:
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            if content is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif isinstance(content, str):
                hard = content.startswith("=")
                member.type = tarfile.LNKTYPE if hard else tarfile.SYMTYPE
                member.linkname = content.removeprefix("=")
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_layout(folder: Path, layers: Sequence[bytes], *, pack: str = "gzip", machine: str = "amd64") -> Path:
    """Write an OCI layout; ``manifest.json`` beside ``index.json`` makes its tar loadable by Docker."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    packed = [gzip.compress(layer, mtime=0) if pack == "gzip" else layer for layer in layers]
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin", "LD_LIBRARY_PATH=/opt/a:/opt/b"], "Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
    }
    media = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if pack == "gzip" else "")
    rows = [{"mediaType": media, **blob(data)} for data in packed]
    config_row = {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(json.dumps(config).encode())}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_row,
        "layers": rows,
    }
    manifest_row = {"mediaType": manifest["mediaType"], **blob(json.dumps(manifest).encode())}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest_row]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    path = {str(row["digest"]): f"blobs/{str(row['digest']).replace(':', '/')}" for row in [config_row, *rows]}
    docker = [
        {"Config": path[str(config_row["digest"])], "RepoTags": None, "Layers": [path[str(r["digest"])] for r in rows]}
    ]
    (folder / "manifest.json").write_text(json.dumps(docker))
    return folder


def write_tar(layout: Path, path: Path, leave_out: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        for file in sorted(p for p in layout.rglob("*") if p.is_file() and p.name != leave_out):
            archive.add(file, str(file.relative_to(layout)))
    return path
