"""A tiny random model of each family, and the default model where it is installed. All skip where torch is missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localmodel.engine.errors import MissingModel
from localmodel.engine.fetch import default_model
from localmodel.engine.threads import wait_briefly

wait_briefly()  # before anything imports torch: tests share the machine


@pytest.fixture(scope="session")
def tiny() -> Callable[[str, str], Any]:
    """`tiny(shape, dtype)`: a PagedModel with seeded random weights."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    import tinymodel

    def build(name: str, dtype: str) -> Any:
        return tinymodel.random_model(tinymodel.shape(name), getattr(torch, dtype), name)

    return build


@pytest.fixture(scope="session")
def gguf_path() -> Path:
    """The default model's file."""
    try:
        return default_model()
    except MissingModel as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smol(gguf_path: Path) -> Any:
    """The default model in the dtype that suits this machine."""
    pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
    from localmodel.engine.model import PagedModel
    from localmodel.engine.weights import load

    return PagedModel(load(gguf_path))
