"""Reading sources: a wheel and a folder say the same; what is hostile or absent ends in one line."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.sglang import source
from stack_builder.trees.directory import DirectoryTree

FILES = {
    "sglang/srt/server_args.py": "X = 1\n",
    "sglang/srt/a/b.py": "\ufeffY = 2\n",
    "sglang/readme.txt": "no",
    "sglang-0.5.9.dist-info/METADATA": "Name: sglang\n",
}


def write(root: Path) -> None:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_wheel_and_folder_and_tree_read_alike(tmp_path, make_wheel):
    write(tmp_path / "site")
    wheel = make_wheel(FILES)
    trees = [
        source.from_wheel(wheel),
        source.from_directory(tmp_path / "site"),
        source.from_tree(lambda: nullcontext((DirectoryTree(tmp_path), "/site")), where="image"),
    ]
    for tree in trees:
        assert tree.version == "0.5.9"
        assert tree.paths("sglang/srt") == ("sglang/srt/a/b.py", "sglang/srt/server_args.py")
        assert tree.module("sglang/srt/a/b.py").body[0].targets[0].id == "Y"
        assert tree.find_module("sglang.srt.a.b") == "sglang/srt/a/b.py"
        assert tree.find_module("torch") is None
    assert trees[0].identity == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert trees[2].identity is None


def test_a_known_hash_spares_reading_the_wheel(tmp_path):
    path = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    path.write_bytes(b"not a zip")
    tree = source.from_wheel(path, sha256="ab" * 32)
    assert (tree.version, tree.identity) == ("0.5.9", "ab" * 32)
    with pytest.raises(IntegrityError):
        tree.paths("sglang")


def test_the_identity_of_a_folder_follows_every_change(tmp_path):
    write(tmp_path)
    before = source.from_directory(tmp_path).identity
    assert source.from_directory(tmp_path).identity == before
    (tmp_path / "sglang/srt/a/b.py").write_text("\ufeffY = 3\n")  # same size
    assert source.from_directory(tmp_path).identity != before


@pytest.mark.parametrize(
    "text", ["def f(:\n", "x = '\0'\n", "(" * 5000, "x = " + "1+" * 150_000 + "1\n", "x=" + "-" * 100_000 + "1"]
)
def test_what_is_not_python_is_named(text):
    with pytest.raises(source.SourceError, match="here"):
        source.parse(text.encode(), "here")


def test_a_file_too_large_for_source_is_refused(make_wheel, monkeypatch):
    monkeypatch.setattr(source, "MAX_SOURCE", 100)
    tree = source.from_wheel(make_wheel({**FILES, "sglang/big.py": "#" * 200}))
    with pytest.raises(source.SourceError, match=r"sglang/big\.py has 200 bytes"):
        tree.read("sglang/big.py")


def test_what_holds_no_sglang_is_a_usage_error(tmp_path, make_wheel):
    with pytest.raises(UsageError, match="holds no SGLang"):
        source.from_wheel(make_wheel({"other/x.py": ""})).paths("x")
    (tmp_path / "torch-2.11.0-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(UsageError, match="not named as a wheel of SGLang"):
        source.from_wheel(tmp_path / "torch-2.11.0-py3-none-any.whl")


def test_links_in_a_folder_are_not_followed(tmp_path):
    write(tmp_path / "site")
    (tmp_path / "secret.py").write_text("S = 1\n")
    (tmp_path / "site/sglang/srt/link.py").symlink_to(tmp_path / "secret.py")
    assert "sglang/srt/link.py" not in source.from_directory(tmp_path / "site").paths("sglang")
