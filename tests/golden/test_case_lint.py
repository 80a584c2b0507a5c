"""Requests that the provider refuses, and legal ones beside them: exactly the expected errors."""

import json
from pathlib import Path

import pytest

from auditor.lint import lint, read_body
from localmodel.rules.load import load


@pytest.mark.parametrize("name", ["r1", "r2", "r3", "r4", "r5", "r6", "r7"])
def test_errors_of_the_case(shared: Path, name: str) -> None:
    folder = shared / "cases" / "A24_A25_A46"
    expected = json.loads((folder / "expected.json").read_text())[name]
    findings = lint(read_body(folder / f"{name}.json"), load("anthropic"), moment=None)
    assert [finding.code for finding in findings if finding.severity == "error"] == expected
    assert all(finding.remedy and finding.message for finding in findings)


def test_places_of_the_case(shared: Path) -> None:
    folder = shared / "cases" / "A24_A25_A46"
    first = {
        name: lint(read_body(folder / f"{name}.json"), load("anthropic"), moment=None)[0].paths
        for name in ("r1", "r2", "r4", "r7")
    }
    assert first == {
        "r1": ("/tools/0", "/system/0", "/system/1", "/messages/0/content/0", "/messages/2/content/0"),
        "r2": ("/tools/0", "/system/0"),
        "r4": ("/tools/1",),
        "r7": ("/messages/0/content/0", "/messages/0/content/1"),
    }
