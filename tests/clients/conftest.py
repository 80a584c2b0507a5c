"""What all clients run against: the local server, for one test each."""

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")

import serving


@pytest.fixture
def server() -> Iterator[serving.Running]:
    with serving.running() as found:
        yield found
