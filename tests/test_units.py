"""Numbers as people read them."""

from __future__ import annotations

from tinygpt.units import count, size


def test_parameters_are_counted_in_thousands_millions_and_billions() -> None:
    assert [count(n) for n in (12, 1_500, 134_515_008)] == ["12", "1.5K", "134.5M"]


def test_bytes_are_in_the_decimal_units_of_the_originals_tables() -> None:
    given = (12, 691_000, 3_300_000, 1.5e9)
    assert [size(n) for n in given] == ["12 B", "691 KB", "3.3 MB", "1.5 GB"]
