"""A lock that is held, for programs with threads."""

from __future__ import annotations

import logging
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from ._clock import Duration, now
from ._protocol import Backoff, Claim, Request, read_grant
from ._shapes import Grant
from ._state import LeaseState
from .errors import LeaseholdError, LeaseLost, Unavailable

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("leasehold_client")

OnLoss = Callable[["Lease"], object]


class Lease(LeaseState):
    """A lock that this process holds until :meth:`release`, or until it can no longer be relied on.

    As a context manager it is renewed by a thread until the block ends, and then released. If it was lost meanwhile, the end of the block raises
    :class:`LeaseLost`, unless the block itself has raised something.
    """

    def __init__(self, client: Client, claim: Claim, grant: Grant, on_loss: OnLoss | None = None) -> None:
        super().__init__(claim, grant)
        self._client = client
        self._on_loss = on_loss
        self._state = threading.Lock()
        self._renewing = threading.Lock()  # while a renewal is on its way
        self._lost = threading.Event()
        self._over = threading.Event()  # released or lost: nothing more to renew
        self._renewer: threading.Thread | None = None

    @property
    def lost(self) -> threading.Event:
        """Is set when the lock can no longer be relied on; never after :meth:`release`."""
        return self._lost

    def keep_alive(self, on_loss: OnLoss | None = None) -> Lease:
        """Renews the lock in a thread until it is released or lost. ``on_loss(lease)`` is called once, from another thread, if it is lost."""
        with self._state:
            if on_loss is not None:
                self._on_loss = on_loss
            if self._renewer is None and not self._over.is_set():
                self._renewer = threading.Thread(target=self._renew_until_over, name=f"leasehold renews {self.name}", daemon=True)
                self._client._watchdog.watch(self)
                self._renewer.start()
        return self

    def renew(self) -> None:
        """Renews the lock once, for its TTL from now. Raises :class:`LeaseLost`; any other error does not mean that it is lost."""
        self.check()
        self._renew(self._client._call)

    def release(self, keep_for: Duration | None = None) -> bool:
        """Gives the lock up; false if it was not held any more, which is no error.

        With ``keep_for`` it stays taken for so long from now on, and then ends by itself.
        """
        self._end()
        if keep_for is None:
            return self._send_release(None)
        # A renewal that arrived afterwards would prolong it.
        with self._renewing:
            return self._send_release(keep_for)

    def _send_release(self, keep_for: Duration | None) -> bool:
        return bool(self._client._call(self._claim.release(self._client._timeout, keep_for))["released"])

    def __enter__(self) -> Lease:
        return self.keep_alive()

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self._ran_out():
            self._lose("expired")
            self._give_up()
            if error is None:
                raise self._loss()
            return
        if self._over.is_set():
            return  # released within the block
        try:
            self.release()
        except LeaseholdError as failure:
            # It ends with its TTL. What the block raised is more important than this.
            log.warning("the lock %r could not be released: %s", self.name, failure)

    def _renew(self, send: Callable[[Request], Mapping[str, Any]], timeout: float | None = None) -> None:
        try:
            with self._renewing:
                if self._is_over:
                    return
                sent = now()
                answer = send(self._claim.renew(timeout or self._client._timeout))
        except LeaseLost:
            self._lose("gone")
            raise
        grant = read_grant(answer, sent)
        with self._state:
            self._until = max(self._until, grant.until)

    def _renew_until_over(self) -> None:
        backoff = Backoff()
        # At a third of the validity, so that two more attempts fit in.
        while not self._over.wait(max(0.005, self.remaining() / 3)):
            try:
                # Half of what is left, so that a server that hangs leaves time to ask another.
                self._renew(self._client._once, max(0.05, min(self._client._timeout, self.remaining() / 2)))
                backoff = Backoff()
            except LeaseLost:
                return
            except LeaseholdError as error:
                log.warning("the lock %r could not be renewed, it is tried again: %s", self.name, error)
                pause = backoff.pause(error) if isinstance(error, Unavailable) else 0.5
                self._over.wait(min(pause, max(0.01, self.remaining() / 4)))

    def _expire(self) -> None:
        """Called by the watchdog."""
        if not self._over.is_set() and self._until <= now():
            self._lose("expired")

    def _end(self) -> None:
        self._is_over = True
        self._over.set()

    def _lose(self, reason: str) -> None:
        with self._state:
            if self._over.is_set():
                return
            self._reason = reason
            self._is_over = True
            self._over.set()
            self._lost.set()
        if self._on_loss is not None:
            # In a thread of its own: the one that noticed the loss may have other leases to watch.
            threading.Thread(target=self._tell, args=(self._on_loss,), name=f"leasehold tells of {self.name}", daemon=True).start()

    def _tell(self, on_loss: OnLoss) -> None:
        try:
            on_loss(self)
        except Exception:
            log.exception("the callback for the loss of the lock %r failed", self.name)

    def _give_up(self) -> None:
        """A renewal may still have reached the engine: without this, the lock would stay taken until its TTL is over."""
        try:
            self._client._transport.send(self._claim.release(min(2.0, self._client._timeout)))
        except LeaseholdError as error:
            log.debug("the lost lock %r could not be given up: %s", self.name, error)


class Watchdog:
    """One thread that tells leases of their end in time, also while a renewal hangs."""

    #: The pauses of threads do not count suspended time, so none is longer.
    LONGEST_PAUSE = 0.5

    def __init__(self) -> None:
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._running = False

    def watch(self, lease: Lease) -> None:
        with self._changed:
            self._leases.add(lease)
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="leasehold watchdog", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    alive = [lease for lease in self._leases if not lease._over.is_set()]
                    if not alive:
                        self._leases.clear()
                        self._running = False
                        return
                    next_end = min(lease._until for lease in alive)
                    if next_end > now():
                        self._changed.wait(min(self.LONGEST_PAUSE, next_end - now()))
                for lease in alive:
                    try:
                        lease._expire()
                    except Exception:
                        # No thread could be started. The others are to be told all the same.
                        log.exception("the callback for the loss of the lock %r could not be called", lease.name)
        except BaseException:
            with self._changed:
                self._running = False
            raise
