"""Findings against rule data: what to change to what, and no suggestion where nothing was established."""

import json
import tomllib
from pathlib import Path

import pytest
from habits import Habits, MessagesCache
from workbench import dream_lab

from localmodel.rules.load import load
from probes.api import lifetime, lookback, minimum
from probes.api.claim import Claim, open_claim
from probes.api.compare import Compared, compare, read_findings, simplest
from probes.api.report import claim_row
from probes.errors import BadFindings


def compared(claims: list[Claim], habits: Habits) -> Compared:
    (claim,) = claims
    return compare(claim_row(claim, dream_lab(MessagesCache(habits))), load("anthropic"))


@pytest.mark.parametrize(
    ("probe", "habits", "rule", "value"),
    [
        (lookback, Habits(lookback=5), "lookback_positions", 5),
        (lifetime, Habits(ttl_5m=20), "ttl_seconds_5m", 20),
        (minimum, Habits(minimum=64), "min_tokens", 64),
    ],
)
def test_a_refuted_rule_names_its_change(probe: object, habits: Habits, rule: str, value: int) -> None:
    found = compared(probe.run(dream_lab(MessagesCache(habits))), habits)  # type: ignore[attr-defined]
    assert (found.word, found.rule) == ("change", rule)
    (row,) = tomllib.loads(found.suggestion)[rule]
    assert row["value"] == value
    assert (row["status"], row["models"]) == ("measured", ["claude-opus-4-8"])
    assert "but measured" in found.text


def test_the_suggestion_is_a_rule_file_that_then_agrees(tmp_path: Path) -> None:
    habits = Habits(lookback=5)
    (claim,) = lookback.run(dream_lab(MessagesCache(habits)))
    row = claim_row(claim, dream_lab(MessagesCache(habits)))
    mine = tmp_path / "mine.toml"
    head = 'schema = 1\ninherits = "anthropic"\n[sources]\nprobe = "cachewright probe"\n'
    mine.write_text(head + compare(row, load("anthropic")).suggestion)
    assert compare(row, load(str(mine))).word == "agrees"
    lab = dream_lab(MessagesCache(habits), load(str(mine)))
    assert lookback.run(lab)[0].finding == "confirmed"


def test_a_right_rule_agrees() -> None:
    found = compared(minimum.run(dream_lab(MessagesCache(Habits(minimum=1024)))), Habits())
    assert (found.word, found.suggestion) == ("agrees", "")


def test_open_findings_change_nothing() -> None:
    found = compared([open_claim("minimum", "min_tokens", "x", "broke off")], Habits())
    assert (found.word, found.suggestion) == ("open", "")


def test_a_lower_bound_says_change_but_not_to_what() -> None:
    found = compared(lifetime.run(dream_lab(MessagesCache(Habits(ttl_5m=3600)))), Habits())
    assert (found.word, found.suggestion) == ("change", "")


@pytest.mark.parametrize(
    ("above", "at_most", "found"), [(18, 22, 20), (270, 330, 300), (3300, 3900, 3600), (1.9, 2.1, 2), (2.1, 2.9, None),
                                    (100, None, None), (299, 300, 300), (300, 301, 301)]
)  # fmt: skip
def test_the_roundest_number_in_an_interval(above: float, at_most: float | None, found: int | None) -> None:
    assert simplest(above, at_most) == found


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no finding in 0 lines"),
        ('{"case": "1_prepare"}\n', "no finding in 1 lines"),
        ("not json\n", ":1: not JSON"),
        ('{"claim": "x", "finding": "confirmed"}\n', ":1: the finding names no model"),
        ("[" * 100_000, ":1: not JSON"),
        ('{"claim": 5, "finding": "confirmed"}', "no finding"),
    ],
)
def test_bad_findings_are_one_line(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "findings.jsonl"
    path.write_text(text)
    with pytest.raises(BadFindings) as caught:
        read_findings(path)
    assert part in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, "x", [1], {"above": 1}, {"above": "a", "at_most": "b"}, True, -1, 1e400])
@pytest.mark.parametrize("rule", ["min_tokens", "ttl_clock", "nonsense", None, 5, ["x"]])
def test_odd_findings_raise_nothing(value: object, rule: object) -> None:
    row = {"claim": "x", "finding": "refuted", "model": "m", "probe": "p", "rule": rule, "value": value, "at": "never"}
    assert compare(json.loads(json.dumps(row)), load("anthropic")).word in ("agrees", "change", "open", "no_rule")
