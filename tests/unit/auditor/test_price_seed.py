"""The shipped prices are what the installed package and the overlay say."""

import json

from auditor import price_seed
from auditor.pricing import open_prices


def test_seed_is_up_to_date() -> None:
    assert price_seed.SEED.read_bytes() == price_seed.made(), "prices/seed.json is out of date: run `make seed`"


def test_every_seeded_model_has_a_price() -> None:
    models = json.loads(price_seed.SEED.read_bytes())["models"]
    assert len(models) > 30
    assert [name for name, rows in models.items() if not rows] == []


def test_seeded_price_is_served() -> None:
    row = open_prices().rate("anthropic", "claude-sonnet-4-5", None)
    assert row is not None
    assert str(row.input) != "None"
