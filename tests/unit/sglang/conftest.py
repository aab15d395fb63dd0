"""A small SGLang: the shapes of 0.5.9's source that the readers look for, in a few lines each."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stack_builder.sglang import source
from stack_builder.sglang.source import SourceTree

COMMON = """
def _check_cuda_device_version(device_capability_majors, cuda_version):
    return torch.cuda.get_device_capability()[0] in device_capability_majors

is_blackwell_supported = is_blackwell = lru_cache(maxsize=1)(
    partial(_check_cuda_device_version, device_capability_majors=[10, 11, 12], cuda_version=(12, 8)))
is_sm100_supported = lru_cache(maxsize=1)(
    partial(_check_cuda_device_version, device_capability_majors=[10], cuda_version=(12, 8)))
is_sm90_supported = lru_cache(maxsize=1)(
    partial(_check_cuda_device_version, device_capability_majors=[9], cuda_version=(12, 3)))

def is_sm121():
    return is_cuda() and torch.cuda.get_device_capability() == (12, 1)
"""

SERVER_ARGS = """
import dataclasses
from sglang.srt.choices import BACKENDS

EXTRA = BACKENDS + ["extra"]

class DeprecatedAction(argparse.Action):
    def __init__(self, option_strings, dest, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    tp_size: int = 1
    page_size: Optional[int] = None
    attention_backend: Optional[str] = None

    def _handle_speculative_decoding(self):
        if self.max_running_requests is None:
            self.max_running_requests = 48
        if (self.speculative_eagle_topk > 1 and self.page_size > 1
                and self.attention_backend not in ["flashinfer", "fa3"]):
            raise ValueError("unstable")

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str, required=True, help="Weights.")
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size)
        parser.add_argument("--page-size", type=int, default=ServerArgs.page_size)
        parser.add_argument("--attention-backend", type=str, choices=EXTRA, default=ServerArgs.attention_backend)
        parser.add_argument("--max-running-requests", type=int, default=None)
        parser.add_argument("--mem-fraction-static", type=float, default=None)
        parser.add_argument("--context-length", type=int, default=None)
        parser.add_argument("--enable-torch-symm-mem", action="store_true")
        parser.add_argument("--enable-flashinfer-allreduce-fusion", action="store_true")
        parser.add_argument("--speculative-algorithm", type=str, choices=["EAGLE", "EAGLE3"])
        parser.add_argument("--speculative-draft-model-path", type=str, default=None)
        parser.add_argument("--speculative-num-steps", type=int, default=None)
        parser.add_argument("--speculative-eagle-topk", type=int, default=None)
        parser.add_argument("--speculative-num-draft-tokens", type=int, default=None)
        parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
        parser.add_argument("--old", action=DeprecatedAction, help="Note: --old is deprecated. Please use --page-size.")
        parser.add_argument("--warm", action=argparse.BooleanOptionalAction, default=True)
"""

EAGLE_WORKER = """
class EAGLEWorker:
    def __init__(self, target_worker):
        embed, head = self.target_worker.model_runner.model.get_embed_and_head()
        if self.speculative_algorithm.is_eagle3():
            if (hasattr(self.draft_model_runner.model, "load_lm_head_from_target")
                    and self.draft_model_runner.model.load_lm_head_from_target):
                self.draft_model_runner.model.set_embed_and_head(embed, head)
            else:
                self.draft_model_runner.model.set_embed(embed)
            if self.draft_model_runner.model.hot_token_id is not None:
                self.hot_token_id = self.draft_model_runner.model.hot_token_id.to(embed.device)
        else:
            self.draft_model_runner.model.only_for_plain_eagle(embed, head)
        share(target_model=self.target_worker.model_runner.model)

def share(target_model):
    helper(model=target_model)

def helper(model):
    getattr(model, "lm_head", None)
    model.parameters()
"""

GRAPH_RUNNER = """
class CudaGraphRunner:
    def __init__(self, model_runner):
        if model_runner.spec_algorithm.is_eagle3() and model_runner.eagle_use_aux_hidden_state:
            self.model_runner.model.set_eagle3_layers_to_capture()
        if model_runner.dflash_use_aux_hidden_state:
            self.model_runner.model.set_dflash_layers()
"""

MODELS = {
    "llama.py": """
class LlamaForCausalLM(nn.Module):
    def forward(self): ...
    def get_embed_and_head(self): ...
    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None, *, strict: bool = DEFAULT): ...
    @property
    def start_layer(self): ...
EntryClass = [LlamaForCausalLM]
""",
    "llama_eagle3.py": """
from sglang.srt.models.llama import LlamaForCausalLM
class LlamaModel(nn.Module):
    def __init__(self, config):
        self.fc = torch.nn.Linear(self.hidden_size_in * 3, config.hidden_size)
class LlamaForCausalLMEagle3(LlamaForCausalLM):
    def __init__(self, config):
        if self.config.num_hidden_layers != 1:
            raise ValueError("EAGLE3 currently only supports 1 layer")
        self.hot_token_id = None
    def set_embed(self, embed): ...
EntryClass = LlamaForCausalLMEagle3
""",
    "wrapper.py": """
class Wrapper(nn.Module):
    def __init__(self, config):
        from sglang.srt.models.llama import LlamaForCausalLM
        self.language_model = LlamaForCausalLM(config)
    def forward(self): ...
class Plain(nn.Module):
    def forward(self): ...
EntryClass = [Wrapper]
EntryClass += [Plain]
""",
}

FILES: Mapping[str, str] = {
    "sglang/version.py": '__version__ = "0.5.9"\n',
    "sglang/srt/server_args.py": SERVER_ARGS,
    "sglang/srt/choices.py": 'BACKENDS = ["triton", "flashinfer", "fa3"]\n',
    "sglang/srt/environ.py": "class Envs:\n    SGLANG_ENABLE_SPEC_V2 = EnvBool(False)\n",
    "sglang/srt/utils/common.py": COMMON,
    "sglang/srt/speculative/eagle_worker.py": EAGLE_WORKER,
    "sglang/srt/model_executor/cuda_graph_runner.py": GRAPH_RUNNER,
    **{f"sglang/srt/models/{name}": text for name, text in MODELS.items()},
}

MakeTree = Callable[..., SourceTree]


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Write the small SGLang, some files replaced or left out (None), and open it."""

    def make(changed: Mapping[str, str | None] | None = None) -> SourceTree:
        root = tmp_path / "site"
        for name, text in {**FILES, **(changed or {})}.items():
            if text is not None:
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return source.from_directory(root)

    return make


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Pack files into a wheel of SGLang 0.5.9."""

    def make(files: Mapping[str, str]) -> Path:
        path = tmp_path / "sglang-0.5.9-py3-none-any.whl"
        path.unlink(missing_ok=True)  # the store may have linked what stood there
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in {**files, "sglang-0.5.9.dist-info/METADATA": "Name: sglang\nVersion: 0.5.9\n"}.items():
                archive.writestr(name, text)
        return path

    return make
