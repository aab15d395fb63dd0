"""Images: written by stackb, by BuildKit with uv or pip in a Dockerfile, and by buildah, from the same wheels.

One run gives one row per way, on this machine and its present load: repeat it, and read wall times with that in mind.
The wheels are in the store and the base is made and imported before any clock starts; hashing the wheels is part of
every way. ``--set core`` takes torch's closure with sglang-kernel and flashinfer (some 3 GB), ``full`` the whole
stack, and ``small`` a few wheels, to try the benchmark itself.

    python benchmarks/image.py --set core --ways stackb,stackb-docker,buildkit-uv,buildkit-pip,buildah
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import docker

from stack_builder import resources
from stack_builder.image import daemon, oci
from stack_builder.image.ahead import Ahead
from stack_builder.image.base.model import BaseRequest, architecture
from stack_builder.image.base.providers import choose, source
from stack_builder.image.build import build
from stack_builder.image.subject import Subject
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.progress import Lines
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.wheels.store import Store

SETS = {
    "core": ("torch", "sglang-kernel", "flashinfer-python"),
    "small": ("numpy", "nvidia-cuda-nvrtc", "cuda-bindings", "fsspec"),
    "full": ("sglang",),
}
SMALL_PIN = "fsspec"
BASE_TAG = "stackb-bench:base"
TAG = "stackb-bench:image"

DOCKERFILE = """\
FROM {base}
RUN --mount=type=bind,target=/context {command}
"""
# uv's cache on the same file system and gone in the same step: hard links in place of a second copy of every file.
UV = (
    "/context/uv venv --quiet --python /usr/bin/python3.11 /opt/venv && VIRTUAL_ENV=/opt/venv UV_CACHE_DIR=/opt/cache "
    "UV_LINK_MODE=hardlink /context/uv pip sync --quiet --no-index --find-links /context/wheels --require-hashes "
    "{bytecode} /context/requirements.txt && rm -rf /opt/cache"
)
PIP = (
    "python3.11 -m venv --without-pip /opt/venv && /opt/venv/bin/python /context/pip.whl/pip install --quiet "
    "--no-index --no-deps --find-links /context/wheels --require-hashes {bytecode} -r /context/requirements.txt"
)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Seconds of the clock; seconds of the processors and memory of the largest process in MB, a daemon's left out; the
    machine's load average (1 minute) at the end.
    """

    way: str
    wall_s: float
    cpu_s: float
    rss_mb: int
    load: float
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """What all ways share."""

    subject: Subject
    wheels: dict[str, Path]
    base: str
    scratch: Path
    shared: Workspace
    bytecode: bool

    @property
    def large_pin(self) -> str:
        """The kernel wheel, which changes with every release; where it is not in the set, the largest."""
        largest = max(self.subject.wheels, key=lambda wheel: wheel.size).name
        return next((w.name for w in self.subject.wheels if w.name == "sglang-kernel"), largest)

    def context(self) -> Path:
        """A build context: wheels, requirements with hashes, uv, pip."""
        folder = self.scratch / "context"
        if not folder.exists():
            (folder / "wheels").mkdir(parents=True)
            for path in self.wheels.values():
                os.link(path, folder / "wheels" / path.name)
            lines = (f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in self.subject.wheels)
            (folder / "requirements.txt").write_text("".join(lines))
            shutil.copy(Path(sys.executable).with_name("uv"), folder / "uv")
            pip = next(Path(sys.prefix).glob("lib/python*/site-packages/pip"))
            shutil.make_archive(str(folder / "pip"), "zip", pip.parent, "pip")
            (folder / "pip.zip").rename(folder / "pip.whl")
        return folder


def main() -> None:
    """Measure and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack")
    parser.add_argument("--set", choices=tuple(SETS), default="core")
    parser.add_argument("--ways", default="stackb,stackb-docker,buildkit-uv")
    parser.add_argument("--bytecode", action="store_true", help="compile in every way")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=resources.cache()) as scratch:
        bench = prepare(arguments.stack, SETS[arguments.set], arguments.bytecode, Path(scratch))
        total = sum(w.size for w in bench.subject.wheels) / 1e9
        print(f"{len(bench.subject.wheels)} wheels, {total:.2f} GB, bytecode {bench.bytecode}, {os.cpu_count()} cores")
        print(f"{'way':<44}{'wall s':>8}{'CPU s':>8}{'MB':>6}{'load':>6}  note", flush=True)
        rows = []
        for way in arguments.ways.split(","):
            for row in WAYS[way](bench):
                rows.append(row)
                numbers = f"{row.wall_s:>8.1f}{row.cpu_s:>8.1f}{row.rss_mb:>6}{row.load:>6.1f}"
                print(f"{row.way:<44}{numbers}  {row.note[:80]}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def prepare(stack: str | None, roots: Iterable[str], bytecode: bool, scratch: Path) -> Bench:
    """Read the stack and take what the roots need."""
    folder = stack_file.find(stack)
    spec, lock = stack_file.load(folder), lock_file.load(folder)
    wanted, size = set(roots), 0
    while len(wanted) != size:
        size = len(wanted)
        wanted |= {a.name for a in lock.artifacts if wanted & set(a.via)}
    lock = replace(lock, artifacts=tuple(a for a in lock.artifacts if a.name in wanted))
    store, shared = Store(), Workspace(resources.cache())
    wheels = {}
    for artifact in lock.artifacts:
        path = store.find(artifact.sha256 or "", artifact.filename, artifact.size)
        if path is None:
            sys.exit(f"{artifact.filename} is not in the store: run stackb fetch first")
        wheels[artifact.filename] = path
    subject = Subject.of_stack(spec, lock, spec.stack.gpu[0], files=wheels)
    return Bench(subject, wheels, source(spec.base), scratch, shared, bytecode)


def cache_with_base(bench: Bench, name: str) -> Workspace:
    """A new cache that has the base and nothing else."""
    space = Workspace(bench.scratch / name)
    provider, recipe = choose(bench.base)
    base = provider.provide(base_request(bench, recipe))
    space.root.mkdir()
    for folder in ("base", "debs"):
        subprocess.run(["cp", "-al", bench.shared.root / folder, space.root / folder], check=True)
    for layer in base.layers:
        path = space.blobs.path(layer.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(bench.shared.blobs.path(layer.digest), path)
    return space


def measured(way: str, work: Callable[..., str], *arguments: object) -> Row:
    """Run ``work`` in a process of its own, whose children count too."""
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, work(*arguments).encode())
            os._exit(0)
        except BaseException as error:
            os.write(write, f"failed: {error}".encode()[:4000])
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        note = pipe.read()
    _, _, usage = os.wait4(child, 0)
    return Row(
        way,
        time.monotonic() - started,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss // 1024,
        os.getloadavg()[0],
        note,
    )


def changed(bench: Bench, name: str) -> tuple[Subject, dict[str, Path]]:
    """The same stack with another build of one wheel: it holds one module more."""
    old = next(w for w in bench.subject.wheels if w.name == name)
    path = bench.scratch / "changed" / old.filename
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        add_module(bench.wheels[old.filename], path, f"{old.name.replace('-', '_')}_changed.py", b"changed = True\n")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    new = replace(old, sha256=digest, size=path.stat().st_size)
    wheels = tuple(new if w is old else w for w in bench.subject.wheels)
    return replace(bench.subject, wheels=wheels), {**bench.wheels, old.filename: path}


def add_module(wheel: Path, target: Path, name: str, data: bytes) -> None:
    """Write a wheel with one module more; everything else is copied as it is compressed."""
    with wheel.open("rb") as file, zipfile.ZipFile(file) as old, zipfile.ZipFile(target, "w") as new:
        assert new.fp is not None
        for info in old.infolist():
            if info.filename.count("/") == 1 and info.filename.endswith("/RECORD"):
                record = info.filename
                continue
            file.seek(info.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", file.read(4))
            file.seek(info.header_offset + 30 + name_length + extra_length)
            raw = file.read(info.compress_size)
            info.flag_bits &= ~0x08  # sizes stand in the header, not behind the data
            info.header_offset = new.fp.tell()
            new.fp.write(info.FileHeader(zip64=False) + raw)
            new.filelist.append(info)
            new.NameToInfo[info.filename] = info
            new.start_dir = new.fp.tell()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        new.writestr(name, data)
        with zipfile.ZipFile(wheel) as again:
            rows = again.read(record)
        new.writestr(record, rows + f"{name},sha256={digest},{len(data)}\n".encode())


def stackb(bench: Bench) -> Iterator[Row]:
    """The artifact: cold, unchanged, one small pin, one large wheel."""
    space = cache_with_base(bench, "artifact")

    def work(subject: Subject, wheels: dict[str, Path]) -> str:
        built = build(subject, wheels, Options(base=bench.base, bytecode=bench.bytecode), space, Lines())
        return f"{len(built.written)} layers written, {built.image.manifest_digest[7:19]}"

    yield measured("stackb: artifact, cold", work, bench.subject, bench.wheels)
    yield measured("stackb: artifact, nothing changed", work, bench.subject, bench.wheels)
    for name in (SMALL_PIN, bench.large_pin):
        yield measured(f"stackb: artifact, {name} changed", work, *changed(bench, name))
    shutil.rmtree(space.root)


def stackb_docker(bench: Bench) -> Iterator[Row]:
    """Into the engine: cold, one small pin, one large wheel."""
    space = cache_with_base(bench, "docker")
    import_base(bench)

    def into(subject: Subject, wheels: dict[str, Path]) -> str:
        with Ahead(daemon.connect(), space.blobs, architecture(subject.platform)) as ahead:
            options = Options(base=bench.base, bytecode=bench.bytecode)
            built = build(subject, wheels, options, space, Lines(), ahead.arrived)
            ahead.settle()
            return daemon.send(daemon.connect(), space.blobs, built.image, TAG, Lines())

    images = []  # each takes the name from the one before
    for what, name in (("cold", None), *((f"{name} changed", name) for name in (SMALL_PIN, bench.large_pin))):
        made_of = changed(bench, name) if name else (bench.subject, bench.wheels)
        row = measured(f"stackb: into the engine, {what}", into, *made_of)
        images.append(row.note)
        yield row
    forget(TAG, *images)
    shutil.rmtree(space.root)


def buildkit(bench: Bench, way: str, command: str) -> Iterator[Row]:
    """A Dockerfile in BuildKit: cold, then with one small pin changed."""
    import_base(bench)
    context = bench.context()
    (context / "Dockerfile").write_text(DOCKERFILE.format(base=BASE_TAG, command=command))
    yield measured(f"{way}: into the engine, cold", post_build, context)
    forget(TAG)  # nothing that it kept would be used again: the folder that is mounted is another one
    subject, wheels = changed(bench, SMALL_PIN)
    new = next(w for w in subject.wheels if w.name == SMALL_PIN)
    (context / "wheels" / new.filename).unlink()
    os.link(wheels[new.filename], context / "wheels" / new.filename)
    lines = (f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in subject.wheels)
    (context / "requirements.txt").write_text("".join(lines))
    yield measured(f"{way}: into the engine, {SMALL_PIN} changed", post_build, context)
    forget(TAG)
    shutil.rmtree(context)


def post_build(context: Path) -> str:
    """Build with the engine's own BuildKit, without the buildx plugin: the context travels as the body."""
    client = daemon.connect()
    with subprocess.Popen(["tar", "-C", context, "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
        parameters = {"version": "2", "t": TAG, "dockerfile": "Dockerfile", "rm": "1"}
        headers = {"Content-Type": "application/x-tar"}
        url = client.api._url("/build")
        answer = client.api._post(url, data=tar.stdout, params=parameters, headers=headers, stream=True)
        answer.raise_for_status()
        for line in answer.iter_lines():
            event = json.loads(line)
            if "error" in event:
                raise RuntimeError(event["error"])
    return str(client.images.get(TAG).id)


def buildah(bench: Bench) -> Iterator[Row]:
    """Buildah with a fixed time stamp, uv, and the wheels as a volume; ends in its own store."""
    context = bench.context()
    layout = bench.scratch / "base-layout"
    if not layout.exists():
        oci.write_layout(layout, bench.shared.blobs, base_image(bench), BASE_TAG)
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}
    command = with_bytecode(UV, "--compile-bytecode", "")(bench)
    # By a relative path: buildah makes the image's name of it, and ".cache" may not stand in one.
    (context / "Dockerfile").write_text(f"FROM oci:{layout.name}\nRUN {command}\n")

    def work() -> str:
        argv = ["buildah", "bud", "--timestamp", "0", "--volume", f"{context}:/context:ro", "--tag", TAG, str(context)]
        done = subprocess.run(argv, cwd=layout.parent, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        return done.stdout.split()[-1]

    yield measured("buildah + uv: into its store, cold", work)
    subprocess.run(["buildah", "rmi", "--all", "--force"], env=environment, capture_output=True, check=False)


def base_image(bench: Bench) -> oci.Image:
    """The base alone, as an image in the shared store."""
    provider, name = choose(bench.base)
    base = provider.provide(base_request(bench, name))
    config = oci.ImageConfig("amd64", {"PATH": "/usr/local/bin:/usr/bin:/bin"}, ("/bin/bash",), {})
    return oci.assemble(bench.shared.blobs, config, base.layers)


def base_request(bench: Bench, name: str) -> BaseRequest:
    """Ask for the base from the shared cache."""
    subject, shared = bench.subject, bench.shared
    return BaseRequest(name, subject.platform, subject.python, shared.blobs, shared.root, Lines())


def import_base(bench: Bench) -> None:
    """Bring the base into the engine, where every way starts from it."""
    daemon.send(daemon.connect(), bench.shared.blobs, base_image(bench), BASE_TAG, Lines())


def forget(*images: str) -> None:
    """Remove images, by name or ID, and what BuildKit kept of them."""
    client = daemon.connect()
    for image in images:
        with suppress(docker.errors.APIError):  # a build that failed, or an image that went with the one before
            client.images.remove(image, force=True)
    client.api.prune_builds()


def with_bytecode(command: str, option: str, otherwise: str) -> Callable[[Bench], str]:
    """Fill in whether to compile."""
    return lambda bench: command.format(bytecode=option if bench.bytecode else otherwise)


WAYS: dict[str, Callable[[Bench], Iterable[Row]]] = {
    "stackb": stackb,
    "stackb-docker": stackb_docker,
    "buildkit-uv": lambda b: buildkit(b, "BuildKit + uv", with_bytecode(UV, "--compile-bytecode", "")(b)),
    "buildkit-pip": lambda b: buildkit(b, "BuildKit + pip", with_bytecode(PIP, "--compile", "--no-compile")(b)),
    "buildah": buildah,
}

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    main()
