"""The clock that validity is counted on, and times as callers write them."""

from __future__ import annotations

import re
import sys
import time
from datetime import timedelta
from typing import Union

#: Seconds as a number, a text such as ``"500ms"``, ``"30s"``, ``"5m"``, ``"2h"``, or a ``timedelta``.
Duration = Union[int, float, str, timedelta]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def _clock_id() -> int | None:
    """A clock that goes on while the machine is suspended, where Python offers one: a lease ends then as well."""
    if sys.platform == "linux":
        return time.CLOCK_BOOTTIME
    if sys.platform == "darwin":
        return time.CLOCK_MONOTONIC  # counts sleep there; time.monotonic() does not
    return None


_CLOCK = _clock_id()


def now() -> float:
    """Seconds on a monotonic clock."""
    if _CLOCK is None:
        return time.monotonic()
    return time.clock_gettime(_CLOCK)


def seconds(value: Duration) -> float:
    """The seconds of a duration. Raises ``ValueError`` for what is none."""
    if isinstance(value, bool):
        raise ValueError(f"not a duration: {value!r}")
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, (int, float)):
        result = float(value)
    else:
        parts = _PART.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise ValueError(f'not a duration: {value!r}; write it like "500ms", "30s" or "5m"')
        result = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 <= result < float("inf"):
        raise ValueError(f"a duration must be finite and not negative: {value!r}")
    return result


def milliseconds(value: Duration) -> int:
    """The same in whole milliseconds, at least one for what is not zero."""
    result = seconds(value)
    return max(1, round(result * 1000)) if result > 0 else 0
