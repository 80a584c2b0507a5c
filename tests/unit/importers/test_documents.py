"""Parts of JSON documents are found where the standard library finds them, whatever the block size, also when cut."""

import json
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.errors import MalformedRow
from traces.importers import documents
from traces.importers.documents import parts, shapes

FAST = settings(max_examples=200, deadline=None, derandomize=True, database=None)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\{}[],: é\n'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def found(raw: bytes, *wanted: str) -> dict[str, Any]:
    return {
        part.name: json.loads(raw[part.offset : part.offset + part.length]) for part in parts(BytesIO(raw), *wanted)
    }


@FAST
@given(json_values, st.lists(json_values, max_size=4), json_values, st.sampled_from([None, 1, "\t"]))
def test_members_elements_and_inner_members_are_found(a: Any, many: list[Any], inner: Any, indent: Any) -> None:
    raw = json.dumps({"a": a, "many": many, "in": {"list": [inner, 1], "rest": inner}}, indent=indent).encode()
    want = {f"many[{i}]": value for i, value in enumerate(many)}
    want |= {"a": a, "in.list[0]": inner, "in.list[1]": 1, "in.rest": inner}
    assert found(raw, "many", "in.list") == want


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_blocks_of_any_size_give_the_same_parts(size: int) -> None:
    raw = json.dumps({"a": 'x"\\', "m": [{"t": 'é\\"}]'}, [1, "]"], None]}, ensure_ascii=False).encode()
    whole = list(parts(BytesIO(raw), "m"))
    assert list(parts(_Narrow(raw, size), "m")) == whole


class _Narrow(BytesIO):
    """A file that gives a few bytes at a time."""

    def __init__(self, raw: bytes, size: int) -> None:
        super().__init__(raw)
        self.size = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self.size if size == documents.BLOCK else size)


def test_a_list_document_gives_its_elements() -> None:
    assert found(b' [{"a": 1}, 2, []]', "") == {"[0]": {"a": 1}, "[1]": 2, "[2]": []}


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_document_that_breaks_off_gives_the_parts_in_front_of_the_break(cut: int) -> None:
    raw = json.dumps({"head": 1, "rows": [{"n": number} for number in range(9)]}).encode()
    names: list[str] = []
    with pytest.raises(MalformedRow, match="breaks off"):
        for part in parts(BytesIO(raw[:-cut]), "rows"):
            names.append(part.name)  # noqa: PERF401
    assert names == ["head", *(f"rows[{number}]" for number in range(9))][: len(names)]


@pytest.mark.parametrize("raw", [b'{"a": 1]', b'{"a": [1}', b'"text"', b"[1]", b'{"a": 1} {"b": 2}'])
def test_what_is_no_document_is_said_in_one_line(raw: bytes) -> None:
    with pytest.raises(MalformedRow) as caught:
        list(parts(BytesIO(raw), "a"))
    assert "\n" not in f"{caught.value}"


def test_shapes_tell_names_of_rows_that_are_longer_than_the_head() -> None:
    row = {"id": "x", "request": {"url": "u", "body": {"text": "y" * 1000}}, "response": None}
    (shape,) = shapes(json.dumps(row).encode()[:300])
    assert {"id", "request", "request.url", "request.body"} <= shape
    assert shapes(json.dumps([{"a": 1, "b": 2}]).encode())[0] == {"a", "b"}
    assert shapes(json.dumps([{"a": 1, "b": "x" * 99}]).encode()[:60])[0] >= {"a", "b"}
