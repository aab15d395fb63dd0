"""Policies from planted results, for releases that can and cannot follow them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from stack_builder.bench.policy import make_policy, mechanism
from stack_builder.bench.results import Results, leave_out
from stack_builder.bench.verify import judge_policy, levels_around, unsettled
from stack_builder.errors import UsageError

EAGLE = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
Curve = Callable[[float], float]
MakeResults = Callable[..., Results]


def meeting(clients: float, gain: float = 1.8, knee: float = 60.0) -> tuple[Curve, Curve]:
    """A baseline, and a curve ``gain`` times as fast at low load that meets it at exactly ``clients``."""
    other = clients / (gain * (1 + clients / knee) - 1)
    return (lambda n: 100 * n / (1 + n / knee)), (lambda n: gain * 100 * n / (1 + n / other))


def planted(results: MakeResults, clients: float, **more: object) -> Results:
    base, eagle = meeting(clients)
    return results({"base": base, "eagle": eagle}, **{"arguments": {"eagle": EAGLE}, **more})


def test_the_configuration_switches_off_at_the_crossover(results: MakeResults) -> None:
    policy = make_policy(planted(results, 40))
    assert policy.config is not None
    config = json.loads(policy.config)
    first, second = config
    assert config[first] == {"candidate_steps": [3]}
    assert config[second] == {"candidate_steps": [0]}
    assert first == "1"
    assert 33 <= int(second) <= 48
    text = " ".join(policy.arguments)
    assert "--speculative-adaptive --speculative-algorithm EAGLE3 --speculative-num-steps 3" in text
    assert "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --max-running-requests 256" in text


def test_keys_are_batch_sizes_not_clients(results: MakeResults) -> None:
    """A server whose batch holds half of its clients switches at half the number."""
    half = make_policy(planted(results, 40, batch_share=0.5))
    assert 16 <= half.rows[1].batch <= 24
    assert half.rows[1].clients is not None
    assert half.rows[1].clients.value == pytest.approx(40, rel=0.2)


def test_the_limit_is_raised_so_that_the_last_row_is_reached(results: MakeResults) -> None:
    policy = make_policy(planted(results, 60, limit=48))
    assert policy.rows[-1].batch > 48
    assert int(policy.arguments[-1]) >= 250
    assert any("would never be reached" in note for note in policy.notes)


def test_fewer_steps_come_before_none(results: MakeResults) -> None:
    base, one, three = (lambda n: 100 * n / (1 + n / 60)), meeting(60, gain=1.5)[1], meeting(25, gain=2.2)[1]
    found = results(
        {"base": base, "three": three, "one": one},
        arguments={"three": EAGLE, "one": {**EAGLE, "speculative_num_steps": 1}},
        noise=0.01,
    )
    policy = make_policy(found)
    assert [row.steps for row in policy.rows] == [3, 1, 0]
    assert [row.batch for row in policy.rows] == sorted({row.batch for row in policy.rows})
    older = make_policy(found, "0.5.13.post1")
    assert [row.steps for row in older.rows] == [3, 1]
    assert older.config is not None
    assert "0" not in {str(s) for row in json.loads(older.config).values() for s in row["candidate_steps"]}
    assert any("cannot stop drafting" in note for note in older.notes)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.5.11", "0.5.13.post1"])
def test_without_a_mechanism_there_are_two_launch_lines(results: MakeResults, version: str) -> None:
    policy = make_policy(planted(results, 40), version)
    assert policy.config is None
    assert [("--speculative-num-steps" in words) for _, words in policy.launches] == [True, False]
    assert f"from a batch of {policy.rows[1].batch}" == policy.launches[1][0]
    assert any("0.5.14" in note for note in policy.notes)


@pytest.mark.parametrize(
    "argument",
    [
        {"speculative_eagle_topk": 4},
        {"enable_dp_attention": True},
        {"enable_two_batch_overlap": True},
        {"enable_pdmux": True},
        {"enable_multi_layer_eagle": True},
        {"speculative_algorithm": "STANDALONE"},
    ],
)
def test_what_would_fall_back_in_silence_is_refused(results: MakeResults, argument: dict[str, object]) -> None:
    found = planted(results, 40, arguments={"eagle": {**EAGLE, **argument}})
    with pytest.raises(UsageError, match="fall back to static speculation"):
        make_policy(found)


def test_no_threshold_without_support(results: MakeResults) -> None:
    """One round a level, as in the founding report: nothing is known of the noise."""
    with pytest.raises(UsageError, match="no threshold is supported: a level has a single round"):
        make_policy(planted(results, 40, rounds=1))


def test_speculation_that_always_pays_stays_on(results: MakeResults) -> None:
    found = results({"base": lambda n: 100 * n, "eagle": lambda n: 150 * n}, arguments={"eagle": EAGLE})
    policy = make_policy(found)
    assert (policy.config, [row.steps for row in policy.rows]) == (None, [3])
    assert any("leave it on" in note for note in policy.notes)


def test_levels_that_stay_open_are_not_called_paying(results: MakeResults) -> None:
    found = results(
        {"base": lambda n: 100 * n, "eagle": lambda n: 150 * n if n < 50 else 100 * n}, arguments={"eagle": EAGLE}
    )
    policy = make_policy(found)
    assert not any("every level" in note for note in policy.notes)
    assert any("open at" in note for note in policy.notes)


def test_speculation_that_never_pays_is_left_out(results: MakeResults) -> None:
    found = results({"base": lambda n: 100 * n, "eagle": lambda n: 80 * n}, arguments={"eagle": EAGLE})
    policy = make_policy(found)
    assert [row.steps for row in policy.rows] == [0]
    assert "--speculative-algorithm" not in policy.arguments


def test_results_without_speculation_make_no_policy(results: MakeResults) -> None:
    with pytest.raises(UsageError, match="no arm speculates"):
        make_policy(results({"base": lambda n: 100 * n}))


@pytest.mark.parametrize(("version", "what"), [("0.5.9", "none"), ("0.5.12", "acceptance"), ("0.5.14rc1", "batch")])
def test_mechanisms(version: str, what: str) -> None:
    assert mechanism(version).mechanism == what


def test_a_release_that_was_not_measured_is_noted(results: MakeResults) -> None:
    found = planted(results, 40)
    assert not any("measured with" in note for note in make_policy(found, "0.5.23").notes)
    assert (
        "measured with SGLang 0.5.23; where speculation pays may differ in 0.5.17" in make_policy(found, "0.5.17").notes
    )


def test_versions_that_are_none() -> None:
    for version in ("newest", "0.4.0"):
        with pytest.raises(UsageError):
            mechanism(version)


def test_verify_looks_on_both_sides_of_a_threshold(results: MakeResults) -> None:
    policy = make_policy(planted(results, 40))
    levels = levels_around((1, 100), policy)
    assert levels[0] == 1
    assert levels[-1] == 100
    assert 25 < levels[1] < 40 < levels[2] < 60


def test_verify_finds_a_policy_that_breaks_its_promise(results: MakeResults) -> None:
    base, eagle = meeting(40)
    adaptive = {**EAGLE, "speculative_adaptive": True}
    good = results(
        {"b": base, "e": eagle, "p": lambda n: max(base(n), eagle(n))}, arguments={"e": EAGLE, "p": adaptive}
    )
    _, problems = judge_policy(good, "p")
    assert problems == []
    bad = results({"b": base, "e": eagle, "p": eagle}, arguments={"e": EAGLE, "p": EAGLE})
    _, problems = judge_policy(bad, "p")
    assert "static speculation" in problems[0]
    assert [problem.split(":")[0] for problem in problems[1:4]] == ["at 70", "at 100", "at 250"]


def test_verify_judges_all_levels_together_where_none_says_much_alone(results: MakeResults) -> None:
    """A loss of a fifth everywhere, in noise that hides it at each level: only their mean, of 48 runs, tells."""
    base, eagle = meeting(40)
    laws = {"b": base, "e": eagle, "p": lambda n: 0.8 * max(base(n), eagle(n))}
    adaptive = {**EAGLE, "speculative_adaptive": True}
    table, problems = judge_policy(results(laws, arguments={"e": EAGLE, "p": adaptive}, noise=0.2), "p")
    assert table.rows[-1][:2] == ("all", "of each")
    assert 0.7 < float(table.rows[-1][2]) < 0.9
    told = [problem.split(":")[0] for problem in problems]
    assert told[-1] == "over all levels"
    assert len(told) < 4  # of eight levels, most tell nothing


def test_verify_goes_on_until_a_loss_is_excluded_or_proven(results: MakeResults) -> None:
    base, eagle = meeting(40)

    def wanted(policy: Curve, noise: float) -> bool:
        found = results({"b": base, "e": eagle, "p": policy}, noise=noise, rounds=6)
        return unsettled("p")(found, 250)

    assert not wanted(base, 0.002)  # equal to the better arm, and within 5 % of it beyond doubt
    assert wanted(base, 0.1)  # equal, but the noise would hide a loss of a tenth
    assert not wanted(lambda n: base(n) / 2, 0.1)  # worse beyond doubt: more rounds change nothing
    assert not wanted(lambda n: base(n) * 2, 0.1)


def test_an_arm_can_be_left_out(results: MakeResults) -> None:
    base, eagle = meeting(40)
    two = {**EAGLE, "speculative_num_steps": 2}
    found = results({"b": base, "e": eagle, "two": lambda n: 1.2 * base(n)}, arguments={"e": EAGLE, "two": two})
    assert [row.steps for row in make_policy(found).rows] == [3, 2]
    assert [row.steps for row in make_policy(leave_out(found, ["two"])).rows] == [3, 0]
    with pytest.raises(UsageError, match="no such arm"):
        leave_out(found, ["three"])
