"""The client for programs with threads."""

from __future__ import annotations

import ssl
import time
from types import TracebackType
from typing import Any, Iterator, Optional, Sequence

from ._clock import Duration, now, seconds
from ._protocol import (
    FOREVER,
    UNSET,
    Acquisition,
    Claim,
    Repetition,
    Request,
    Who,
    _Unset,
    ask,
    force_release,
    ids,
    lock_path,
    may_have_left_something,
    page_of_locks,
    parse_urls,
    read_turn,
    store_path,
    write_record,
)
from ._shapes import Grant, LockInfo, Record, Taken
from ._transport import Transport
from .errors import Held, LeaseholdError
from .lease import Lease, OnLoss, Watchdog


class Client:
    """Locks on a leasehold server. Can be used from several threads.

    ``url`` is the address of a server, or of several over the same engine, of which one that answers is used. ``token`` is an access token, ``label`` and
    ``host`` are who this is in lists (the program's and the machine's name by default), ``timeout`` is for how many seconds a request may take besides its waiting.
    """

    def __init__(
        self,
        url: str | Sequence[str] = "http://127.0.0.1:7654",
        *,
        token: str | None = None,
        label: str | None = None,
        host: str | None = None,
        timeout: Duration = 10.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._transport = Transport(parse_urls(url), token, ssl_context)
        self._who = Who.this_process(label, host)
        self._timeout = seconds(timeout)
        self._watchdog = Watchdog()
        self.store = Store(self)

    def hold(
        self,
        name: str,
        *,
        wait: Duration | None = 10.0,
        ttl: Duration = 30.0,
        shared: bool = False,
        permits: int | None = None,
        reason: str | None = None,
        keep_place: Duration | None = None,
        on_loss: OnLoss | None = None,
    ) -> Lease:
        """Acquires the lock and keeps it alive: ``with client.hold("deploy") as lease: …``. Arguments and errors as for :meth:`acquire`."""
        lease = self.acquire(name, wait=wait, ttl=ttl, shared=shared, permits=permits, reason=reason, keep_place=keep_place)
        return lease.keep_alive(on_loss)

    def acquire(
        self,
        name: str,
        *,
        wait: Duration | None = 10.0,
        ttl: Duration = 30.0,
        shared: bool = False,
        permits: int | None = None,
        reason: str | None = None,
        keep_place: Duration | None = None,
    ) -> Lease:
        """Acquires the lock, and waits for it in the queue for up to ``wait`` (``None``: for ever). It is not renewed until :meth:`Lease.keep_alive`.

        Raises :class:`Held` if the time to wait is over. A server that does not answer is tried again until then, always with the same claim, so that
        an answer that was lost costs nothing. ``keep_place`` is for how long the place in the queue is kept if the connection breaks.
        """
        limit = FOREVER if wait is None else seconds(wait)
        claim = Claim.new(name, self._who, ttl=ttl, shared=shared, permits=permits, reason=reason, keep_place=keep_place)
        return Lease(self, claim, self._acquire(claim, limit))

    def try_acquire(self, name: str, *, ttl: Duration = 30.0, shared: bool = False, permits: int | None = None, reason: str | None = None) -> Lease | None:
        """The same without waiting: ``None`` if others hold the lock."""
        try:
            return self.acquire(name, wait=0, ttl=ttl, shared=shared, permits=permits, reason=reason)
        except Held:
            return None

    def once_per(
        self, name: str, period: Duration, *, retry_failed: bool = False, wait: Duration = 0.0, ttl: Duration = 30.0, reason: str | None = None
    ) -> Turn:
        """Whether it is our turn to do what is done once in each period, on one of all hosts.

        ``with client.once_per("report", "50m") as turn: if turn: …``. With ``retry_failed`` a block that raises does not count as a run.
        """
        claim = Claim.new(name, self._who, ttl=ttl, shared=False, permits=None, reason=reason, keep_place=None)
        length = seconds(period)
        sent = now()
        try:
            turn = read_turn(self._call(claim.once_per(length, retry_failed, seconds(wait), self._timeout)), sent)
        except BaseException as error:
            self._abandon(claim, error)
            raise
        if isinstance(turn, Taken):
            return Turn(self, None, turn, length, sent, retry_failed)
        return Turn(self, Lease(self, claim, turn), None, length, sent, retry_failed)

    def show(self, name: str) -> LockInfo:
        """Who holds a lock, and who waits for it."""
        return LockInfo.of(self._call(Request("GET", lock_path(name), self._timeout)))

    def locks(self, prefix: str = "") -> Iterator[LockInfo]:
        """All locks that are held or waited for, by name."""
        cursor: str | None = None
        while True:
            page = self._call(page_of_locks(prefix, cursor, self._timeout))
            yield from (LockInfo.of(lock) for lock in page["locks"])
            cursor = page.get("next")
            if cursor is None:
                return

    def ask(self, name: str, reason: str) -> None:
        """Asks the holders to release the lock. Takes nothing away."""
        self._call(ask(name, reason, self._timeout))

    def force_release(self, name: str, reason: str | None = None) -> bool:
        """Takes the lock away from whoever holds it; false if nobody did."""
        return bool(self._call(force_release(name, reason, self._timeout))["released"])

    def ids(self, pool: str, count: int = 1) -> list[str]:
        """Ids that are unique by construction."""
        answer = self._call(ids(pool, count, self._timeout))
        return [str(one) for one in answer["ids"]]

    def close(self) -> None:
        """Closes the idle connections. Locks that are held stay held."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def _once(self, request: Request) -> dict[str, Any]:
        return self._transport.send(request).read()

    def _call(self, request: Request) -> dict[str, Any]:
        """Sends a request, and repeats it while it may be repeated and there is time."""
        repetition = Repetition(request)
        while True:
            try:
                return self._transport.send(request, repetition.time_left()).read()
            except LeaseholdError as error:
                pause = repetition.pause(error)
            time.sleep(pause)

    def _acquire(self, claim: Claim, limit: float) -> Grant:
        acquisition = Acquisition(claim, limit, self._timeout)
        try:
            while True:
                try:
                    return acquisition.granted(self._once(acquisition.request()))
                except LeaseholdError as error:
                    pause = acquisition.pause(error)
                time.sleep(pause)
        except BaseException as error:
            self._abandon(claim, error)
            raise

    def _abandon(self, claim: Claim, error: BaseException) -> None:
        """Gives up what may have been acquired although nobody will have it: after an error of unknown effect, or an interrupt."""
        if not may_have_left_something(claim, error):
            return
        try:
            self._transport.send(claim.release(min(2.0, self._timeout)))
        except LeaseholdError:
            pass  # it ends with its TTL


class Turn:
    """The answer of :meth:`Client.once_per`: true if the turn is ours. As a context manager it keeps the lock alive and releases it at the end."""

    def __init__(self, client: Client, lease: Lease | None, taken: Taken | None, period: float, began: float, retry_failed: bool) -> None:
        #: The lock, if the turn is ours.
        self.lease = lease
        #: Who has had the turn, if not.
        self.taken = taken
        self._client = client
        self._period = period
        self._began = began
        self._retry_failed = retry_failed

    def __bool__(self) -> bool:
        return self.lease is not None

    def succeeded(self) -> None:
        """With ``retry_failed``: the run counts. Releases the lock. Raises :class:`LeaseLost` if it is not held any more."""
        if self.lease is None:
            raise ValueError("the turn is not ours")
        self._client._call(self.lease._claim.succeeded(self._period, self._began, self.lease.token, self._client._timeout))
        self.lease._end()

    def __enter__(self) -> Turn:
        if self.lease is not None:
            self.lease.keep_alive()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self.lease is None:
            return
        try:
            if error is None and self._retry_failed and self.lease.is_valid():
                self.succeeded()
        finally:
            self.lease.__exit__(kind, error, trace)


class Store:
    """Guarded records: values that refuse writes with an older token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, key: str) -> Record | None:
        """The record, or ``None``."""
        try:
            return Record.of(self._client._call(Request("GET", store_path(key), self._client._timeout)))
        except LeaseholdError as error:
            if error.kind == "no_record":
                return None
            raise

    def put(
        self, key: str, value: str | bytes, *, lease: Lease | None = None, token: int | None = None, lock: str | None = None, version: int | None | _Unset = UNSET
    ) -> int:
        """Writes a record and returns its version.

        Either under a lock (``lease``, or its ``token`` and ``lock``): raises :class:`Stale` if a higher token has written. Or by ``version``, which the record
        must still have (``None``: there must be none): raises :class:`Changed`.
        """
        return int(self._write("PUT", key, value, lease, token, lock, version)["version"])

    def delete(self, key: str, *, lease: Lease | None = None, token: int | None = None, lock: str | None = None, version: int | None | _Unset = UNSET) -> None:
        """Deletes a record; the same conditions as for :meth:`put`."""
        self._write("DELETE", key, None, lease, token, lock, version)

    def _write(
        self, method: str, key: str, value: str | bytes | None, lease: Lease | None, token: int | None, lock: str | None, version: int | None | _Unset
    ) -> dict[str, Any]:
        if lease is not None:
            token, lock = lease.token, lease.name
        return self._client._call(write_record(method, key, value, token, lock, version, self._client._timeout))
