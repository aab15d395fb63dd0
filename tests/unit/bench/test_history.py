"""The experiment log under crashes and company, its views, and files of other tools."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from PIL import Image

from stack_builder.bench import history
from stack_builder.bench.compare import comparisons
from stack_builder.bench.foreign import import_file
from stack_builder.bench.page import page
from stack_builder.bench.plot import charts, write_plot
from stack_builder.bench.results import Results, from_json, read, to_json
from stack_builder.bench.svg import draw
from stack_builder.bench.tables import report_markdown, report_text
from stack_builder.cli.app import run
from stack_builder.errors import UsageError

MakeResults = Callable[..., Results]
FOUNDING = Path(__file__).parents[3] / "docs" / "bench" / "founding-report.json"


@pytest.fixture
def pair(results: MakeResults) -> Results:
    return results(
        {"base": lambda n: 100 * n / (1 + n / 60), "ea<gle": lambda n: 180 * n / (1 + n / 20)}, levels=(1, 5, 30, 100)
    )


def test_what_is_written_is_read_back(pair: Results, tmp_path: Path) -> None:
    assert from_json(to_json(pair)) == pair
    history.append(pair, tmp_path / "deep" / "log.jsonl")
    history.append(pair, tmp_path / "deep" / "log.jsonl")
    assert history.read_log(tmp_path / "deep" / "log.jsonl") == ([pair, pair], [])


def test_results_follow_their_schema(pair: Results, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "bench"]) == 0
    jsonschema.validate(json.loads(to_json(pair)), json.loads(capsys.readouterr().out))


def test_half_a_line_costs_its_own_bench_alone(pair: Results, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    history.append(pair, log)
    whole = log.read_bytes()
    for cut in (1, 100, len(whole) // 2, len(whole) - 2):
        log.write_bytes(whole + whole[:cut])
        history.append(pair, log)
        found, problems = history.read_log(log)
        assert found == [pair, pair]
        assert len(problems) == 1
        assert "log.jsonl:2: half a line" in problems[0]


def test_writers_at_once_lose_nothing(pair: Results, tmp_path: Path) -> None:
    """Each append opens the file anew, so that the lock holds between threads as it does between processes."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: history.append(pair, tmp_path / "log"), range(16)))
    assert history.read_log(tmp_path / "log") == ([pair] * 16, [])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"id": 3}', "null", "\x00"])
def test_what_is_no_result_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match="not results of stackb bench"):
        read(tmp_path / "r.json")


def test_ids_choose(pair: Results) -> None:
    assert history.chosen([pair], ["20260101"]) == [pair]
    with pytest.raises(UsageError, match="no bench '1999'"):
        history.chosen([pair], ["1999"])


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_needs_nothing_from_anywhere(pair: Results) -> None:
    text = page([pair, read(FOUNDING)])
    seen = Page(text)
    assert not [tag for tag, _ in seen.tags if tag in ("script", "img", "iframe", "object")]
    links = [value for _, attrs in seen.tags for key, value in attrs.items() if key in ("href", "src")]
    ids = {attrs.get("id") for _, attrs in seen.tags}
    assert links
    assert all(link == "data:," or str(link)[1:] in ids for link in links)
    assert "url(" not in text
    assert "ea<gle" not in text
    assert "ea&lt;gle" in text


def test_curves_and_table_agree_with_the_data(pair: Results) -> None:
    throughput = charts(pair)[0]
    titles = re.findall(r"<title>ea&lt;gle, 30: ([0-9.]+) tok/s", draw(throughput))
    rates = [r.figures.full_throughput for r in pair.runs if (r.arm, r.level) == ("ea<gle", 30)]
    mean = sum(rates) / len(rates)
    assert float(titles[0]) == pytest.approx(mean, rel=1e-3)
    assert f"{mean:.1f}" in report_text(pair)
    assert f"| {mean:.1f} |" in report_markdown(pair)


def test_each_chart_is_an_svg(pair: Results, tmp_path: Path) -> None:
    for chart in charts(pair):
        root = ElementTree.fromstring(draw(chart, standalone=True))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("aria-label") == chart.title
    write_plot([pair], tmp_path / "p.svg")
    ElementTree.fromstring((tmp_path / "p.svg").read_text())
    with pytest.raises(UsageError, match="neither"):
        write_plot([pair], tmp_path / "p.gif")
    with pytest.raises(UsageError, match="2 benches"):
        write_plot([pair, pair], tmp_path / "p.svg")


@pytest.fixture
def rendered(pair: Results, tmp_path: Path) -> str:
    """The page's document as a browser has it after loading, without a message on its console."""
    (tmp_path / "page.html").write_text(page([pair]))
    words = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --enable-logging=stderr"
    words += " --disable-background-networking --disable-component-update --dump-dom"
    call = ["chromium", *words.split(), f"--user-data-dir={tmp_path / 'profile'}", f"file://{tmp_path / 'page.html'}"]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    return done.stdout


def _mean_rate(results: Results, arm: str, level: float) -> float:
    rates = [run_.figures.full_throughput for run_ in results.runs if (run_.arm, run_.level) == (arm, level)]
    return sum(rates) / len(rates)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium")
def test_table_and_points_in_a_browser_are_the_data(pair: Results, rendered: str) -> None:
    for arm in ("base", "ea<gle"):
        name = arm.replace("<", "&lt;")
        table = rendered.partition(f"<caption>{name}</caption>")[2].partition("</table>")[0]
        rows = re.findall(r'<tr><th scope="row" class="left">(.*?)</th>(.*?)</tr>', table)
        shown = {float(level): float(re.findall(r"<td>(.*?)</td>", cells)[1]) for level, cells in rows}
        assert shown == {level: pytest.approx(_mean_rate(pair, arm, level), abs=0.06) for level in pair.settings.levels}

        chart = rendered.partition("<svg")[2].partition("</svg>")[0]  # throughput; both axes are logarithmic
        x = dict(re.findall(r'class="tick" x="([\d.]+)" y="\d+" text-anchor="middle">([\d.]+)<', chart))
        y = dict(re.findall(r'class="tick" x="\d+" y="([\d.]+)" text-anchor="end">([\d.]+)<', chart))
        points = re.findall(rf'translate\(([\d.]+) ([\d.]+)\)"[^>]*><title>{name}, ([\d.]+):', chart)
        assert [float(level) for _, _, level in points] == list(pair.settings.levels)
        for left, top, level in points:
            assert x[left] == level
            # a tick's text stands 4 below its line
            assert _read_off(y, float(top) + 4) == pytest.approx(_mean_rate(pair, arm, float(level)), rel=0.01)


def _read_off(ticks: dict[str, str], at: float) -> float:
    """The value at a height, by the outermost two ticks of a logarithmic axis."""
    marks = sorted((float(place), math.log(float(value))) for place, value in ticks.items())
    (low, first), (high, last) = marks[0], marks[-1]
    return math.exp(first + (last - first) * (at - low) / (high - low))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium")
def test_verdicts_and_crossover_in_a_browser_are_what_is_said(pair: Results, rendered: str) -> None:
    said = re.findall(r'<td data-says="(.*?)">', rendered)
    (compared,) = comparisons(pair)
    assert said == [ratio.says.value for _, ratio in sorted(compared.ratios.items())]
    band = re.search(r'class="band" x="([\d.]+)" y="\d+" width="([\d.]+)".*?<title>(.*?)</title>', rendered)
    assert band is not None
    interval = f"{compared.crossover.low:.1f} to {compared.crossover.high:.1f}"
    assert band[3] == f"ea&lt;gle: crossover, 95 % interval: {interval}"
    ticks = dict(re.findall(r'class="tick" x="([\d.]+)" y="\d+" text-anchor="middle">([\d.]+)<', rendered))
    assert _read_off(ticks, float(band[1])) == pytest.approx(compared.crossover.low, rel=0.01)
    assert _read_off(ticks, float(band[1]) + float(band[2])) == pytest.approx(compared.crossover.high, rel=0.01)


def test_a_png_is_drawn_of_the_same_points(pair: Results, tmp_path: Path) -> None:
    """Read back by the decoder of another library than the one that drew it."""
    (tmp_path / "r.json").write_text(to_json(pair))
    assert run(["history", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png")]) == 0
    with Image.open(tmp_path / "p.png") as drawn:
        assert (drawn.format, drawn.size) == ("PNG", (1200, 675))
        assert len(drawn.convert("RGB").getcolors(1 << 20)) > 100  # curves, a band and text, not a blank


def test_a_png_without_matplotlib_is_one_line(
    pair: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "r.json").write_text(to_json(pair))
    assert run(["history", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png")]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "p.png").exists()


def test_the_founding_report_as_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of docs/bench/README.md; what is imported twice stands in the log once."""
    monkeypatch.setenv("STACKB_STATE_DIR", str(tmp_path))
    assert run(["history", "--import", str(FOUNDING), "--import", str(FOUNDING)]) == 0
    assert "is in the log already" in capsys.readouterr().err
    assert run(["history", "20260305"]) == 0
    shown = capsys.readouterr().out
    assert "likely cause: a cap of 48 running requests" in shown
    table = {1: 77.5, 2: 125.1, 5: 183.2, 10: 239.6, 30: 299.5, 70: 337.7, 100: 338.8, 250: 340.9}
    for clients, rate in table.items():
        assert re.search(rf"^  {clients} +1 +{rate} ", shown, re.MULTILINE)


BENCH_SERVING = {
    "backend": "sglang-oai", "request_rate": float("inf"), "max_concurrency": 16, "server_info": {"version": "0.5.17"},
    "duration": 2.0, "completed": 64, "total_input_tokens": 640, "total_output_tokens": 8192, "concurrency": 15.7,
    "output_throughput": 4096.0, "accept_length": 2.63, "errors": [""] * 63 + ["timeout"],
    **{f"{stat}_{name}_ms": 5.0 for name in ("ttft", "tpot", "itl", "e2e_latency")
       for stat in ("mean", "median", "p90", "p99")},
}  # fmt: skip


def _distribution(mean: float) -> dict[str, object]:
    return {"successful": {"mean": mean, "count": 9, "percentiles": {"p50": mean, "p90": mean, "p99": mean}}}


GUIDELLM = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 8}},
            "duration": 4.0,
            "metrics": {
                "request_totals": {"successful": 9, "errored": 1, "incomplete": 0, "total": 10},
                "output_tokens_per_second": _distribution(500.0),
                "output_token_count": _distribution(128.0),
                "prompt_token_count": _distribution(16.0),
                "time_to_first_token_ms": _distribution(12.0),
                "inter_token_latency_ms": _distribution(3.0),
                "request_latency": _distribution(0.5),
            },
        }
    ]
}
AIPERF_CSV = """\
Metric,avg,min,max,p50,p90,p99
Request Latency (ms),2000.00,1,9,2000.00,2100.00,2200.00
Time to First Token (ms),30.00,1,9,30.00,31.00,32.00

Metric,Value
Output Token Throughput (tokens/sec),"700.5"
Request Throughput (requests/sec),8.00
Request Count (requests),80.00
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", json.dumps(BENCH_SERVING) + "\n", ("bench_serving", 16, 4096.0, 64, 1)),
        ("g.json", json.dumps(GUIDELLM), ("guidellm", 8, 500.0, 9, 1)),
        ("p.csv", AIPERF_CSV, ("aiperf", 16, 700.5, 80, 0)),
        (
            "p.json",
            json.dumps(
                {
                    "output_token_throughput": {"unit": "tokens/sec", "avg": 9.5},
                    "input_config": {"loadgen": {"concurrency": 4}},
                }
            ),
            ("aiperf", 4, 9.5, 0, 0),
        ),
    ],
)
def test_files_of_other_tools(name: str, text: str, expected: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = import_file(tmp_path / name)
    seen = found.runs[0]
    errors = sum(seen.figures.errors.values())
    assert (found.source, seen.level, seen.figures.throughput, seen.figures.completed, errors) == expected
    assert from_json(to_json(found)) == found
    assert report_text(found)


# Files that the tools wrote: 16 requests of 32 tokens by 4 clients to the stand-in server. Those of GuideLLM and AIPerf
# are cut down to what is read of them. Figures stand as the tools printed them.
REAL = Path(__file__).parents[2] / "fixtures" / "bench"


@pytest.mark.parametrize(
    ("name", "source", "throughput", "ttft", "e2e"),
    [
        ("bench_serving.jsonl", "bench_serving", 915.18, 49.37, 119.35),
        ("guidellm.json", "guidellm", 1146.62, 13.67, 92.64),
        ("aiperf.json", "aiperf", 571.84, 40.47, 136.14),
    ],
)
def test_files_that_the_tools_wrote(name: str, source: str, throughput: float, ttft: float, e2e: float) -> None:
    found = import_file(REAL / name)
    seen = found.runs[0].figures
    assert (found.source, found.runs[0].level, found.settings.tokens) == (source, 4, 32)
    assert (seen.completed, seen.tokens, seen.errors) == (16, 512, {})
    assert any("--output-details" in note for note in found.notes) == (source == "bench_serving")
    assert seen.throughput == pytest.approx(throughput, abs=0.01)
    # AIPerf's own duration is longer than the span of its throughput
    assert seen.throughput == pytest.approx(seen.tokens / seen.seconds, rel=0.06)
    assert seen.ttft
    assert seen.e2e
    assert (seen.ttft.p50, seen.e2e.mean) == pytest.approx((ttft, e2e), abs=0.01)


def test_the_table_of_aiperf_is_its_json() -> None:
    table, document = (import_file(REAL / f"aiperf.{kind}").runs[0] for kind in ("csv", "json"))
    assert table.figures.tokens == document.figures.tokens == 512
    assert table.figures.completed == document.figures.completed == 16
    assert table.figures.throughput == pytest.approx(document.figures.throughput, abs=0.01)
    assert (table.level, document.level) == (
        2,
        4,
    )  # the table does not tell its clients; by Little's law there were 2.4


@pytest.mark.parametrize(
    ("name", "text"),
    [("x.json", "{}"), ("x.jsonl", "no"), ("x.jsonl", ""), ("x.csv", "a,b\n"), ("x.json", '{"benchmarks": [3]}')],
)
def test_files_of_no_tool(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError):
        import_file(tmp_path / name)
