"""Writes numbers, times and prices for pages."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from ... import _registry


def figure(value: float, error: float | None = None) -> str:
    """Return a number as people write it: with as many decimals as its error allows (two significant digits
    of the error; without one, four of the number; at most six decimals).

    Whole numbers have no decimals. Floats from 1e15 on and below 1e-4 have three digits and an exponent.

    >>> figure(12345678), figure(2.86123, 0.0213), figure(-123.0, 599.0), figure(0.3333333), figure(1234567.8)
    ('12,345,678', '2.861', '-123', '0.3333', '1,234,568')
    >>> figure(-0.3, 599.0), figure(2**60 + 1)
    ('0', '1,152,921,504,606,846,977')
    """
    if isinstance(value, int):
        return f"{value:,}"
    # "z" writes a negative number that rounds to zero without its sign.
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:z,.0f}"
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞" if value < 0 else "not a number"
    if abs(value) >= 1e15 or abs(value) < 1e-4:
        return f"{value:.3g}"
    usable_error = error if error and math.isfinite(error) else None
    # The power of ten of the first significant digit.
    exponent = math.floor(math.log10(abs(value if usable_error is None else usable_error)))
    decimals = (3 if usable_error is None else 1) - exponent
    return f"{value:z,.{min(max(decimals, 0), 6)}f}"


def amount(value: float | None) -> str:
    """Return an amount of budget or of seconds: four significant digits; from 1,000 on, a whole number.

    >>> amount(1.029), amount(12345.6), amount(1e-07), amount(None)
    ('1.029', '12,346', '1e-07', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if math.isfinite(value) and abs(value) >= 1000 else f"{value:.4g}"


def exact(value: Any) -> str:
    """Return a number of a budget as the text of a form field, from which the same float is read back.

    >>> exact(3.0), exact(1e-06), exact(0.30000000000000004), exact({"fraction": "1/3"})
    ('3', '1e-06', '0.30000000000000004', '0.3333333333333333')
    """
    number = float(_registry.from_json(value))
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def minute(text: str) -> str:
    """Return the time of an entry, cut off after the minute.

    >>> minute("2026-11-17T04:26Z"), minute("2026-11-17T04:26:31.123+00:00")
    ('2026-11-17 04:26', '2026-11-17 04:26')
    """
    return text[:16].replace("T", " ")


def moment(seconds: float) -> str:
    """Return a time in seconds since 1970 as date and minute, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def day(seconds: float) -> str:
    """Return a time in seconds since 1970 as a date, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def brief(price: str) -> str:
    """Return the part of a price before the noise: epsilon, and delta if there is one; all of another price.

    >>> brief("epsilon 0.1: DiscreteLaplace(scale 200)"), brief("Gaussian(s 3)")
    ('epsilon 0.1', 'Gaussian(s 3)')
    """
    return price.split(": ", 1)[0] if price.startswith("epsilon ") else price


def noise(price: str) -> str:
    """Return the part of a price that names the noise, which `brief` leaves out.

    >>> noise("epsilon 0.1: DiscreteLaplace(scale 200)"), noise("Gaussian(s 3)")
    ('DiscreteLaplace(scale 200)', '')
    """
    return price.split(": ", 1)[1] if price.startswith("epsilon ") and ": " in price else ""


def harmless(text: str) -> str:
    """Return a text that no spreadsheet runs as a formula.

    >>> harmless("=1+1"), harmless("a=b"), harmless("")
    ("'=1+1", 'a=b', '')
    """
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


# The functions as filters of the templates, by name.
FILTERS: dict[str, Any] = {
    "figure": figure, "amount": amount, "minute": minute, "moment": moment, "day": day, "brief": brief,
    "noise": noise, "exact": exact,
}  # fmt: skip
