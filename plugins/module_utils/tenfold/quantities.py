"""Kubernetes quantities of integer resources, and numbers as people write them in YAML.

Owns turning text into whole numbers. What the number means (MiB, percent, slices) is the caller's.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from .errors import QuantityError

__all__ = ["parse_integer"]

# Source: Kubernetes apimachinery pkg/api/resource/suffix.go: binary, decimal and sub-unit suffixes, or a decimal exponent.
_SUFFIX_FACTORS = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_QUANTITY = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d{1,3})|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?)", re.ASCII)
_INT64_MAXIMUM = 2**63 - 1
_TEXT_MAXIMUM = 64  # no quantity of the API server is longer; keeps hostile text from becoming a huge number


def parse_integer(value: Any) -> int:
    """The whole number in a Kubernetes quantity: ``8192``, ``"8192"``, ``"3k"``, ``"1.5k"``, ``"2e3"``, ``"8Gi"``.

    Errors: QuantityError for anything else, for fractions (``"1500m"``) and for what an int64 cannot hold.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise QuantityError(f'quantity is {value!r}, expected a whole number such as 8192 or "3k"', value=repr(value))
    if isinstance(value, int):
        number = Fraction(value)
    else:
        match = _QUANTITY.fullmatch(value) if len(value) <= _TEXT_MAXIMUM else None
        if match is None:
            raise QuantityError(f'quantity is {value[:_TEXT_MAXIMUM]!r}, expected a whole number such as 8192 or "3k"', value=value)
        sign, digits, exponent, suffix = match.groups()
        number = Fraction(digits) * (Fraction(10) ** int(exponent) if exponent else _SUFFIX_FACTORS[suffix or ""])
        number = -number if sign == "-" else number
    if number.denominator != 1:
        raise QuantityError(f"quantity is {value!r}, expected a whole number, not a fraction", value=str(value))
    if abs(number.numerator) > _INT64_MAXIMUM:
        raise QuantityError(f"quantity is {value!r}, expected at most {_INT64_MAXIMUM}", value=str(value))
    return number.numerator
