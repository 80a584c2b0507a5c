"""What tests of several modules here share."""

import pytest

from auditor.pricing import PriceList, open_prices


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> PriceList:
    return open_prices(cache_directory=tmp_path_factory.mktemp("prices"))
