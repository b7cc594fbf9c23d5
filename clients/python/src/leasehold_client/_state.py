"""What a lease is, with threads or with tasks."""

from __future__ import annotations

from ._clock import now
from ._protocol import Claim
from ._shapes import Grant
from .errors import LeaseLost


class LeaseState:
    """A lock that this process holds, until it is released or lost."""

    def __init__(self, claim: Claim, grant: Grant) -> None:
        self._claim = claim
        self._token = grant.token
        self._until = grant.until
        self._is_over = False
        #: Why it was lost, if it was.
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} token={self.token} {'valid' if self.is_valid() else 'not valid'}>"

    @property
    def name(self) -> str:
        """The lock."""
        return self._claim.name

    @property
    def token(self) -> int:
        """The fencing token. Give it to whatever is written to, so that it can refuse older ones."""
        return self._token

    def remaining(self) -> float:
        """For how many seconds the lock can still be relied on, by the clock of this moment."""
        return 0.0 if self._is_over else max(0.0, self._until - now())

    def is_valid(self) -> bool:
        """Whether the lock can be relied on at this moment."""
        return self.remaining() > 0

    def check(self) -> None:
        """Raises :class:`LeaseLost` unless the lock can be relied on at this moment. For long work, between its steps."""
        if not self.is_valid():
            raise self._loss()

    def _ran_out(self) -> bool:
        return self._reason is not None or (not self._is_over and not self.is_valid())

    def _loss(self) -> LeaseLost:
        if self._is_over and self._reason is None:
            return LeaseLost("lease_lost", f"the lock {self.name!r} was released")
        detail = "is not held any more" if self._reason == "gone" else "was not renewed in time"
        return LeaseLost("lease_lost", f"the lock {self.name!r} {detail}", advice="stop the work, and take the lock again")
