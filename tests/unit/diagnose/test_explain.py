import codecs
import io
import json
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stack_builder.cli.app import run
from stack_builder.diagnose.explain import confirm, explain, sieve
from stack_builder.diagnose.explain.literals import Literals
from stack_builder.diagnose.explain.patterns import knowledge, required_literals
from stack_builder.diagnose.explain.sieve import sift
from stack_builder.errors import UsageError
from stack_builder.report import Finding, Report, Severity, Skipped, Target, Verdict

CORPUS = Path(__file__).parents[2] / "corpus"
LOGS = json.loads((CORPUS / "server-logs" / "causes.json").read_text())
CASES = [
    pytest.param(case["cause"], case["text"], id=f"{name}-{number}")
    for name in ("reported", "heldout", "variants")
    for number, case in enumerate(map(json.loads, (CORPUS / f"{name}.jsonl").read_text().splitlines()), 1)
]
BUSY = "[2026-11-29 20:11:44 TP0] Decode batch, #running-req: {0}, #token: {0}31, gen throughput (token/s): {0}.5\n"
READY = "[2026-11-29 20:10:00] The server is fired up and ready to roll!\n"
SIGQUIT = "[2026-11-29 20:10:54] Received sigquit from a child process. It usually means the child failed.\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory.\n"
NO_NVCC = "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist\n"


def explained(text: str | bytes) -> Report:
    return explain(io.BytesIO(text.encode() if isinstance(text, str) else text), "text")


def first_cause(text: str | bytes) -> str | None:
    return explained(text).findings[0].cause


def traceback(final: str) -> str:
    return f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n{final}'


@pytest.mark.parametrize(("cause", "text"), CASES)
def test_the_cause_of_a_known_text_comes_first(cause: str, text: str) -> None:
    assert first_cause(text) == cause


BLIND = [json.loads(line) for line in (CORPUS / "blind.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", BLIND, ids=lambda case: case["source"])
def test_a_text_gathered_blind_is_never_explained_wrongly_without_its_cause_among_those_named(
    case: dict[str, str],
) -> None:
    first, *others = explained(case["text"]).findings
    named = {first.cause, *(other.cause for other in others), *first.evidence.get("could_also_be", ())}  # type: ignore[misc]
    assert case["cause"] in named or first.cause is None  # nothing is guessed
    assert first.cause == case["cause"] or first.evidence.get("confidence") != "certain"


def test_of_the_texts_gathered_blind_so_many_have_their_cause_first() -> None:
    assert len(BLIND) == 210
    assert sum(first_cause(case["text"]) == case["cause"] for case in BLIND) >= 203


FOREIGN = [json.loads(line) for line in (CORPUS / "foreign.jsonl").read_text().splitlines()]
OURS = re.compile(r"SGLang|MAX_JOBS|--port|--mem-|HF_HOME|TRITON|stack pins|wheel|stackb lock|weights")


@pytest.mark.parametrize("case", FOREIGN, ids=lambda case: case["text"][:30])
def test_a_text_of_another_program_gets_no_fix_of_a_serving_stack(case: dict[str, str | None]) -> None:
    findings = explained(str(case["text"])).findings
    assert findings[0].cause == case["cause"]
    assert not [fix for finding in findings if finding.rule != "LOG003" for fix in finding.fix if OURS.search(fix)]


def test_the_same_text_beside_sglang_gets_its_fix() -> None:
    (finding, *_) = explained("sglang/srt/utils.py\nOSError: [Errno 98] Address already in use").findings
    assert any("--port" in fix for fix in finding.fix)
    (finding, *_) = explained("ModuleNotFoundError: No module named 'xgrammar'").findings
    assert any("SGLang pins" in fix for fix in finding.fix)
    text = "  File sglang/srt/layers/linear.py\nAssertionError: 3 is not divisible by 2"
    assert first_cause(text) == "option_invalid"


def test_a_request_that_a_running_server_refused_ended_nothing() -> None:
    refused = traceback("ValueError: The input (9000 tokens) is longer than the model's context (8192 tokens).\n")
    said = explained(READY + refused).findings[0].detail or ""
    assert "ended the process" not in said
    assert "nothing shows that it ended" in said
    assert "ended the process" in (explained(READY + refused + SIGQUIT).findings[0].detail or "")


def test_a_scheduler_that_was_killed_is_known() -> None:
    text = "[2026-11-29 20:10:54] Rank 0 scheduler is dead. Please check if there are relevant logs.\nExit code: -9\n"
    assert first_cause(text) == "memory_exhausted"


def test_shared_memory_of_a_data_loader_is_named() -> None:
    text = (
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's"
        " workers are out of shared memory. Please try to raise your shared memory limit."
    )
    finding = explained(text).findings[0]
    assert finding.cause == "environment_variable_or_host_setting"
    assert any("--shm-size" in fix for fix in finding.fix)


def test_docker_without_the_container_toolkit_is_told_to_install_it() -> None:
    text = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    finding = explained(text).findings[0]
    assert (finding.cause, finding.evidence["confidence"]) == ("no_gpu_visible", "certain")
    assert "nvidia-container-toolkit" in finding.fix[0]


def test_cublas_of_another_major_than_the_image() -> None:
    text = "CUBLAS_STATUS_NOT_INITIALIZED\ntorch 2.13.0+cu130 (inside a CUDA 12.9 container)"  # flashinfer#4284
    assert first_cause(text) == "resolver_replaced_or_misselected_torch"
    assert first_cause("CUBLAS_STATUS_NOT_INITIALIZED\ntorch 2.13.0+cu130") == "memory_exhausted"
    driver = "| Driver Version: 580.95    CUDA Version: 12.9 |"
    assert first_cause(f"CUBLAS_STATUS_NOT_INITIALIZED\ntorch 2.13.0+cu130\n{driver}") == "memory_exhausted"


def test_a_draft_without_its_vocabulary_map_is_incomplete() -> None:
    text = "draft_vocab_size < target vocab_size and no d2t/t2d tensor in model.safetensors"
    assert first_cause(text) == "draft_checkpoint_incomplete"


def test_a_model_type_that_transformers_does_not_know_wants_a_newer_release() -> None:
    text = "ValueError: The checkpoint has model type `foo` but Transformers does not recognize this architecture."
    assert "newer SGLang" in explained(text).findings[0].fix[0]


def test_a_model_that_a_release_does_not_know_wants_a_newer_one() -> None:
    text = "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported: dict_keys(['A'])"
    assert "newer SGLang" in explained(text).findings[0].fix[0]


@pytest.mark.parametrize("name", LOGS)
def test_the_cause_of_a_server_log_comes_first(name: str) -> None:
    with (CORPUS / "server-logs" / name).open("rb") as stream:
        assert explain(stream, name).findings[0].cause == LOGS[name]


def test_evidence_gives_the_line_of_the_file() -> None:
    path = CORPUS / "server-logs" / "07-draft-is-the-target.log"
    expected = 1 + next(n for n, line in enumerate(path.read_text().split("\n")) if "hot_token_id'" in line)
    lines = explained(path.read_bytes()).findings[0].evidence["lines"]
    assert lines[0]["line"] == expected  # type: ignore[index]


def test_an_optional_import_that_failed_is_no_cause() -> None:
    report = explained((CORPUS / "server-logs" / "14-no-xgrammar.log").read_bytes())
    assert "xgrammar" in report.findings[0].detail
    assert "tilelang" not in str(report.findings[0].evidence)


def test_the_advice_below_a_failed_graph_capture_is_not_followed() -> None:
    text = f"""[2026-11-29 20:10:54 TP0] Scheduler hit an exception: {traceback(NO_NVCC)}
During handling of the above exception, another exception occurred:

{traceback("Exception: Capture cuda graph failed: Could not find nvcc")}
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs to a smaller value (e.g., 16)

{SIGQUIT}"""
    report = explained(text)
    assert report.findings[0].cause == "toolkit_or_nvcc_resolution"
    assert "memory_exhausted" not in [finding.cause for finding in report.findings]


def test_what_killed_the_server_outranks_what_it_survived() -> None:
    survived = traceback("OSError: /models/x does not appear to have a file named config.json.\n")
    died = f"[2026-11-29 20:12:00 TP0] Scheduler hit an exception: {traceback(OOM)}"
    text = READY + survived + BUSY.format(1) * 3000 + died + SIGQUIT
    assert first_cause(text) == "memory_exhausted"


def test_the_first_rank_to_fail_outranks_those_that_lost_it() -> None:
    first = f"[2026-11-29 20:12:00 TP1] Scheduler hit an exception: {traceback(OOM)}"
    last = "[2026-11-29 20:12:09 TP0] Scheduler hit an exception: " + traceback(
        "torch.distributed.DistBackendError: NCCL error, remote process exited or there was a network error\n"
        "ncclSystemError: System call failed\n"
    )
    assert first_cause(first + last + SIGQUIT) == "memory_exhausted"


HEAD = """[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error
[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.
"""
CUDA_TEXTS = {  # of cudaGetErrorString
    "out of memory": "memory_exhausted",
    "peer access is not supported between these two devices": "pcie_p2p_platform",
    "CUDA driver version is insufficient for CUDA runtime version": "driver_older_than_needed",
    "no kernel image is available for execution on the device": "no_code_for_this_arch_in_binary",
    "system not yet initialized": "environment_variable_or_host_setting",
    "CUDA driver is a stub library": "wrong_library_wins_in_loader_path",
}


@pytest.mark.parametrize(("said", "cause"), CUDA_TEXTS.items())
def test_the_cause_of_an_unhandled_cuda_error_stands_below_it_or_in_nccls_log_above(said: str, cause: str) -> None:
    below = f"[rank1]: Last error:\n[rank1]: Cuda failure 2 '{said}'\n"
    above = f"node7:31:45 [1] include/alloc.h:178 NCCL WARN Cuda failure 2 '{said}'\n"
    between = "node7:31:45 [1] NCCL INFO transport/p2p.cc:204 -> 1\n" * 50
    for text in (HEAD + below, above + between + traceback(HEAD) + SIGQUIT):
        findings = explained(text).findings
        assert [finding.cause for finding in findings] == [cause]  # what only stands for it is not told as well


NINJA = "RuntimeError: Ninja build failed. Ninja output:\n" + "[1/9] /usr/local/cuda/bin/nvcc -c a.cu -o a.o\n" * 60
STOPPED = "ninja: build stopped: subcommand failed.\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            traceback(f"{NINJA}g++: fatal error: Killed signal terminated program cc1plus\n{STOPPED}"),
            "memory_exhausted",
        ),
        (
            traceback(f"{NINJA}nvcc fatal   : Unsupported gpu architecture 'compute_121a'\n{STOPPED}"),
            "toolkit_or_nvcc_resolution",
        ),
        (
            traceback("ImportError: common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib\n")
            + DURING
            + traceback("ImportError: sgl_kernel is not installed. Please install it with pip install sgl-kernel\n"),
            "torch_minor_abi_mismatch",
        ),
        (
            traceback("torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with:\n")
            + traceback(OOM),
            "memory_exhausted",
        ),
        (
            traceback(
                "RuntimeError: Failed to import transformers.models.llama because of the following error "
                "(look up to see its traceback):\nlibcudnn.so.9: cannot open shared object file: No such file\n"
            ),
            "library_missing",
        ),
        (
            "error: Failed to fetch: `torch.whl`\n  Caused by: Permission denied (os error 13)\n",
            "environment_variable_or_host_setting",
        ),
    ],
)
def test_the_line_that_says_what_failed_counts_and_not_the_one_that_says_that_something_did(
    text: str, cause: str
) -> None:
    assert first_cause(text) == cause


def test_a_library_that_could_not_be_loaded_explains_the_operation_that_is_missing_much_later() -> None:
    error = "ImportError('_C.so: undefined symbol: ncclCommRegister')"
    warned = f"WARNING _custom_ops.py:11] Failed to import from vllm._C with {error}\n"
    failed = traceback("AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'\n")
    assert first_cause(failed) == "extension_built_without_arch_or_symbol"
    assert first_cause(warned + BUSY.format(1) * 500 + failed) == "wrong_library_wins_in_loader_path"
    assert first_cause(warned + BUSY.format(1) * 5000 + failed) == "extension_built_without_arch_or_symbol"


@pytest.mark.parametrize(
    "symptom", [HEAD, f"{HEAD}Last error:\nCuda failure 1 'invalid argument'\n", "CUDA error: misaligned address\n"]
)
def test_a_symptom_names_no_cause(symptom: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(traceback(f"RuntimeError: {symptom}"))
    report = explained(log.read_bytes())
    assert [(finding.rule, finding.cause) for finding in report.findings] == [("LOG005", None)]
    assert report.verdict is Verdict.INCOMPLETE
    assert run(["explain", str(log)]) == 3
    assert "look next" in capsys.readouterr().out


def test_what_else_the_text_shows_stands_behind_the_symptom_that_ended_it() -> None:
    text = f"{NO_NVCC}{BUSY.format(1) * 3000}{traceback('RuntimeError: CUDA error: misaligned address')}\n{SIGQUIT}"
    report = explained(text)
    assert [finding.cause for finding in report.findings] == ["toolkit_or_nvcc_resolution"]
    survived = "WARNING: Killed signal terminated program cc1plus\n"
    first, second = explained(survived + text.removeprefix(NO_NVCC)).findings
    assert (first.rule, first.cause, second.cause) == ("LOG005", None, "memory_exhausted")


def test_a_warning_is_no_cause_of_an_exception_that_is_not_known() -> None:
    warned = "[2026-11-29 20:10:00] WARNING Max running requests is reset to 48 for speculative decoding.\n"
    died = (
        f"[2026-11-29 20:12:00 TP0] Scheduler hit an exception: {traceback('zebra.StripeError: vertical')}\n{SIGQUIT}"
    )
    first, second = explained(warned + BUSY.format(1) * 100 + died).findings
    assert (first.rule, first.cause) == ("LOG003", None)
    assert (second.rule, second.cause) == ("LOG002", "speculation_setting_or_load")
    assert first_cause(warned) == "speculation_setting_or_load"


@pytest.mark.parametrize(
    ("majors", "cause"),
    [  # flashinfer 0.6.4: jit/comm.py, MLA and MoE of CUTLASS, most GEMMs
        ("[9, 10]", "framework_gate_or_pin_wrong_for_sm12x"),
        ("[10, 11]", "framework_gate_or_pin_wrong_for_sm12x"),
        ("[10, 11, 12]", "toolkit_or_nvcc_resolution"),
    ],
)
def test_a_list_without_12_is_a_gate_and_one_with_it_an_nvcc_that_is_too_old(majors: str, cause: str) -> None:
    text = f"RuntimeError: No supported CUDA architectures found for major versions {majors}.\nGPU: NVIDIA RTX PRO 6000"
    assert first_cause(text) == cause


def test_a_clean_stop_is_no_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(READY + BUSY.format(3) * 5 + "Subprocess scheduler crashed with exit code -15\n")
    assert explained(log.read_bytes()).verdict is Verdict.PASS
    assert run(["explain", str(log)]) == 0
    assert "nothing is wrong" in " ".join(capsys.readouterr().out.split())  # wrapped where the path is long


def test_a_text_of_which_nothing_is_known_could_not_be_told(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("It rained all day, and I read.\n")
    assert run(["explain", str(tmp_path / "diary")]) == 3


def test_a_closed_standard_input_is_nothing_to_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert run(["explain"]) == 2
    assert "nothing to read" in capsys.readouterr().err


def test_an_unknown_failure_is_shown_and_not_guessed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(traceback("zebra.StripeError: stripes are vertical\n"))
    report = explained(log.read_bytes())
    assert report.verdict is Verdict.INCOMPLETE
    assert [finding.cause for finding in report.findings] == [None]
    assert "stripes are vertical" in str(report.findings[0].evidence)
    assert run(["explain", str(log)]) == 3
    assert "StripeError" in capsys.readouterr().out


def test_a_text_that_fits_several_causes_says_what_to_look_at() -> None:
    finding = explained(
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"
    ).findings[0]
    assert (finding.severity, finding.evidence["confidence"]) == (Severity.WARNING, "possible")
    assert "library_missing" in finding.evidence["could_also_be"]  # type: ignore[operator]
    assert finding.evidence["look_next"]


def test_a_mangled_name_is_shown_readable() -> None:
    finding = explained("ImportError: x.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib").findings[0]
    assert finding.evidence["symbol"] == "c10::MessageLogger::MessageLogger(char const*, int, int, bool)"


@pytest.mark.parametrize(
    "text",
    [
        f"\x1b[31m{NO_NVCC.replace('nvcc', chr(27) + '[1mnvcc' + chr(27) + '[0m', 1)}",
        NO_NVCC.replace("\n", "\r\n"),
        NO_NVCC.rstrip(),
        "Loading:  10%\rLoading: 100%\r" + NO_NVCC,
        "web-1  | " + NO_NVCC,
        "(EngineCore_DP0 pid=12) ERROR 11-29 20:11:44 [core.py:1] " + NO_NVCC,
        "x" * 3_000_000 + "\n" + NO_NVCC,
        "\x00\x00\n" + NO_NVCC,
    ],
)
def test_dress_does_not_matter(text: str) -> None:
    assert first_cause(text) == "toolkit_or_nvcc_resolution"
    assert not any(c in str(explained(text).findings[0].evidence) for c in ("\x1b", "\\x1b"))


def test_utf16_from_a_shells_redirection_is_read() -> None:
    assert first_cause(codecs.BOM_UTF16_LE + NO_NVCC.encode("utf-16-le")) == "toolkit_or_nvcc_resolution"
    assert first_cause(b"\xff\xfe\xff" + NO_NVCC.encode()) is None  # a mark that lies does no harm


@pytest.mark.parametrize("text", ["", "\n\n \n"])
def test_an_empty_text_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="empty"):
        explained(text)


def test_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "/nowhere/server.log"]) == 2
    assert capsys.readouterr().err == "stackb: /nowhere/server.log: no such file\n"


def test_json_and_sarif_come_out_whole(capsys: pytest.CaptureFixture[str]) -> None:
    log = str(CORPUS / "server-logs" / "L2-libnvrtc.so.13-missing.log")
    assert run(["explain", log, "--format", "json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["target"], body["findings"][0]["cause"]) == ({"kind": "log", "name": log}, "library_missing")
    assert run(["explain", log, "--format", "sarif"]) == 1
    assert json.loads(capsys.readouterr().out)["version"] == "2.1.0"


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([*(BUSY.format(n) for n in range(3)), NO_NVCC, traceback("KeyError: 12\n"), "\n", "é\n"]))
)
def test_chunks_of_any_size_keep_the_same_lines(parts: list[str]) -> None:
    data = "".join(parts).encode()
    wanted = knowledge().wanted
    whole = sift(io.BytesIO(data), wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sieve, "CHUNK", 200)
        pieces = sift(io.BytesIO(data), wanted)
    numbers = {
        number for number, line in enumerate(data.decode().split("\n"), 1) if "nvcc" in line or "KeyError" in line
    }
    for sifted in (whole, pieces):
        kept = [line.number for line in sifted.lines]
        assert numbers <= set(kept)
        assert kept == sorted(set(kept))
        assert all(line.text == data.decode().split("\n")[line.number - 1] for line in sifted.lines)


def test_memory_is_bounded_by_keeping_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "MAX_KEPT", 50)
    data = "".join(f"ValueError: number {n}\n" for n in range(1000))
    sifted = sift(io.BytesIO(data.encode()), frozenset())
    assert [line.number for line in sifted.lines] == [*range(1, 51), *range(951, 1001)]
    assert (sifted.total, sifted.dropped) == (1000, 900)


def test_long_lines_are_bounded_by_their_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "MAX_CHARACTERS", 10_000)
    monkeypatch.setattr(sieve, "CHUNK", 1000)
    data = "".join(f"ValueError: number {n} {'x' * 500}\n" for n in range(1000))
    sifted = sift(io.BytesIO(data.encode()), frozenset())
    numbers = [line.number for line in sifted.lines]
    assert (numbers[0], numbers[-1]) == (1, 1000)
    assert numbers == sorted(set(numbers))
    assert sum(len(line.text) for line in sifted.lines) < 2 * 10_000 + 3 * 1000
    assert sifted.dropped == 1000 - len(numbers)


@settings(max_examples=100)
@given(
    st.sets(st.text("ab1é.|\\ [", min_size=1, max_size=7), max_size=150),
    st.lists(st.text("ab12é中\udc80?.|\\ [", max_size=30), max_size=5),
)
def test_the_strings_that_a_text_holds(strings: set[str], texts: list[str]) -> None:
    literals = Literals((string, string) for string in strings)
    for text in [*texts, *(f"b{string}1a" for string in strings)]:
        expected = {string for string in strings if string in text}
        assert literals.any_in(text) or not expected
        assert set(literals.held(text)) == expected


@pytest.mark.parametrize("text", ["普通的一行 Error: é", b"\xff\x80 \xc3".decode("utf-8", "replace"), "\udc80 line"])
def test_the_automaton_is_given_no_more_than_60_letters(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more it takes ten times as long, among characters that are not ASCII forty times."""
    asked: list[str] = []

    class Spy:
        def __init__(self, schema: dict[str, str]) -> None:
            asked.append(schema["pattern"])

        def isinstance_python(self, given: str) -> bool:
            asked.append(given)
            return True

    monkeypatch.setattr("stack_builder.diagnose.explain.literals.SchemaValidator", Spy)
    literals = Literals((f"string {number} ü", number) for number in range(40))
    literals.any_in(text + "".join(map(chr, range(300))))
    pattern, given = asked
    assert set(pattern) - set("|") <= set(given)
    assert len(set(given)) <= 60
    assert given.isascii()


def test_the_lines_of_a_server_that_runs_are_passed_over() -> None:
    sieved = Literals((literal, None) for literal, _ in knowledge().wanted)
    assert not any(sieved.any_in(BUSY.format(number)) for number in range(3000))
    assert sieved.any_in(OOM)


@pytest.mark.parametrize(
    ("regex", "literal"),
    [
        (r"undefined symbol: (cu[A-Z])\w+", "undefined symbol: "),
        (r"abc?def", "def"),
        (r"abcd*efg", "abc"),
        (r"colou?rfully", "rfully"),
        (r"ab+cd", "ab"),
        (r"x\.so\.13: cannot", "x.so.13: cannot"),
        (r"\w+|three", ""),
        (r"[\]a-z]hello\d+world!", "world!"),
        (r"(?:a|b){2}tail", "tail"),
        (r"\+cpu\b", "+cpu"),
    ],
)
def test_the_literal_that_a_match_must_hold(regex: str, literal: str) -> None:
    assert required_literals(regex) == ((literal,) if literal else ())


def test_where_alternatives_have_literals_a_match_must_hold_one() -> None:
    assert set(required_literals(r"one|thr(?:e|E){2}")) == {"one", "thr"}
    assert set(required_literals(r"\b(?:cuInit|nv(?P<x>Link)?Create)\d+ x")) == {"cuInit", "Create"}
    assert required_literals(r"(?!never)(?:abcdef)?xyz") == ("xyz",)
    assert required_literals(r"(?:\d|abcdef)xy") == ("xy",)


def _grouped(pairs: tuple[tuple[str, re.Pattern[str]], ...]) -> dict[re.Pattern[str], list[str]]:
    grouped: dict[re.Pattern[str], list[str]] = {}
    for literal, text in pairs:
        grouped.setdefault(text, []).append(literal)
    return grouped


PATTERNS = [
    (pattern.id, text, literals)
    for pattern in knowledge().patterns
    for text, literals in _grouped(pattern.texts).items()
]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_match_lacks_its_literal(data: st.DataObject) -> None:
    """Whatever a pattern matches (made by hypothesis from the regular expression) holds the literal we search first."""
    _, text, literals = data.draw(st.sampled_from(PATTERNS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = data.draw(st.from_regex(text))
    assert any(literal in example for literal in literals)


@pytest.mark.timeout(60)
def test_no_hostile_line_makes_a_pattern_hang() -> None:
    for literal, regex in knowledge().wanted:
        for line in (
            f"{literal} " * 1000,
            literal + "a" * 16000,
            literal + "1.1.1" * 3000,
            "torch " * 1300 + literal + "1.1" * 2000,
        ):
            regex.search(line[: sieve.MAX_LINE])


def test_patterns_name_their_causes_and_fill_their_sentences() -> None:
    for pattern in knowledge().patterns:
        groups = {name for _, text in pattern.texts for name in text.groupindex}
        assert set(re.findall(r"\{(\w+)\}", pattern.meaning)) <= groups, pattern.id
        assert pattern.cause not in pattern.also, pattern.id


MISSING_13 = "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory"


def examined(*findings: Finding, skipped: tuple[Skipped, ...] = ()) -> Report:
    return Report(Target("venv", "/opt/venv"), findings, skipped)


def results(report: Report) -> dict[str | None, object]:
    return {finding.cause: finding.evidence["result"] for finding in report.findings if finding.rule == "LOG004"}


def test_a_static_check_decides_between_causes_that_fit() -> None:
    text = explained(MISSING_13)
    assert text.findings[0].cause == "cuda_major_mixed_between_wheels"
    found = Finding("ABI002", Severity.ERROR, "A library is missing", cause="library_missing", fix=("install it",))
    joined = confirm(text, examined(found))
    assert (joined.findings[0].cause, joined.findings[0].severity) == ("library_missing", Severity.ERROR)
    assert results(joined)["library_missing"] == "confirmed"
    assert results(joined)["cuda_major_mixed_between_wheels"] == "refuted"
    confirmed = next(f for f in joined.findings if f.evidence.get("result") == "confirmed")
    assert confirmed.fix == ("install it",)


def test_a_check_that_could_not_run_refutes_nothing() -> None:
    text = explained("undefined symbol: cuGreenCtxDestroy")
    assert results(confirm(text, examined(skipped=(Skipped("HOST001", "no driver"),))))["driver_older_than_needed"] == (
        "not checked"
    )
    busy = explained(
        "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use"
    )
    assert set(results(confirm(busy, examined())).values()) == {"not checked"}
