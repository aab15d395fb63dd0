"""``stackb bench``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stack_builder import progress
from stack_builder.bench import history
from stack_builder.bench.arms import Arm, parse_arms
from stack_builder.bench.metrics import parse_slo
from stack_builder.bench.pairs import CutShortError, Options, bench
from stack_builder.bench.results import Results, Settings, to_json, write
from stack_builder.bench.stream import Api
from stack_builder.bench.tables import report_text
from stack_builder.cli.arguments import read_key
from stack_builder.cli.output import write as write_stdout
from stack_builder.diagnose.host.collect import collect_host
from stack_builder.errors import ExitCode, UsageError
from stack_builder.report.model import Json

DEFAULT_LEVELS = "1,2,5,10,30,70,100,250"
_MAX_LEVEL = 10_000


class Connections(StrEnum):
    """Choices of ``--connections``."""

    KEPT = "kept"
    FRESH = "fresh"


def command(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="[URL]...", help="Running servers; the first is the baseline.")
    ] = None,
    pair: Annotated[
        list[str] | None, typer.Option(metavar="NAME=URL", help="A running server as an arm; repeatable.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ARGS", help="An arm to start and stop, by arguments of stackb serve; repeatable."),
    ] = None,
    together: Annotated[bool, typer.Option(help="With --arm: all fit on the machine at once.")] = False,
    concurrency: Annotated[str, typer.Option(metavar="N,…", help="Clients at each level.")] = DEFAULT_LEVELS,
    rate: Annotated[
        str | None, typer.Option(metavar="R,…", help="Open loop instead: requests per second, Poisson.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Output tokens of each request, exactly.")] = 256,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Of each client in a run; with --rate, in all. Default 2 (100).")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Length of a run instead.")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Rounds of each level. Default 1, with several arms 4.")
    ] = None,
    max_repeats: Annotated[
        int | None, typer.Option(min=1, help="With those added where 1 is in the interval. Default twice --repeats.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds after which no repeat is added.")] = None,
    api: Annotated[
        Api, typer.Option(help="Interface; generate is SGLang's own and tells the accept length.")
    ] = Api.COMPLETIONS,
    prompts: Annotated[str, typer.Option(metavar="builtin|random|FILE", help="What to ask.")] = "builtin",
    model: Annotated[str | None, typer.Option(help="Name to send; default: the server's first.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of sampling; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of arrivals, random prompts and the bootstrap.")] = 0,
    slo: Annotated[
        str | None, typer.Option(metavar="ttft=MS,tpot=MS", help="Count goodput: requests within these bounds.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a whole event after which a request failed.")
    ] = 600.0,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the servers' key.")] = None,
    connections: Annotated[
        Connections, typer.Option(help="Keep them between requests, or open one for each, as bench_serving does.")
    ] = Connections.KEPT,
    keep_cache: Annotated[bool, typer.Option(help="Do not empty the servers' prefix caches between runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the results there, after every run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    log: Annotated[bool, typer.Option("--log/--no-log", help="Append to the experiment log (stackb history).")] = True,
) -> None:
    """Measure a server under load, or compare servers in pairs."""
    arms = parse_arms(urls or [], pair or [], arm or [])
    several = len(arms) > 1
    rounds = repeats or (4 if several else 1)
    settings = Settings(
        api=api.value,
        levels=_levels(rate, "--rate") if rate else _levels(concurrency, "--concurrency"),
        tokens=tokens,
        open_loop=rate is not None,
        requests=None if seconds else requests or (100 if rate else 2),
        seconds=seconds,
        prompts=prompts,
        seed=seed,
        rounds=rounds,
        max_rounds=max(max_repeats or (2 * rounds if several else rounds), rounds),
        slo=parse_slo(slo) if slo else {},
        temperature=temperature,
        connections=connections.value,
    )
    options = Options(
        one_at_a_time=bool(arm) and not together,
        budget=budget,
        patience=timeout,
        api_key=read_key(api_key_file),
        keep_cache=keep_cache,
        model=model,
    )
    if prompts == "random":
        sys.stderr.write(
            "warning: random prompts ruin acceptance; what they say of speculation holds for no real text\n"
        )
    results = measure(arms, settings, options, output, log=log)
    write_stdout(to_json(results) if as_json else report_text(results))
    raise typer.Exit(exit_code(results))


def measure(arms: Sequence[Arm], settings: Settings, options: Options, output: Path | None, *, log: bool) -> Results:
    """Run the bench and keep it; with ``output`` every run is saved at once, with ``log`` the whole in the log."""
    save = None if output is None else lambda results: write(results, output)
    shown = progress.for_terminal()
    try:
        results = asyncio.run(bench(arms, settings, options, progress=shown, machine=machine(), save=save))
    except CutShortError as error:
        _keep(error.results, output, log=log)
        if log:
            sys.stderr.write(f"what was measured before is kept: stackb history {error.results.id}\n")
        raise
    _keep(results, output, log=log)
    return results


def _keep(results: Results, output: Path | None, *, log: bool) -> None:
    if output is not None:
        write(results, output)
    if log:
        history.append(results, history.log_path())


def exit_code(results: Results) -> ExitCode:
    """Interrupted, or findings where a run was rejected."""
    if results.partial:
        return ExitCode.INTERRUPTED
    return ExitCode.CLEAN if all(run.valid for run in results.runs) else ExitCode.FINDINGS


def machine() -> dict[str, Json]:
    """What is known of the machine that the client runs on: GPUs, driver, kernel."""
    host = collect_host()
    known: dict[str, Json] = {"kernel": host.kernel, "architecture": host.machine}
    if host.devices:
        known["gpu"] = ", ".join(device.name for device in host.devices)
    if host.driver is not None:
        known["driver"] = host.driver.kernel_module or host.driver.library
        known["cuda"] = host.driver.cuda
    return known


def _levels(text: str, option: str) -> tuple[float, ...]:
    levels = []
    for part in text.split(","):
        try:
            level = float(part)
        except ValueError:
            level = 0.0
        whole = option == "--rate" or level.is_integer()
        if not 0 < level <= _MAX_LEVEL or not whole:
            raise UsageError(
                f"'{part}' is no level", where=option, fix=f"give numbers up to {_MAX_LEVEL}, such as 1,2,5"
            )
        levels.append(level)
    return tuple(sorted(set(levels)))
