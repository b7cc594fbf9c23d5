"""What the server tells, as values. Fields that are not known here are left out."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Mapping


@dataclass(frozen=True)
class Holder:
    """A claim that has the lock."""

    label: str
    host: str
    pid: int
    mode: str
    permits: int | None
    reason: str | None
    held: float
    time_left: float
    token: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Holder:
        return cls(
            data["label"], data["host"], data["pid"], data["mode"], data.get("permits"), data.get("reason"),
            data["held_ms"] / 1000, data["time_left_ms"] / 1000, data["token"],
        )


@dataclass(frozen=True)
class Waiter:
    """A claim that queues for the lock."""

    label: str
    host: str
    pid: int
    mode: str
    permits: int | None
    reason: str | None
    waited: float

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Waiter:
        return cls(data["label"], data["host"], data["pid"], data["mode"], data.get("permits"), data.get("reason"), data["waited_ms"] / 1000)


@dataclass(frozen=True)
class LockInfo:
    """Who holds a lock, the longest first, and who waits, in the order of the queue."""

    name: str
    holders: list[Holder]
    waiters: list[Waiter]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> LockInfo:
        return cls(data["name"], [Holder.of(one) for one in data["holders"]], [Waiter.of(one) for one in data["waiters"]])


@dataclass(frozen=True)
class Record:
    """A guarded record."""

    key: str
    value: bytes
    version: int
    token: int | None
    lock: str | None

    @property
    def text(self) -> str:
        """The value as UTF-8."""
        return self.value.decode()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Record:
        if "value_base64" in data:
            value = base64.b64decode(data["value_base64"])
        else:
            value = str(data["value"]).encode()
        return cls(data["key"], value, data["version"], data.get("token"), data.get("lock"))


@dataclass(frozen=True)
class Taken:
    """Somebody has had the turn of this period: who, how many seconds ago, and in how many the next begins."""

    label: str
    host: str
    pid: int
    ago: float
    next_in: float

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Taken:
        by = data["by"]
        return cls(by["label"], by["host"], by["pid"], data["ago_ms"] / 1000, data["next_in_ms"] / 1000)


@dataclass(frozen=True)
class Grant:
    """The answer that gives a claim the lock. ``until`` is on the clock of this machine, see ``_clock.now``."""

    token: int
    until: float

    @classmethod
    def of(cls, data: Mapping[str, Any], sent: float) -> Grant:
        # Counted from before the request left; the time that the server worked on it, waiting included, comes on top. Two clocks drift apart by less than a
        # thousandth in that time.
        return cls(data["token"], sent + (data.get("took_ms", 0) * 0.999 + data["valid_ms"]) / 1000)
