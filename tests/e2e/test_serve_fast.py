"""`serve --fast`: weights of 8 bits and KV of 4 behind the same cache rules; the scripted model has none."""

import pytest

from localmodel.engine.threads import wait_briefly
from localmodel.server.errors import BadSettings
from localmodel.server.serve import build
from localmodel.server.settings import Limits, Settings


def test_the_scripted_model_has_no_weights_to_make_small() -> None:
    with pytest.raises(BadSettings, match=r"^--fast: the scripted model has no weights; leave it out, or choose"):
        build(Settings(model="scripted", fast=True))


def test_reads_are_those_of_the_rules_and_the_mode_is_told() -> None:
    wait_briefly()
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    import serving

    from localmodel.engine.engine import Sizes
    from localmodel.server.local import open_backend

    try:
        backend = open_backend("default", Sizes(200), fast=True)
    except BadSettings as error:
        pytest.skip(str(error))
    assert backend.about.endswith("not exact: fast mode, weights of 8 bits, KV of 4")
    system = [{"type": "text", "text": "You are terse. " * 20, "cache_control": {"type": "ephemeral"}}]
    talk = [{"role": "user", "content": "Capital of France?"}]
    asked = {"model": "m", "max_tokens": 8, "system": system, "messages": talk}
    with serving.running(Limits(), backend, sets=["min_tokens=16"]) as server:
        first, second = (server.client().post("/v1/messages", asked).json["usage"] for _ in range(2))
    assert first["cache_creation_input_tokens"] > 60
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
