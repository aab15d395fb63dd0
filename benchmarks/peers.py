"""The load clients of others, each in an environment of its own, to be run beside ``stackb bench``.

    python benchmarks/peers.py DIR [bench_serving] [guidellm] [aiperf]

Neither SGLang's engine nor torch is needed to send requests, and together they are gigabytes. So ``bench_serving`` is
run from the unpacked wheel with what the client itself imports, and GuideLLM, whose only use of torch is to walk over a
data set, gets a stand-in of a few lines for that. No line of theirs that sends, receives or counts is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

SGLANG = "0.5.23"
GUIDELLM = "0.8.1"
AIPERF = "0.13.0"
# what sglang/benchmark/ imports, but torch, and but `datasets`, which only its image data sets need
_BENCH_SERVING = (
    *("aiohttp", "msgspec", "numpy", "orjson", "pillow", "psutil", "pybase64", "pyzmq", "requests", "tqdm"),
    "transformers",
)
_LAUNCH_BENCH_SERVING = """\
import sys
import types


def stand_in(name, path=None, **content):
    module = types.ModuleType(name)
    module.__dict__.update(content)
    if path:
        module.__path__ = [path]
    sys.modules[name] = module


root = {root!r}
# packages whose __init__ imports the engine; their other modules are the wheel's own
for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation"):
    stand_in(name, root + "/" + name.replace(".", "/"))
stand_in("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST=None)  # of --fake-prefill
stand_in("datasets", load_dataset=None)

from sglang.benchmark.serving import cli_main

cli_main()
"""
_TORCH = {
    "torch/__init__.py": """\
import torch.utils.data


class Generator:
    def manual_seed(self, seed):
        return self


class Tensor: ...
""",
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": """\
from torch.utils.data.dataset import IterableDataset


def get_worker_info():
    return None
""",
    "torch/utils/data/dataset.py": """\
from typing import Generic, TypeVar

T = TypeVar("T")


class IterableDataset(Generic[T]): ...
""",
    "torch/utils/data/dataloader.py": """\
from typing import Generic, TypeVar

T = TypeVar("T")


class DataLoader(Generic[T]):
    def __init__(self, dataset, collate_fn, **_):
        self.dataset, self._collate = dataset, collate_fn

    def __iter__(self):
        return (self._collate([item]) for item in self.dataset)
""",
}


def bench_serving(folder: Path) -> list[str]:
    """Give the words that start SGLang's ``bench_serving``, from ``folder`` or installed there first."""
    place = folder / "bench_serving"
    launcher = place / "launch.py"
    if not launcher.exists():
        python = _environment(place, _BENCH_SERVING)
        pip = (str(python), "-m", "pip", "download", "-q", "--no-deps", "--dest", str(place), f"sglang=={SGLANG}")
        subprocess.run(pip, check=True)
        wheel = next(place.glob("sglang-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            wanted = [
                name for name in archive.namelist() if name.startswith(("sglang/benchmark/", "sglang/srt/utils/"))
            ]
            archive.extractall(place / "wheel", wanted)
        wheel.unlink()
        launcher.write_text(_LAUNCH_BENCH_SERVING.format(root=str(place / "wheel")))
    return [str(place / "bin" / "python"), str(launcher)]


def guidellm(folder: Path) -> list[str]:
    """Give the words that start GuideLLM, from ``folder`` or installed there first."""
    place = folder / "guidellm"
    program = place / "bin" / "guidellm"
    if not program.exists():
        wanted = (f"guidellm[perf]=={GUIDELLM}", "jinja2")  # jinja2 otherwise comes with torch
        _environment(place, wanted, without="torch")
        library = next((place / "lib").glob("python3*/site-packages"))
        for name, text in _TORCH.items():
            (library / name).parent.mkdir(parents=True, exist_ok=True)
            (library / name).write_text(text)
    return [str(program)]


def aiperf(folder: Path) -> list[str]:
    """Give the words that start AIPerf, from ``folder`` or installed there first."""
    place = folder / "aiperf"
    if not (place / "bin" / "aiperf").exists():
        _environment(place, (f"aiperf=={AIPERF}",))
    return [str(place / "bin" / "aiperf")]


def tokenizer(folder: Path) -> Path:
    """Write the tokenizer that the others insist on, one token a byte, and give its folder."""
    place = folder / "tokenizer"
    if not (place / "tokenizer.json").exists():
        code = (
            "import sys; from tokenizers import Tokenizer, decoders, models, pre_tokenizers; "
            "from transformers import PreTrainedTokenizerFast as Fast; "
            "words = ['<s>', '</s>', *sorted(pre_tokenizers.ByteLevel.alphabet())]; "
            "made = Tokenizer(models.BPE({w: n for n, w in enumerate(words)}, [])); "
            "made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False); "
            "made.decoder = decoders.ByteLevel(); "
            "Fast(tokenizer_object=made, bos_token='<s>', eos_token='</s>').save_pretrained(sys.argv[1])"
        )
        python = next(path for path in folder.glob("*/bin/python") if path.parents[1].name != "aiperf")
        subprocess.run([str(python), "-c", code, str(place)], check=True, stderr=subprocess.DEVNULL)
    return place


def _environment(place: Path, wanted: tuple[str, ...], without: str | None = None) -> Path:
    """Make a virtual environment; ``without`` leaves one requirement out, however it is reached."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    subprocess.run([uv, "venv", "-q", "--seed", "--clear", str(place)], check=True)
    words = [uv, "pip", "install", "-q", "--python", str(place / "bin" / "python"), *wanted]
    if without:
        rule = place / "overrides.txt"
        rule.write_text(f"{without}; python_version < '3'\n")
        words += ["--override", str(rule)]
    subprocess.run(words, check=True)
    return place / "bin" / "python"


def cpu_seconds(words: Sequence[str], scratch: Path, *, offline: bool = True) -> float:
    """Run a client to its end; gives the processor seconds of it and its children, or exits with what it said.

    ``offline`` keeps it from asking a model hub; AIPerf then looks for local folders there as well, and finds none.
    """
    env = {**os.environ, "STACKB_STATE_DIR": str(scratch), "HF_HUB_OFFLINE": "1" if offline else "", "USE_TORCH": "0"}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(words, stdout=output, stderr=output, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            sys.exit(f"{words[0]} ended with {child.returncode}: {output.read()[-2000:].decode(errors='replace')}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Install what is asked for; all three without a name."""
    folder, *names = sys.argv[1:] or [""]
    if not folder:
        sys.exit("usage: python benchmarks/peers.py DIR [bench_serving] [guidellm] [aiperf]")
    known = {"bench_serving": bench_serving, "guidellm": guidellm, "aiperf": aiperf}
    for name in names or known:
        print(*known[name](Path(folder).absolute()))


if __name__ == "__main__":
    main()
