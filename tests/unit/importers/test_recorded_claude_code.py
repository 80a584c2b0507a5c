"""The bundled session: counted by hand from its rows, and found by the audit of its folder."""

from pathlib import Path

from auditor.audit import audit
from localmodel.rules.load import load
from traces import io

SESSION = Path(__file__).parents[3] / "traces" / "recorded" / "claude_code"


def test_the_bundled_session() -> None:
    paths = io.find([SESSION])
    assert len(paths) == 6
    made = audit(io.distinct(call for path in paths for call in io.read(path)), load("anthropic"), lambda _: None)
    agents = [call.call.agent for call in made.calls]
    assert (agents.count("main"), len(agents), len(set(agents))) == (11, 21, 6)
    causes = {a.call.seq: a.diagnosis.primary.cause for a in made.calls if a.diagnosis and a.call.agent == "main"}
    assert causes == {31: "ttl_expired", 47: "model_changed", 61: "ttl_expired"}
    assert sum(a.call.usage.input_tokens or 0 for a in made.calls if a.call.agent == "main") == 240_947
