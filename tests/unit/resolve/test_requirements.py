"""requirements.txt: pip must read what is written, and nothing that could be misread is accepted."""

from pathlib import Path

import pytest
from pip._internal.network.session import PipSession
from pip._internal.req import parse_requirements
from pip._internal.req.constructors import install_req_from_parsed_requirement

from stack_builder import resources
from stack_builder.errors import UsageError
from stack_builder.resolve import requirements
from stack_builder.stack import lock, spec


@pytest.mark.filterwarnings("ignore:pkg_resources:DeprecationWarning")  # of the copy inside pip
@pytest.mark.parametrize("name", ["cu130-sglang-0.5.23", "cu130-sglang-0.5.17"])
def test_pip_reads_one_hash_per_wheel(name: str) -> None:
    folder = resources.lockfiles() / name
    with PipSession() as session:
        parsed = [
            install_req_from_parsed_requirement(line, isolated=True)
            for line in parse_requirements(str(folder / "requirements.txt"), session)
        ]
    read = {(r.name, str(r.specifier), tuple(r.hash_options["sha256"])) for r in parsed}
    assert read == {(a.name, f"=={a.version}", (a.sha256,)) for a in lock.load(folder).artifacts}


def test_reading_gives_back_what_was_written() -> None:
    folder = resources.lockfiles() / "cu130-sglang-0.5.9"
    locked, text = lock.read(folder)
    from stack_builder.resolve.target import Target

    assert text == requirements.write(locked, Target.of(spec.load(folder)))
    lines = requirements.parse(text, "x")
    assert {n: (line.version, line.hashes) for n, line in lines.items()} == {
        a.name: (a.version, (a.sha256,) if a.sha256 else ()) for a in locked.artifacts
    }
    assert "    # index pytorch-cu130\n" in text
    assert "://" not in text


def test_many_hashes_and_comments() -> None:
    lines = requirements.parse(
        f"# c\nFoo_Bar==1.0+cu130 \\\n  --hash=sha256:{'a' * 64} \\\n  --hash=sha256:{'b' * 64}\n # via x\n", "x"
    )
    assert lines["foo-bar"].version == "1.0+cu130"
    assert lines["foo-bar"].hashes == ("a" * 64, "b" * 64)


@pytest.mark.parametrize(
    "line",
    [
        "torch",
        "torch>=2",
        "torch @ https://example.org/torch.whl",
        "-r other.txt",
        "--index-url https://example.org/simple",
        "torch==2.9.1; python_version > '3'",
        "torch==2.9.1 --hash=md5:00",
        "torch==2.9.1 --hash=sha256:zz",
        "torch==2.9.1\ntorch==2.10.0",
        "Torch==2.9.1\ntorch==2.9.1",
    ],
)
def test_anything_else_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line [12] "):
        requirements.parse(line, tmp_path)
