"""What can fail. Every error has a ``kind`` that is stable, a ``detail`` for people and, where there is some, ``advice``."""

from __future__ import annotations

from typing import Any, Mapping

from ._shapes import Holder


class LeaseholdError(Exception):
    """A request failed.

    ``effect`` is ``"none"``, or ``"unknown"`` if the request may have been carried out although its answer did not arrive.
    """

    def __init__(self, kind: str, detail: str, *, advice: str | None = None, effect: str = "none", problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{detail}: {advice}" if advice else detail)
        self.kind = kind
        self.detail = detail
        self.advice = advice
        self.effect = effect
        #: The answer of the server, as it came; empty if there was none.
        self.problem: Mapping[str, Any] = problem or {}

    @property
    def status(self) -> int | None:
        """The HTTP status, if the server answered."""
        value = self.problem.get("status")
        return value if isinstance(value, int) else None


class Held(LeaseholdError):
    """Others hold the lock, and the time to wait is over."""

    @property
    def holders(self) -> list[Holder]:
        """Who holds it."""
        return [Holder.of(holder) for holder in self.problem.get("holders") or []]

    @property
    def ahead(self) -> int | None:
        """How many claims were before this one, holders included."""
        value = self.problem.get("ahead")
        return value if isinstance(value, int) else None


class LeaseLost(LeaseholdError):
    """The lock is not held any more, or can no longer be relied on."""


class Stale(LeaseholdError):
    """A record was written with a higher fencing token: the writer's lock has passed to another."""

    @property
    def highest(self) -> int | None:
        """That token."""
        value = self.problem.get("highest")
        return value if isinstance(value, int) else None


class Changed(LeaseholdError):
    """A record has another version than the writer expected."""

    @property
    def version(self) -> int | None:
        """Its version; ``None`` if there is no record."""
        value = self.problem.get("version")
        return value if isinstance(value, int) else None


class InvalidRequest(LeaseholdError):
    """The request cannot be right: a bad name, a bad value, a route that the server does not have."""


class Unsupported(LeaseholdError):
    """The engine behind the server cannot do this by its nature."""


class AccessDenied(LeaseholdError):
    """No access token, an unknown one, or one without the scope or the prefix."""


class Unavailable(LeaseholdError):
    """The server or its engine does not answer, or is at a limit. It may be tried again."""

    #: What the server said about when to come back, in seconds.
    retry_after: float | None = None


class UnexpectedAnswer(LeaseholdError):
    """The server failed, or it is something else than a leasehold server that answers."""


_KINDS: dict[str, type[LeaseholdError]] = {
    "held": Held,
    "lease_lost": LeaseLost,
    "stale": Stale,
    "changed": Changed,
    "unsupported": Unsupported,
    "unauthorized": AccessDenied,
    "forbidden": AccessDenied,
    "read_only": AccessDenied,
    "foreign_origin": AccessDenied,
    "too_many": Unavailable,
    "unreachable": Unavailable,
    "busy": Unavailable,
    "draining": Unavailable,
}


def from_problem(status: int, problem: Mapping[str, Any], retry_after: str | None = None) -> LeaseholdError:
    """The error that a problem document stands for."""
    kind = problem.get("kind")
    if not isinstance(kind, str):
        # A success that cannot be read may be a grant.
        effect = "unknown" if status >= 500 or 200 <= status < 300 else "none"
        return UnexpectedAnswer("unexpected", f"the server answered with status {status}, and not as a leasehold server does", effect=effect, problem={"status": status})
    made = _KINDS.get(kind)
    if made is None:
        made = InvalidRequest if 400 <= status < 500 else UnexpectedAnswer
    advice = problem.get("advice")
    error = made(
        kind,
        str(problem.get("detail") or problem.get("title") or kind),
        advice=advice if isinstance(advice, str) else None,
        effect=str(problem.get("effect", "unknown" if status >= 500 else "none")),
        problem={**problem, "status": status},
    )
    if isinstance(error, Unavailable) and retry_after is not None and retry_after.isdigit():
        error.retry_after = float(retry_after)
    return error


def no_answer(detail: str, *, sent: bool) -> Unavailable:
    """The error for a server that cannot be reached, or did not answer."""
    return Unavailable(
        "no_answer",
        detail,
        advice="check the address, and whether the server runs",
        effect="unknown" if sent else "none",
    )
