"""Does ``stackb bench`` find a crossover that is known? Real client, real sockets, servers that follow a stated law.

Each trial starts two servers (tests/fixtures/llm), benches them as a user would, and holds the answer against the law.
With n clients a server makes ``rate n / (1 + n / knee)`` tokens per second after a prefill that both share; every run's
speed is off by a factor that the trial's seed draws.

* ``crossing``: the arm that speculates is 1.8 times as fast at low load and meets the baseline at a number of clients
  drawn between 6 and 40. Its interval must cover that number.
* ``touching``: the same up to that number, and the baseline's own law from there on. There is no crossing to be found.
* ``founding``: ten runs at one client, with the speeds of the founding report: a mean of 96.1 against 92.6, spread from
  87.5 to 103.5, in an order of the seed's. The verdict must be open.
* ``founding-levels``: that noise over several levels with one run each, as in the report's table of clients.

Noise is 2 % (log-normal) where not told otherwise, rounds are the defaults: four, and up to four more where the
interval straddles 1.

    python benchmarks/planted.py crossing --trials 40 --output trials.jsonl
    python benchmarks/planted.py --summary trials.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from stack_builder.bench.compare import comparisons
from stack_builder.bench.results import read

SERVER = Path(__file__).parents[1] / "tests" / "fixtures" / "llm" / "server.py"
RATE, KNEE, GAIN, PER_EVENT = 60.0, 60.0, 1.8, 3
LEVELS = (1, 2, 5, 10, 30, 70)
TOKENS = 12  # of a request
PREFILL = 0.04  # seconds in which clients that begin together all arrive
NOISE = 0.02
# Ten runs with the founding report's mean (96.1 tok/s) and range; what lies between is that of normal noise.
REPORTED = (87.5, 89.8, 92.6, 94.6, 95.7, 96.9, 98.1, 99.9, 102.4, 103.5)
SPEEDS = tuple(value / 96.1 for value in REPORTED)
REPORTED_GAIN = 96.1 / 92.6


@dataclass(frozen=True)
class Plan:
    """Two servers' arguments, what to ask, and the truth: clients at which the laws meet, or None."""

    base: tuple[str, ...]
    eagle: tuple[str, ...]
    truth: float | None
    levels: Sequence[int] = LEVELS
    rounds: tuple[int, int] = (4, 8)  # and at most
    tokens: int = TOKENS


@dataclass(frozen=True)
class Trial:
    """One trial's answer; ``value`` is None where no crossover was given, then ``reason`` says why."""

    scenario: str
    seed: int
    truth: float | None
    value: float | None
    low: float | None
    high: float | None
    reason: str | None
    ratios: dict[str, float]
    verdicts: dict[str, str]
    runs: int
    rejected: int
    seconds: float
    load: float  # of the machine, mean over a minute

    @property
    def covers(self) -> bool:
        """Whether the interval holds the truth."""
        if self.truth is None or self.low is None or self.high is None:
            return False
        return self.low <= self.truth <= self.high


def _law(rate: float, knee: float, *more: object, prefill: float = PREFILL) -> tuple[str, ...]:
    return ("--rate", f"{rate:.9g}", "--knee", f"{knee:.9g}", "--prefill", str(prefill), *map(str, more))


def _knee(truth: float, gain: float) -> float:
    """The knee with which an arm that is ``gain`` times as fast at low load meets the baseline at ``truth`` clients."""
    return truth / (gain * (1 + truth / KNEE) - 1)


def crossing(seed: int, _scratch: Path) -> Plan:
    """Two laws that cross."""
    truth = math.exp(random.Random(seed).uniform(math.log(6), math.log(40)))
    noise = ("--noise", NOISE, "--seed")
    return Plan(
        _law(RATE, KNEE, *noise, 2 * seed),
        _law(GAIN * RATE, _knee(truth, GAIN), *noise, 2 * seed + 1, "--per-event", PER_EVENT),
        truth,
    )


def touching(seed: int, scratch: Path) -> Plan:
    """From where they meet, the second law is the first."""
    plan = crossing(seed, scratch)
    table = scratch / "table.json"
    assert plan.truth is not None
    rows = {1: {"candidate_steps": [PER_EVENT - 1]}, math.ceil(plan.truth): {"candidate_steps": [0]}}
    table.write_text(json.dumps(rows))
    return Plan(plan.base, (*plan.eagle, "--adaptive", str(table), "--plain", f"{RATE},{KNEE}"), None)


def founding(seed: int, _scratch: Path) -> Plan:
    """One client, ten runs of each arm; without a prefill, which would bring the ratio nearer to 1."""
    rounds = (len(SPEEDS), len(SPEEDS))
    return Plan(*_reported(seed, KNEE, prefill=0.0), None, levels=(1,), rounds=rounds, tokens=3 * TOKENS)


def founding_levels(seed: int, _scratch: Path) -> Plan:
    """Several levels, one run at each."""
    truth = 20.0
    return Plan(*_reported(seed, _knee(truth, REPORTED_GAIN), prefill=PREFILL), truth, rounds=(1, 1))


def _reported(seed: int, knee: float, prefill: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two arms of the founding report, the speeds of its runs in an order of their own in each."""
    chance = random.Random(seed)
    base, eagle = (",".join(f"{speed:.6f}" for speed in chance.sample(SPEEDS, len(SPEEDS))) for _ in range(2))
    return (
        _law(RATE, KNEE, "--factors", base, prefill=prefill),
        _law(REPORTED_GAIN * RATE, knee, "--factors", eagle, "--per-event", PER_EVENT, prefill=prefill),
    )


SCENARIOS = {"crossing": crossing, "touching": touching, "founding": founding, "founding-levels": founding_levels}


@contextmanager
def _server(words: Sequence[str]) -> Iterator[str]:
    child = subprocess.Popen([sys.executable, str(SERVER), *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def trial(scenario: str, seed: int) -> Trial:
    """Run one trial.

    Raises:
        subprocess.CalledProcessError: the bench did not end well.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        plan, out = SCENARIOS[scenario](seed, scratch), scratch / "results.json"
        with _server(plan.base) as base, _server(plan.eagle) as eagle:
            words = [sys.executable, "-m", "stack_builder", *call(plan, seed, base, eagle, out)]
            subprocess.run(words, check=True, capture_output=True)
        return answer(scenario, seed, plan.truth, out, time.monotonic() - began)


def call(plan: Plan, seed: int, base: str, eagle: str, out: Path) -> list[str]:
    """The words after ``stackb`` that bench two servers by a plan."""
    words = ["bench", "--pair", f"base={base}", "--pair", f"eagle={eagle}", "--no-log", "--output", str(out)]
    words += ["--concurrency", ",".join(map(str, plan.levels)), "--requests", "1", "--tokens", str(plan.tokens)]
    return [*words, "--repeats", str(plan.rounds[0]), "--max-repeats", str(plan.rounds[1]), "--seed", str(seed)]


def answer(scenario: str, seed: int, truth: float | None, out: Path, seconds: float) -> Trial:
    """Read what a bench found."""
    results = read(out)
    (found,) = comparisons(results)
    cross = found.crossover
    return Trial(
        scenario=scenario,
        seed=seed,
        truth=truth,
        value=cross.value,
        low=cross.low,
        high=cross.high,
        reason=cross.reason,
        ratios={f"{level:g}": round(seen.value, 4) for level, seen in found.ratios.items()},
        verdicts={f"{level:g}": seen.says.value for level, seen in found.ratios.items()},
        runs=len(results.runs),
        rejected=sum(not run.valid for run in results.runs),
        seconds=round(seconds, 1),
        load=round(os.getloadavg()[0], 1),
    )


def summary(trials: Sequence[Trial]) -> list[str]:
    """A line for each scenario."""
    lines = []
    for name in SCENARIOS:
        found = [one for one in trials if one.scenario == name]
        if not found:
            continue
        given = [one for one in found if one.value is not None]
        loads = sorted(one.load for one in found)
        line = f"{name}: {len(found)} trials, {len(given)} gave a number"
        if name == "crossing":
            widths = sorted(one.high / one.low for one in given if one.high and one.low)
            line += f", {sum(one.covers for one in found)} intervals cover the truth"
            line += f", median width a factor of {widths[len(widths) // 2]:.2f}" if widths else ""
        if name == "founding":
            line += f", {sum(one.verdicts['1'] == 'inconclusive' for one in found)} verdicts are open"
        lines.append(f"{line}; load of the machine {loads[0]:g} to {loads[-1]:g}")
    return lines


def main() -> None:
    """Run trials, one line each, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", choices=SCENARIOS)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first; to go on where one stopped")
    parser.add_argument("--output", type=Path, help="append each trial as a JSON line")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="sum up what --output wrote, and run nothing")
    options = parser.parse_args()
    if options.summary:
        trials = [Trial(**json.loads(line)) for line in options.summary.read_text().splitlines()]
        print("\n".join(summary(trials)))
        return
    if options.scenario is None:
        parser.error("name a scenario")
    trials = []
    for seed in range(options.first, options.first + options.trials):
        trials.append(trial(options.scenario, seed))
        line = json.dumps(asdict(trials[-1]))
        print(line, flush=True)
        if options.output:
            with options.output.open("a") as out:
                out.write(line + "\n")
    print("\n".join(summary(trials)))


if __name__ == "__main__":
    main()
