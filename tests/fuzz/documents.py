"""Texts and JSON documents: index pages, stacks, locks, receipts, patches, results, reports."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import cache
from pathlib import Path

from stack_builder import resources
from stack_builder.bench import foreign, page, results, tables
from stack_builder.diagnose.environment import facts as environments
from stack_builder.errors import StackbError
from stack_builder.image.base import packages, recipe
from stack_builder.patchset import model, states
from stack_builder.patchset.source import AnchorError
from stack_builder.report.json import from_json, to_json
from stack_builder.report.sarif import to_sarif
from stack_builder.resolve import requirements
from stack_builder.stack import lock, receipt, spec
from stack_builder.supply import provenance
from stack_builder.wheels import names, record
from stack_builder.wheels.facts import parse_metadata
from stack_builder.wheels.http import Page
from stack_builder.wheels.layout import Layout
from stack_builder.wheels.simple import parse_page
from tests.fuzz.archives import METADATA, members, record_of, scratch
from tests.fuzz.mutate import mutate_bytes, mutate_json, mutate_text
from tests.fuzz.runner import Target

_ROOT = Path(__file__).parents[2]
_STACK = "cu130-sglang-0.5.23"


# --- METADATA, RECORD, names of wheels ---

_DEMO = Layout("demo-1.0-py3-none-any.whl", "demo", "1.0", "demo-1.0.dist-info")


def make_metadata(chance: random.Random) -> bytes:
    match chance.randrange(3):
        case 0:
            return b"M" + mutate_text(METADATA, chance, ("Name: x", "Requires-Dist:", "=?utf-8?q?=ff?="))
        case 1:
            return b"R" + mutate_text(record_of(members()).decode(), chance, ("sha256=", ",,", '"', "sha512="))
    return b"N" + mutate_text(
        "demo-1.0-1_x-cp311.py3-abi3-manylinux_2_28_x86_64.whl", chance, ("-", ".", "_", "!", "+")
    )


def examine_metadata(data: bytes) -> None:
    if data[:1] == b"M":
        parse_metadata(data[1:], "demo")
    elif data[:1] == b"R":
        record.parse(data[1:], _DEMO)
    else:
        names.parse(data[1:].decode("utf-8", "surrogateescape"))


# --- index pages ---

_HREF = "https://index.example/files/demo-1.0-py3-none-any.whl"
_HTML = f"""<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.1"><base href="/x/"></head><body>
<!-- comment --><a href="{_HREF}#sha256={"0" * 64}" data-requires-python="&gt;=3.9" data-yanked="">demo-1.0-py3-none-any.whl</a>
<a href="demo-1.1.tar.gz#md5=0" data-core-metadata="sha256={"1" * 64}">demo-1.1.tar.gz</a></body></html>"""
_JSON = {
    "meta": {"api-version": "1.1"},
    "name": "demo",
    "files": [
        {
            "filename": "demo-1.0-py3-none-any.whl",
            "url": _HREF,
            "hashes": {"sha256": "0" * 64},
            "requires-python": ">=3.9",
            "size": 10,
            "upload-time": "2026-01-01T00:00:00Z",
            "yanked": "broken",
            "core-metadata": {"sha256": "1" * 64},
        },
        {"filename": "demo-1.1.tar.gz", "url": "../../files/demo-1.1.tar.gz", "hashes": {}, "yanked": False},
    ],
}


def make_html(chance: random.Random) -> bytes:
    tokens = (
        "<a ",
        "<!--",
        "<![CDATA[",
        "<?",
        "&#x110000;",
        "&#99999999999;",
        "href=",
        '"',
        ">",
        "javascript:x",
        "<base href='http://[::1'>",
    )
    return mutate_text(_HTML, chance, tokens)


def examine_html(data: bytes) -> None:
    parse_page(Page("https://index.example/simple/demo/", "text/html", data))


def make_json(chance: random.Random) -> bytes:
    return mutate_json(_JSON, chance)


def examine_json(data: bytes) -> None:
    parse_page(Page("https://index.example/simple/demo/", "application/vnd.pypi.simple.v1+json", data))


# --- stack.toml, lock, receipt ---


@cache
def _stack_text() -> str:
    return (resources.lockfiles() / _STACK / "stack.toml").read_text(encoding="utf-8")


def make_stack(chance: random.Random) -> bytes:
    tokens = (
        '"""',
        "[[",
        "]]",
        "=",
        "[serve.x]",
        "a." * 300 + "b = 1",
        "'''",
        "1979-05-27T07:32:00Z",
        "0b1",
        "inf",
        "{a.b=1}",
    )
    return mutate_text(_stack_text(), chance, tokens)


def examine_stack(data: bytes) -> None:
    with scratch() as folder:
        (folder / "stack.toml").write_bytes(data)
        read = spec.load(folder)
    read.winner_for(frozenset({"a", "b"}), "sm_120")


@cache
def _lock_body() -> dict[str, object]:
    body: dict[str, object] = json.loads(
        (resources.lockfiles() / "cu130-sglang-0.5.9" / Path("artifacts.json")).read_text()
    )
    rows = body["artifacts"]
    assert isinstance(rows, list)
    body["artifacts"] = [row for row in rows if row["name"] in ("sgl-kernel", "torch", "numpy", "torchaudio")]
    return body


_REQUIREMENTS = f"""# comment
numpy==2.3.1 \\
    --hash=sha256:{"0" * 64}
    # via torch
torch==2.9.1+cu130 --hash=sha256:{"1" * 64} --hash=sha256:{"2" * 64}
"""


def make_lock(chance: random.Random) -> bytes:
    if chance.random() < 0.25:
        return b"R" + mutate_text(_REQUIREMENTS, chance, ("\\", "--hash=sha256:", "--index-url=x", "-e .", ";", "=="))
    return b"A" + mutate_json(_lock_body(), chance)


def examine_lock(data: bytes) -> None:
    text = data[1:].decode("utf-8", "replace")
    if data[:1] == b"R":
        requirements.parse(text, "requirements.txt")
        return
    read = lock.parse(text, Path("artifacts.json"))
    assert lock.parse(read.to_json(), Path("again")).to_json() == read.to_json()
    assert len(read.sha256) == 64
    assert all(artifact.cuda_majors is not None for artifact in read.artifacts)


@cache
def _receipt_body() -> dict[str, object]:
    layer = {"title": "base", "digest": f"sha256:{'a' * 64}", "diff_id": f"sha256:{'b' * 64}", "size": 10}
    return {
        "schema_version": 1,
        "tool": "0.1.0",
        "layout": 1,
        "stack": "small-1.0",
        "description": "two wheels",
        "python": "3.11",
        "platform": "linux_x86_64",
        "cuda": "13.0",
        "gpu": "sm_120",
        "lock_sha256": "c" * 64,
        "base": {
            "source": "recipe:debian-bookworm",
            "identity": "d" * 64,
            "packages": [
                {
                    "name": "libc6",
                    "version": "2.36-9",
                    "architecture": "amd64",
                    "sha256": "e" * 64,
                    "size": 10,
                    "path": "pool/main/g/glibc/libc6_2.36-9_amd64.deb",
                }
            ],
            "relocked": None,
        },
        "wheels": [
            {
                "name": "outer",
                "version": "1.0",
                "filename": "outer-1.0-py3-none-any.whl",
                "sha256": "f" * 64,
                "size": 10,
                "index": "default",
            }
        ],
        "decisions": [{"packages": ["a", "b"], "winner": "a", "paths": 3, "reason": "same bytes"}],
        "patches": [{"id": "p", "sha256": "0" * 64, "text": "x = 1"}],
        "bytecode": True,
        "layers": [{**layer, "media_type": "application/vnd.oci.image.layer.v1.tar+gzip", "holds": ["outer 1.0"]}],
        "config_digest": f"sha256:{'1' * 64}",
        "manifest_digest": f"sha256:{'2' * 64}",
        "reference": "small:1.0",
    }


def make_receipt(chance: random.Random) -> bytes:
    data = mutate_json(_receipt_body(), chance)
    return mutate_bytes(data, chance) if chance.random() < 0.1 else data


def examine_receipt(data: bytes) -> None:
    with scratch() as folder:
        (folder / "receipt.json").write_bytes(data)
        read = receipt.load(folder / "receipt.json")
    assert receipt.parse(read.to_json(), Path("again")) == read
    provenance.render(read)


# --- patches ---


@cache
def _patches() -> tuple[model.Patch, ...]:
    return tuple(model.available().values())


_SOURCES = (
    "class Communicator:\n    # c\n    WORLDS = {\n        9: [4, 8],\n        10: [8],\n    }\n\n    def sizes(self, major):\n        return self.WORLDS[major]\n",
    "MiB = 1024\nSIZES = {\n    9: {2: 64 * MiB},  # first\n    10: {\n        2: 64 * MiB,\n    },\n}\n",
    "class Inner:\n    def head(self, scale=1):\n        return 7 * scale\n\n\nclass Wrapper:\n    def __init__(self):\n        self.inner = Inner()\n\n\nEntry = [Wrapper]\n",
)
_OPERATIONS = (
    'op = "ensure-dict-key"\ndict = "SIZES"\nkey = 12\ncopy_from = 10\n',
    'op = "ensure-dict-key"\ndict = "Communicator.WORLDS"\nkey = 12\ncopy_from = 10\n',
    'op = "ensure-methods"\nclass = "Wrapper"\nmethods = """\ndef head(self, *args):\n    return self.inner.head(*args)\n"""\n',
    'op = "replace-text"\nold = "64 * MiB"\nnew = "65 * MiB"\ncount = 2\n',
)
_HEAD = (
    'id = "demo"\ntitle = "A patch for the tests"\nreason = "the tests need a patch that does something"\n'
    'scope = "only the demo distribution is concerned"\nreference = "none, it is made up"\n'
    'removal = "upstream since demo 2.0"\ndistribution = "demo"\nversions = ">=1.0,<2"\n'
)


def make_patch(chance: random.Random) -> bytes:
    operation, source = chance.choice(_OPERATIONS), chance.choice(_SOURCES)
    text = f'{_HEAD}[[operation]]\nfile = "demo/x.py"\n{operation}'.encode()
    tokens = ("{", "}", "10:", "**SIZES", "lambda: 0", "# coding: utf-16", "\f", "\r", "class Wrapper:", "'''")
    data = source.encode()
    if chance.random() < 0.4:
        text = mutate_text(text.decode(), chance, ("[[operation]]", '"""', "count = -1", "key = [1]", "key = 1.5"))
    else:
        data = mutate_text(source, chance, tokens)
    if chance.random() < 0.1:
        data = chance.choice((b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n", b"# coding: rot13\n")) + data
    return text + b"\0SOURCE\0" + data


def examine_patch(data: bytes) -> None:
    text, _, source = data.partition(b"\0SOURCE\0")
    with scratch() as folder:
        path = folder / "demo.toml"
        path.write_bytes(text)
        patch = model.load(path)
    with suppress(AnchorError):
        for path_, new in states.edited(patch, lambda _path: source).items():
            assert path_ in patch.spec.files
            with suppress(AnchorError):
                states.edited(patch, lambda _path, new=new: new)


# --- bench ---


@cache
def _results_body() -> dict[str, object]:
    body: dict[str, object] = json.loads((_ROOT / "docs" / "bench" / "h200" / "pair.json").read_text())
    runs = body["runs"]
    assert isinstance(runs, list)
    body["runs"] = runs[:6]
    return body


def make_results(chance: random.Random) -> bytes:
    return mutate_json(_results_body(), chance)


def examine_results(data: bytes) -> None:
    read = results.from_json(data, "r.json")
    tables.report_text(read)
    tables.report_markdown(read)
    page.page([read])
    results.to_json(read)


_BENCH_SERVING = {
    "server_info": {"version": "0.5.23", "max_running_requests": 48, "speculative_algorithm": "EAGLE3"},
    "max_concurrency": 10, "concurrency": 9.7, "errors": [""], "accept_length": 2.8, "completed": 20, "duration": 5.0,
    "total_input_tokens": 400, "total_output_tokens": 900, "output_throughput": 180.0,
    **{f"{a}_{b}_ms": 3.5 for a in ("mean", "median", "p90", "p99") for b in ("ttft", "tpot", "itl", "e2e_latency")},
}  # fmt: skip
_SPREAD = {"successful": {"mean": 4.5, "count": 10, "percentiles": {"p50": 4.0, "p90": 5.0, "p99": 6.0}}}
_GUIDELLM = {
    "benchmarks": [
        {
            "config": {"strategy": {"streams": 4}},
            "duration": 5.0,
            "metrics": {
                "request_totals": {"successful": 10, "errored": 0},
                **dict.fromkeys(("request_concurrency", "output_tokens_per_second", "output_token_count", "prompt_token_count", "time_to_first_token_ms", "inter_token_latency_ms", "request_latency"), _SPREAD),
            },
        }
    ]
}  # fmt: skip
_AIPERF = {
    name: {"avg": 10.0, "p50": 9.0, "p90": 12.0, "p99": 13.0}
    for name in (
        "output_token_throughput", "request_throughput", "request_latency", "request_count", "benchmark_duration",
        "total_osl", "time_to_first_token", "inter_token_latency",
    )
} | {"input_config": {"loadgen": {"concurrency": 8}}}  # fmt: skip
_CSV = "Metric,avg,p50,p90,p99\nTime to First Token (ms),1,2,3,4\nRequest Latency (ms),9,8,7,6\n\nMetric,Value\nOutput Token Throughput (tokens/sec),100\nRequest Count (requests),9\n"


def make_foreign(chance: random.Random) -> bytes:
    match chance.randrange(4):
        case 0:
            return b"l" + mutate_json(_BENCH_SERVING, chance)
        case 1:
            return b"j" + mutate_json(_GUIDELLM, chance)
        case 2:
            return b"j" + mutate_json(_AIPERF, chance)
    return b"c" + mutate_text(_CSV, chance, (",", '"', "nan", "inf", "Metric"))


def examine_foreign(data: bytes) -> None:
    with scratch() as folder:
        path = folder / {b"l": "a.jsonl", b"j": "a.json", b"c": "a.csv"}[data[:1]]
        path.write_bytes(data[1:])
        read = foreign.import_file(path)
    tables.report_text(read)
    results.to_json(read)


# --- Debian, reports ---

_APT = (
    "'http://mirror.example/debian/pool/main/g/glibc/libc6_2.36-9%2bdeb12u10_amd64.deb' "
    f"libc6_2.36-9+deb12u10_amd64.deb 2756464 SHA256:{'0' * 64}\n"
) * 2


def make_debian(chance: random.Random) -> bytes:
    match chance.randrange(3):
        case 0:
            return b"P" + mutate_text(_APT, chance, ("_", "'", "%", "SHA256:"))
        case 1:
            body = json.loads((resources.docker() / "base" / "debian-bookworm.amd64.lock.json").read_text())
            return b"L" + mutate_json({**body, "packages": body["packages"][:3]}, chance)
    return b"T" + mutate_text((resources.docker() / "base" / "debian-bookworm.toml").read_text(), chance, ("[", "="))


def examine_debian(data: bytes) -> None:
    with scratch() as folder:
        path = folder / "x.toml"
        path.write_bytes(data[1:])
        if data[:1] == b"L":
            recipe.load_lock(path)
        elif data[:1] == b"T":
            recipe.find(str(path))
        else:
            packages.printed_packages(data[1:].decode("utf-8", "replace"), ["http://mirror.example/debian"])


_REPORT = {
    "schema_version": 1,
    "tool": {"name": "stackb", "version": "0.1.0"},
    "target": {"kind": "venv", "name": "x"},
    "verdict": "findings",
    "findings": [
        {
            "rule": "ABI001", "severity": "error", "title": "t", "object": "a.so", "distribution": "a 1",
            "cause": "torch_minor_abi_mismatch", "detail": "d", "evidence": {"symbols": ["a"]}, "fix": ["do"],
        }
    ],
    "skipped": [{"rule": "HOST001", "reason": "r"}],
    "facts": {"x": [1, {"y": None}]},
}  # fmt: skip


def make_report(chance: random.Random) -> bytes:
    return mutate_json(_REPORT, chance)


def examine_report(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with suppress(StackbError):
        environments.parse(text, "facts.json")
    read = from_json(text, "report.json")
    to_json(read)
    to_sarif(read)


TARGETS = {
    "metadata": Target(make_metadata, examine_metadata),
    "index-html": Target(make_html, examine_html),
    "index-json": Target(make_json, examine_json),
    "stack": Target(make_stack, examine_stack),
    "lock": Target(make_lock, examine_lock),
    "receipt": Target(make_receipt, examine_receipt),
    "patch": Target(make_patch, examine_patch),
    "results": Target(make_results, examine_results),
    "foreign": Target(make_foreign, examine_foreign),
    "debian": Target(make_debian, examine_debian),
    "report": Target(make_report, examine_report),
}
