"""What tests of several modules here share."""

import pytest

from localmodel.rules.load import Ruleset, load


@pytest.fixture(scope="module")
def anthropic() -> Ruleset:
    return load("anthropic")
