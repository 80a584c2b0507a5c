"""The same bits for a token however it is computed: cold, chunked, batched, decoded, verified, restored."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")

from localmodel.engine.attention import Span  # noqa: E402
from localmodel.engine.cache.pages import Copy  # noqa: E402
from localmodel.engine.selftest import prove  # noqa: E402

LENGTH = 333
PAGES = -(-LENGTH // 16)
Tiny = Callable[[str, str], Any]
MODELS = [(shape, dtype) for shape in ("llama", "one head each", "qwen2", "qwen3") for dtype in ("float32", "bfloat16")]


def prompt(vocab: int, length: int = LENGTH) -> list[int]:
    draw = random.Random(3)
    return [draw.randrange(vocab) for _ in range(length)]


def table(number: int) -> list[int]:
    """Pages of one of several sequences, out of order, for the order of pages must not matter."""
    pages = list(range(number * PAGES, (number + 1) * PAGES))
    random.Random(number).shuffle(pages)
    return pages


def cold(model: Any, kv: Any, tokens: Sequence[int], pages: Sequence[int]) -> Any:
    return model.forward([Span(tokens, 0, pages, len(tokens))], kv)


def check_all_ways(model: Any, chunkings: int) -> None:
    tokens, kv = prompt(model.config.vocab), model.new_kv(6 * PAGES)
    wanted = cold(model, kv, tokens, table(0))
    assert wanted.shape == (LENGTH, model.config.vocab)
    assert wanted.std() > 0.1, "the logits say something"
    draw = random.Random(5)
    for _ in range(chunkings):
        cuts = [0, *sorted(draw.sample(range(1, LENGTH), 6)), LENGTH]
        spans = [Span(tokens[a:b], a, table(1), b - a) for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat([model.forward([span], kv) for span in spans]), wanted), f"chunks at {cuts}"
    for number in (2, 3, 4, 5):  # restored from bytes
        for source, target in zip(table(0), table(number), strict=True):
            kv.write(target, kv.read(source))
    for place in (0, 15, 16, 63, 64, 200, LENGTH - 1):
        found = model.forward([Span([tokens[place]], place, table(2))], kv)
        assert torch.equal(found[0], wanted[place]), f"decoding position {place}"
    places = [LENGTH - 1, 17, 64, 255]
    batch = [Span([tokens[place]], place, table(2 + i)) for i, place in enumerate(places)]
    assert torch.equal(model.forward(batch, kv), wanted[places]), "decoding in a batch"
    mixed = [batch[0], Span(tokens[40:45], 40, table(3), 5), batch[2], Span(tokens[100:190], 100, table(5), 90)]
    rows = [places[0], *range(40, 45), places[2], *range(100, 190)]
    assert torch.equal(model.forward(mixed, kv), wanted[rows]), "decoding, verification and prefill in one batch"


@pytest.mark.parametrize(("shape", "dtype"), MODELS)
def test_bits_of_a_tiny_model_are_the_same_in_all_ways(tiny: Tiny, shape: str, dtype: str) -> None:
    check_all_ways(tiny(shape, dtype), chunkings=3)


def test_bits_of_the_default_model_are_the_same_in_all_ways(smol: Any) -> None:
    check_all_ways(smol, chunkings=2)


@pytest.mark.slow
def test_bits_of_the_default_model_over_a_long_prompt(smol: Any) -> None:
    length = 1500
    tokens, kv = prompt(smol.config.vocab, length), smol.new_kv(2 * 94)
    pages = [list(range(94)), list(range(94, 188))]
    wanted = cold(smol, kv, tokens, pages[0])
    cuts = [0, 7, 512, 513, 1021, 1300, 1499, length]
    spans = [Span(tokens[a:b], a, pages[1], b - a) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat([smol.forward([span], kv) for span in spans]), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_longer_neighbours_change_no_bit(tiny: Tiny, dtype: str) -> None:
    """Keys are padded to the longest of a batch: the sums over the values may not depend on how far that is."""
    model, length = tiny("llama", dtype), 700
    tokens, kv = prompt(320, length), model.new_kv(3 * 44)
    tables = [list(range(number * 44, (number + 1) * 44)) for number in range(3)]
    wanted = cold(model, kv, tokens, tables[0])
    cold(model, kv, tokens, tables[1]), cold(model, kv, tokens, tables[2])
    for short in range(64, length, 64):
        for place in (short - 1, short):
            batch = [Span([tokens[at]], at, tables[number]) for number, at in ((1, place), (2, length - 1))]
            assert torch.equal(model.forward(batch, kv), wanted[[place, length - 1]]), place


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_change_no_bit(tiny: Tiny, dtype: str) -> None:
    model = tiny("llama", dtype)
    tokens, kv, before = prompt(320), model.new_kv(PAGES), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(cold(model, kv, tokens, table(0)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_flipping_one_bit_of_a_cached_byte_changes_the_logits(tiny: Tiny) -> None:
    model = tiny("llama", "float32")
    tokens, kv = prompt(320), model.new_kv(PAGES)
    wanted = cold(model, kv, tokens, table(0))[-1]
    last = Span(tokens[-1:], LENGTH - 1, table(0))
    page = table(0)[4]
    sound = kv.read(page)
    for place in (2, len(sound) // 2 + 2, len(sound) - 2):  # a high byte of the mantissa: k of layer 0 … v of the last
        broken = bytearray(sound)
        broken[place] ^= 0x40
        kv.write(page, broken)
        assert not torch.equal(model.forward([last], kv)[0], wanted)
    kv.write(page, sound)
    assert torch.equal(model.forward([last], kv)[0], wanted)


def test_what_a_page_held_before_reaches_no_result(tiny: Tiny) -> None:
    model = tiny("llama", "float32")
    tokens, kv = prompt(320, 21), model.new_kv(8)
    wanted = cold(model, kv, tokens, [3, 5])
    kv.slab.fill_(torch.nan)
    assert torch.equal(cold(model, kv, tokens, [3, 5]), wanted)
    assert bool(kv.slab[[0, 1, 2, 4, 6, 7]].isnan().all()), "pages of others are not written"
    both = model.forward([Span(tokens[:1], 0, [6]), Span(tokens[20:], 20, [3, 5])], kv)
    assert torch.equal(both[1], wanted[20])


def test_a_copied_page_serves_as_the_original(tiny: Tiny) -> None:
    model = tiny("qwen2", "float32")
    tokens, kv = prompt(320, 30), model.new_kv(4)
    wanted = cold(model, kv, tokens, [0, 1])
    model.backend.copy_pages(kv, [Copy(1, 3, 9)])
    found = model.forward([Span(tokens[25:], 25, [0, 3], 5)], kv)
    assert torch.equal(found, wanted[25:])


def test_the_proof_holds_and_notices_a_backend_that_depends_on_its_rows(tiny: Tiny) -> None:
    from localmodel.engine.backend import TorchBackend

    class Careless(TorchBackend):
        def linear(self, rows: Any, weight: Any, bias: Any = None) -> Any:
            return super().linear(rows, weight, bias) * (1 + 1e-3 * (rows.shape[0] < 9))

    model = tiny("llama", "float32")
    assert prove(model).exact, prove(model).reason
    model.backend = Careless()
    verdict = prove(model)
    assert not verdict.exact
    assert "rows differ from the cold run" in verdict.reason


@pytest.mark.parametrize("most", [192, 256, 320, 384, 448])
def test_sums_that_depend_on_how_many_keys_there_are_are_found(tiny: Tiny, most: int) -> None:
    """Long texts are where that begins: whole sums of 512 keys here are not what sums of 256 and 192 are."""
    from localmodel.engine.backend import TorchBackend

    class Careless(TorchBackend):
        def attend(self, query: Any, kv: Any, layer: int, work: Any) -> Any:
            found = super().attend(query, kv, layer, work)
            for block in [block for group in work.groups for block in group.blocks]:
                block.target.mul_(1 + 1e-3 * (block.scores.shape[-1] > most))
            return found

    model = tiny("llama", "float32")
    model.backend = Careless()
    assert not prove(model).exact


@pytest.mark.parametrize(
    ("span", "fact"),
    [
        (Span([], 0, [0]), "window of 1024"),
        (Span([1] * 17, 0, [0]), "1 pages of 16 tokens do not reach over position 16"),
        (Span([320], 0, [0]), "vocabulary of 320"),
        (Span([-1], 0, [0]), "vocabulary of 320"),
        (Span([1], 0, [4]), "slab of 4 pages"),
        (Span([1], 1024, [0] * 65), "window of 1024"),
        (Span([1], 0, [0], 2), "2 rows of logits"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(tiny: Tiny, span: Span, fact: str) -> None:
    from localmodel.engine.errors import BadBatch

    model = tiny("llama", "float32")
    with pytest.raises(BadBatch, match=fact):
        model.forward([span], model.new_kv(4))


def test_the_identity_of_pages_says_what_their_bits_depend_on(tiny: Tiny) -> None:
    model, other = tiny("llama", "float32"), tiny("qwen2", "bfloat16")
    assert model.dtype_name == "float32"
    assert other.dtype_name == "bfloat16"
    assert model.identity != other.identity
    assert torch.__version__ in model.numerics
    assert model.layout.startswith("page-layer-kv-head-16")
    assert model.new_kv(1).page_bytes == 3 * 2 * 2 * 16 * 32 * 4
