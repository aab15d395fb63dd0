"""``stackb policy``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from stack_builder.bench.arms import parse_arms
from stack_builder.bench.policy import Policy, make_policy
from stack_builder.bench.results import Settings, leave_out, read
from stack_builder.bench.tables import as_text, report_text
from stack_builder.bench.verify import judge_policy, levels_around, unsettled
from stack_builder.cli.arguments import read_key
from stack_builder.cli.bench import measure
from stack_builder.cli.output import write
from stack_builder.errors import ExitCode, UsageError
from stack_builder.files import atomic_write
from stack_builder.stack import spec as stacks
from stack_builder.stack.lock import load as load_lock


def command(
    results: Annotated[Path, typer.Argument(help="What stackb bench --output wrote.")],
    sglang_version: Annotated[
        str | None, typer.Option(help="Write for this release; default: what the servers reported.")
    ] = None,
    stack: Annotated[str | None, typer.Option(help="Write for the release that this stack locks.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="ARM", help="Leave an arm of the results out; can be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the configuration there; default: print it.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Bench the policy against the static arms; name all with --pair or --arm.")
    ] = False,
    pair: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="With --verify: a running server, the baseline first, the policy last."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ARGS", help="With --verify: an arm for stackb serve to start and stop."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=2, help="With --verify: rounds; default as in the results.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="With --verify: of each client in a run; default as in the results.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="With --verify: output tokens of each request; default as in the results.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="With --verify: seconds after which no repeat is added.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="With --verify: file with the servers' key.")] = None,
    results_output: Annotated[Path | None, typer.Option(help="With --verify: write its results there.")] = None,
) -> None:
    """Turn the results of a bench into SGLang's own configuration for adaptive speculation."""
    if stack and sglang_version:
        raise UsageError("give one of --stack and --sglang-version", where="--stack")
    measured = leave_out(read(results), without or [])
    policy = make_policy(measured, _locked_version(stack) if stack else sglang_version)
    asked = measured.settings
    if requests is not None:
        asked = replace(asked, requests=requests, seconds=None)
    asked = replace(asked, tokens=tokens or asked.tokens, rounds=repeats or asked.rounds)
    if policy.config is not None:
        if output is not None:
            atomic_write(output, policy.config)
        else:
            write(policy.config)
    _explain(policy, output)
    if verify:
        raise typer.Exit(_verify(asked, policy, pair or [], arm or [], budget, api_key_file, results_output))


def _verify(
    asked: Settings,
    policy: Policy,
    pairs: list[str],
    served: list[str],
    budget: float | None,
    api_key_file: Path | None,
    output: Path | None,
) -> ExitCode:
    arms = parse_arms([], pairs, served)
    if len(arms) < 3:
        raise UsageError(
            "needs both static arms and the policy",
            where="--verify",
            fix="name three arms with --pair or --arm, the policy last",
        )
    settings = replace(
        asked, levels=levels_around(asked.levels, policy), max_rounds=max(2 * asked.rounds, asked.max_rounds)
    )
    from stack_builder.bench.pairs import Options

    wanting = unsettled(arms[-1].name)
    options = Options(one_at_a_time=bool(served), budget=budget, api_key=read_key(api_key_file), wanting=wanting)
    again = measure(arms, settings, options, output, log=True)
    table, problems = judge_policy(again, arms[-1].name)
    write(report_text(again) + "\n" + as_text(table))
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if again.partial:
        return ExitCode.INTERRUPTED
    return ExitCode.FINDINGS if problems else ExitCode.CLEAN


def _locked_version(stack: str) -> str:
    wheel = load_lock(stacks.find(stack)).artifact("sglang")
    if wheel is None:
        raise UsageError("locks no sglang", where=stack)
    return wheel.version


def _explain(policy: Policy, output: Path | None) -> None:
    """Say on stderr what was decided and how to launch it; stdout holds the configuration alone."""
    lines = [f"SGLang {policy.version}:"]
    for row in policy.rows:
        what = f"{row.steps} draft steps" if row.steps else "no speculation"
        line = f"  from a batch of {row.batch}: {what} ({row.arm})"
        if row.clients is not None and row.clients.value is not None:
            line += f", crossover at {row.clients.value:.1f} clients ({row.clients.low:.1f} to {row.clients.high:.1f})"
        lines.append(line)
    arguments = list(policy.arguments)
    if policy.config is not None:
        arguments += ["--speculative-adaptive-config", str(output or "FILE.json")]
    if arguments:
        lines.append(f"launch with: {shlex.join(arguments)}")
    lines += [f"{when}, launch with: {shlex.join(words)}" for when, words in policy.launches]
    lines += [f"note: {note}" for note in policy.notes]
    sys.stderr.write("\n".join(lines) + "\n")
