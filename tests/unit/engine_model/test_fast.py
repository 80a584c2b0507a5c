"""Weights of 8 bits and KV of 4 say nearly what the exact ones say, and never share a page with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")

from localmodel.engine.attention import Span  # noqa: E402
from localmodel.engine.errors import UnsupportedModel  # noqa: E402
from localmodel.engine.fast import FastBackend, Int4KV, Int8  # noqa: E402
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
    for count in (1, 2, 8, 9, 40):
        found = backend.linear(rows[:count], packed, bias)
        assert (found - wanted[:count]).abs().max() < 0.03 * wanted.abs().max(), count
    assert backend.prepare(torch.zeros(2, 64)).values.abs().max() == 0, "a row of zeros has a scale too"


def test_the_default_model_answers_alike_and_its_pages_stay_apart(gguf_path: Any, smol: Any) -> None:
    fast = PagedModel(load(gguf_path), FastBackend())
    assert fast.numerics != smol.numerics
    assert fast.layout != smol.layout
    tokens = [7919 * (place + 1) % smol.config.vocab for place in range(90)]
    agree = []
    for model in (smol, fast):
        kv = model.new_kv(8)
        prompt = model.forward([Span(tokens[:80], 0, range(6), 80)], kv)
        steps = [model.forward([Span([token], 80 + i, range(6))], kv) for i, token in enumerate(tokens[80:])]
        agree.append(torch.cat([prompt, *steps]))
    exact, near = agree
    assert torch.nn.functional.cosine_similarity(exact, near, dim=1).median() > 0.99
    assert (exact.argmax(-1) == near.argmax(-1)).float().mean() > 0.6


def test_keys_and_values_come_back_within_half_a_step(tiny: Callable[[str, str], Any]) -> None:
    """A step is a 15th of what a block of 32 numbers spans; the scale itself has the precision of float16."""
    torch.manual_seed(2)
    config = tiny("llama", "float32").config
    kv = Int4KV(config, 5, dtype=torch.float32, device="cpu")
    assert kv.page_bytes * 32 == 5 * (config.layers * 2 * config.kv_heads * 16 * config.head_dim * 4)
    put = torch.randn(3 * 16, config.head_dim) * torch.tensor([0.01, 1.0, 30.0]).repeat_interleave(16)[:, None]
    kv.put(torch.tensor([*range(32, 48), *range(16), *range(160, 176)]), put)
    out = torch.empty(3, 16 * config.head_dim)
    kv.take(torch.tensor([2, 0, 10]), out)
    found, blocks = out.view(-1, 32), put.view(-1, 32)
    least, most = blocks.aminmax(dim=1, keepdim=True)
    assert bool(((found - blocks).abs() <= (most - least) / 15 * 0.51 + blocks.abs() * 2e-3).all())
    kv.write(4, kv.read(0))
    assert torch.equal(kv.slab[4], kv.slab[0])
    again = torch.empty(1, 16 * config.head_dim)
    kv.take(torch.tensor([4 * config.layers * 2 * config.kv_heads]), again)
    assert torch.equal(again[0], out[1])


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e4, 65504.0, 7e4, 1e6, torch.inf])
def test_what_float16_cannot_hold_is_kept_as_the_largest_that_it_can(
    tiny: Callable[[str, str], Any], value: float
) -> None:
    config = tiny("llama", "float32").config
    kv = Int4KV(config, 1, dtype=torch.float32, device="cpu")
    turns = torch.where(torch.arange(config.head_dim) % 2 == 0, value, -value)
    kv.put(torch.tensor([0, 1, 2]), torch.stack([torch.full_like(turns, value), torch.full_like(turns, -value), turns]))
    out = torch.empty(1, 16 * config.head_dim)
    kv.take(torch.tensor([0]), out)
    found = out.view(16, -1)[:3]
    wanted = min(value, 65504.0)
    signs = torch.stack([torch.ones_like(turns), -torch.ones_like(turns), torch.where(turns > 0, 1.0, -1.0)])
    assert torch.allclose(found, wanted * signs, rtol=1e-3, atol=1e-6)


def test_heads_that_do_not_divide_into_blocks_are_refused(tiny: Callable[[str, str], Any]) -> None:
    config = replace(tiny("llama", "float32").config, head_dim=48)
    with pytest.raises(UnsupportedModel, match="heads of 48 do not divide into blocks of 32; leave out --fast"):
        Int4KV(config, 1, dtype=torch.float32, device="cpu")
