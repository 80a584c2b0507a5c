"""The examples on the format page are files that the program takes."""

import re
from pathlib import Path

from auditor.pricing import open_prices
from localmodel.rules.load import load
from traces import io

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text()


def _fence(language: str, number: int) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found[number]


def test_trace_line(tmp_path: Path) -> None:
    line = " ".join(_fence("json", 0).split())
    call = io.parse(line.encode())
    assert (call.id, call.agent, call.tokens) == ("req-1", "main", {"/system/0": 2000})


def test_rule_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(_fence("toml", 0))
    assert load(str(path)).at("my-gateway-model", "claude_api", None).min_tokens == 4096


def test_price_file(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(_fence("json", 1))
    row = open_prices(path, cache_directory=tmp_path).rate("anthropic", "my-gateway-model", None)
    assert row is not None
    assert str(row.read).startswith("0.3")
