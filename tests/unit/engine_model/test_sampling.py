"""Greedy and sampled tokens, seeds, and stop sequences across the borders of tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")

from localmodel.engine.sampling import Sampler, SamplingParams, StopScanner, draw  # noqa: E402

LOGITS = torch.tensor([1.0, 3.0, 2.0, 3.0, -5.0])


def many(params: SamplingParams, count: int = 300) -> list[int]:
    sampler = Sampler(params)
    return [sampler.draw(LOGITS) for _ in range(count)]


def test_greedy_takes_the_first_of_the_best() -> None:
    assert set(many(SamplingParams())) == {1}
    assert set(many(SamplingParams(temperature=2.0, top_k=1))) == {1}
    assert set(many(SamplingParams(temperature=1.0, top_p=0.0))) == {1}


def test_filters_leave_out_the_unlikely() -> None:
    assert set(many(SamplingParams(temperature=1.0, top_k=2, seed=1))) == {1, 3}
    assert set(many(SamplingParams(temperature=1.0, top_p=0.5, seed=1))) == {1, 3}
    assert set(many(SamplingParams(temperature=1.0, top_p=0.9, seed=1))) == {1, 2, 3}
    assert set(many(SamplingParams(temperature=100.0, seed=1))) == {0, 1, 2, 3, 4}


def test_shares_are_those_of_the_softmax() -> None:
    drawn = many(SamplingParams(temperature=1.0, seed=5), 4000)
    for token, share in enumerate(LOGITS.softmax(-1).tolist()):
        assert abs(drawn.count(token) / 4000 - share) < 0.03


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-45, 1e-300, 5e-324])
def test_the_coldest_temperatures_draw_the_best(temperature: float) -> None:
    """In float32 such a temperature is 0, or what is divided by it infinite: there are no shares to draw from."""
    assert set(many(SamplingParams(temperature=temperature, seed=1), 20)) == {1, 3}


def test_a_seed_repeats_whatever_is_drawn_beside_it() -> None:
    params = SamplingParams(temperature=1.0, seed=42)
    alone = many(params, 50)
    sampler, other = Sampler(params), Sampler(SamplingParams(temperature=1.0))
    rows = torch.stack([LOGITS, LOGITS, LOGITS])
    together = [draw(rows, [Sampler(SamplingParams()), sampler, other]) for _ in range(50)]
    assert [row[1] for row in together] == alone
    assert {row[0] for row in together} == {1}
    assert many(SamplingParams(temperature=1.0, seed=43), 50) != alone


def scan(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    scanner, out = StopScanner(stops), ""
    for piece in pieces:
        out += scanner.feed(piece)
        if scanner.found is not None:
            return out, scanner.found
    return out + scanner.flush(), None


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_scanner_equals_a_search_in_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    found, stop = scan(stops, pieces)
    ends = [(text.find(one) + len(one), text.find(one), one) for one in stops if one and one in text]
    if not ends:
        assert (found, stop) == (text, None)
        return
    assert stop in stops
    assert text.startswith(found + str(stop))
    # A stop that is complete earlier is seen first, whichever way the text is cut; none is ever let through.
    assert len(found) <= min(place for _, place, _ in ends)
    assert all(one not in found for one in stops if one)


def test_text_that_cannot_become_a_stop_goes_out_at_once() -> None:
    scanner = StopScanner(["END", "\n\n"])
    assert [scanner.feed(piece) for piece in ("abE", "Nx", "E", "N")] == ["ab", "ENx", "", ""]
    assert scanner.flush() == "EN"
    assert StopScanner([]).feed("all") == "all"
