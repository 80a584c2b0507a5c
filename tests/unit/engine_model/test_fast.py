"""Weights of 8 bits say nearly what the exact ones say, and never share a page with them."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")

from localmodel.engine.attention import Span  # noqa: E402
from localmodel.engine.fast import FastBackend, Int8  # noqa: E402
from localmodel.engine.model import PagedModel  # noqa: E402
from localmodel.engine.weights import load  # noqa: E402


def test_few_rows_and_many_are_near_the_weight_itself() -> None:
    torch.manual_seed(1)
    weight, rows, bias = torch.randn(96, 64), torch.randn(40, 64), torch.randn(96)
    backend = FastBackend()
    packed = backend.prepare(weight)
    assert isinstance(packed, Int8)
    assert packed.values.element_size() == 1
    wanted = torch.nn.functional.linear(rows, weight, bias)
    for count in (1, 2, 16, 17, 40):
        found = backend.linear(rows[:count], packed, bias)
        assert (found - wanted[:count]).abs().max() < 0.03 * wanted.abs().max(), count
    assert backend.prepare(torch.zeros(2, 64)).values.abs().max() == 0, "a row of zeros has a scale too"


def test_the_default_model_answers_alike_and_its_pages_stay_apart(gguf_path: Any, smol: Any) -> None:
    fast = PagedModel(load(gguf_path), FastBackend())
    assert fast.numerics != smol.numerics
    tokens = [7919 * (place + 1) % smol.config.vocab for place in range(90)]
    agree = []
    for model in (smol, fast):
        kv = model.new_kv(8)
        prompt = model.forward([Span(tokens[:80], 0, range(6), 80)], kv)
        steps = [model.forward([Span([token], 80 + i, range(6))], kv) for i, token in enumerate(tokens[80:])]
        agree.append(torch.cat([prompt, *steps]))
    exact, near = agree
    assert torch.nn.functional.cosine_similarity(exact, near, dim=1).min() > 0.99
    assert (exact.argmax(-1) == near.argmax(-1)).float().mean() > 0.8
