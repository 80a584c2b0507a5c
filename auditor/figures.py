"""Figures as people read them, the same in every report and on every screen."""

from decimal import Decimal


def number(value: int | Decimal | None) -> str:
    """With thousands separators: 381,701 and 158,018.5; a dash where unknown."""
    if value is None:
        return "-"
    if isinstance(value, Decimal):
        value = value.quantize(Decimal("0.1"))
        text = f"{value:,}"
        return text.removesuffix(".0")
    return f"{value:,}"


def dollars(value: Decimal | None) -> str:
    """Cents for amounts, four digits below a dollar; empty where unpriced."""
    if value is None:
        return ""
    return f"${value:,.2f}" if abs(value) >= 1 else f"${value:.4f}"


def percent(ratio: float | Decimal | None) -> str:
    """A share with two decimals."""
    return "unknown" if ratio is None else f"{ratio * 100:.2f} %"
