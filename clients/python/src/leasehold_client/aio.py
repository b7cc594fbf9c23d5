"""The client for programs with asyncio. The same as :class:`leasehold_client.Client`, with ``await``."""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, Generator, Mapping, Optional, Sequence

from ._aio_transport import AsyncTransport
from ._clock import Duration, now, seconds
from ._protocol import (
    FOREVER,
    UNSET,
    Acquisition,
    Backoff,
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
    read_grant,
    read_turn,
    store_path,
    write_record,
)
from ._shapes import Grant, LockInfo, Record, Taken
from ._state import LeaseState
from .errors import Held, LeaseholdError, LeaseLost, Unavailable

log = logging.getLogger("leasehold_client")

OnLoss = Callable[["AsyncLease"], object]

#: The pauses of an event loop do not count suspended time, so none is longer.
_LONGEST_PAUSE = 0.5


class AsyncLease(LeaseState):
    """A lock that this process holds until :meth:`release`, or until it can no longer be relied on.

    As a context manager it is renewed by a task until the block ends, and then released. If it is lost, the block is cancelled and :class:`LeaseLost` is
    raised from it; with ``cancel_on_loss=False`` the block goes on, and :class:`LeaseLost` is raised at its end.
    """

    def __init__(self, client: AsyncClient, claim: Claim, grant: Grant, on_loss: OnLoss | None = None, cancel_on_loss: bool = True) -> None:
        super().__init__(claim, grant)
        self._client = client
        self._on_loss = on_loss
        self._cancel_on_loss = cancel_on_loss
        self._lost = asyncio.Event()
        self._renewing = asyncio.Lock()  # while a renewal is on its way
        self._renewer: asyncio.Task[None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[Any] | None = None  # the task that calls the user's callback
        self._block: asyncio.Task[Any] | None = None
        self._cancelled_block = False

    @property
    def lost(self) -> asyncio.Event:
        """Is set when the lock can no longer be relied on; never after :meth:`release`."""
        return self._lost

    def keep_alive(self, on_loss: OnLoss | None = None) -> AsyncLease:
        """Renews the lock in a task until it is released or lost. ``on_loss(lease)``, a function or a coroutine function, is called once if it is lost."""
        if on_loss is not None:
            self._on_loss = on_loss
        if self._renewer is None and not self._is_over:
            self._renewer = asyncio.create_task(self._renew_until_over(), name=f"leasehold renews {self.name}")
            self._watchdog = asyncio.create_task(self._watch(), name=f"leasehold watches {self.name}")
        return self

    async def renew(self) -> None:
        """Renews the lock once, for its TTL from now. Raises :class:`LeaseLost`; any other error does not mean that it is lost."""
        self.check()
        await self._renew(self._client._call)

    async def release(self, keep_for: Duration | None = None) -> bool:
        """Gives the lock up; false if it was not held any more, which is no error.

        With ``keep_for`` it stays taken for so long from now on, and then ends by itself.
        """
        if keep_for is None:
            await self._end()
            return await self._send_release(None)
        self._is_over = True
        # A renewal that arrived afterwards would prolong it. One that is cancelled may still arrive.
        async with self._renewing:
            await self._end()
            return await self._send_release(keep_for)

    async def _send_release(self, keep_for: Duration | None) -> bool:
        return bool((await self._client._call(self._claim.release(self._client._timeout, keep_for)))["released"])

    async def __aenter__(self) -> AsyncLease:
        self._block = asyncio.current_task()
        return self.keep_alive()

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        block, self._block = self._block, None
        if self._ran_out():
            await self._lose("expired")
            await self._end()
            await self._client._abandon(self._claim, None)
            if self._cancelled_block and isinstance(error, asyncio.CancelledError):
                uncancel = getattr(block, "uncancel", None)
                # From Python 3.11 on: if others have cancelled it as well, it stays cancelled.
                if uncancel is not None and uncancel() > 0:
                    return
                raise self._loss() from None
            if error is None:
                raise self._loss()
            return
        if self._is_over:
            return  # released within the block
        try:
            await asyncio.shield(self.release())
        except LeaseholdError as failure:
            # It ends with its TTL. What the block raised is more important than this.
            log.warning("the lock %r could not be released: %s", self.name, failure)

    async def _renew(self, send: Callable[[Request], Awaitable[Mapping[str, Any]]], timeout: float | None = None) -> None:
        try:
            async with self._renewing:
                if self._is_over:
                    return
                sent = now()
                answer = await send(self._claim.renew(timeout or self._client._timeout))
        except LeaseLost:
            await self._lose("gone")
            raise
        self._until = max(self._until, read_grant(answer, sent).until)

    async def _watch(self) -> None:
        """Tells of the end in time, also while a renewal hangs."""
        while not self._is_over:
            left = self._until - now()
            if left <= 0:
                await self._lose("expired")
                return
            await asyncio.sleep(min(_LONGEST_PAUSE, left))

    async def _pause(self, length: float) -> None:
        """Waits, and looks at the clock meanwhile."""
        end = min(now() + length, self._until)
        while now() < end:
            await asyncio.sleep(min(_LONGEST_PAUSE, end - now()))

    async def _renew_until_over(self) -> None:
        backoff = Backoff()
        while not self._is_over:
            # At a third of the validity, so that two more attempts fit in.
            await self._pause(max(0.005, self.remaining() / 3))
            if not self.is_valid():
                await self._lose("expired")
                return
            try:
                # Half of what is left, so that a server that hangs leaves time to ask another.
                await self._renew(self._client._once, max(0.05, min(self._client._timeout, self.remaining() / 2)))
                backoff = Backoff()
            except LeaseLost:
                return
            except LeaseholdError as error:
                log.warning("the lock %r could not be renewed, it is tried again: %s", self.name, error)
                pause = backoff.pause(error) if isinstance(error, Unavailable) else 0.5
                await self._pause(min(pause, self.remaining() / 4))

    async def _end(self) -> None:
        self._is_over = True
        # Whoever calls the user's callback goes on with it.
        stay = (None, self._telling, asyncio.current_task())
        tasks = [task for task in (self._renewer, self._watchdog) if task not in stay]
        self._renewer = self._watchdog = None
        running = [task for task in tasks if task is not None and not task.done()]
        for task in running:
            task.cancel()
        if running:
            # A renewal that is on its way must not arrive after the release.
            await asyncio.wait(running)

    async def _lose(self, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._reason = reason
        self._lost.set()
        if self._block is not None and self._cancel_on_loss and self._block is not asyncio.current_task():
            self._cancelled_block = True
            self._block.cancel()
        if self._on_loss is not None:
            self._telling = asyncio.current_task()
            try:
                result = self._on_loss(self)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("the callback for the loss of the lock %r failed", self.name)


class _Pending:
    """A lock that is being acquired: ``await`` it for the lease, or use it in ``async with``."""

    def __init__(self, acquire: Callable[[], Any]) -> None:
        self._acquire = acquire
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[Any, None, AsyncLease]:
        result: AsyncLease = yield from self._acquire().__await__()
        return result

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self
        return await self._lease.__aenter__()

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, trace)


class AsyncClient:
    """Locks on a leasehold server, for programs with asyncio. Arguments as for :class:`leasehold_client.Client`."""

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
        self._transport = AsyncTransport(parse_urls(url), token, ssl_context)
        self._who = Who.this_process(label, host)
        self._timeout = seconds(timeout)
        self._abandoned: set[asyncio.Task[None]] = set()
        self.store = AsyncStore(self)

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
        cancel_on_loss: bool = True,
    ) -> _Pending:
        """Acquires the lock and keeps it alive: ``async with client.hold("deploy") as lease: …``. Arguments and errors as for :meth:`acquire`."""

        async def acquire() -> AsyncLease:
            lease = await self.acquire(name, wait=wait, ttl=ttl, shared=shared, permits=permits, reason=reason, keep_place=keep_place)
            lease._cancel_on_loss = cancel_on_loss
            return lease.keep_alive(on_loss)

        return _Pending(acquire)

    async def acquire(
        self,
        name: str,
        *,
        wait: Duration | None = 10.0,
        ttl: Duration = 30.0,
        shared: bool = False,
        permits: int | None = None,
        reason: str | None = None,
        keep_place: Duration | None = None,
    ) -> AsyncLease:
        """Acquires the lock, and waits for it in the queue for up to ``wait`` (``None``: for ever). It is not renewed until :meth:`AsyncLease.keep_alive`.

        Raises :class:`Held` if the time to wait is over. A server that does not answer is tried again until then, always with the same claim. A task that is
        cancelled leaves the queue, and gives up what it may have acquired.
        """
        limit = FOREVER if wait is None else seconds(wait)
        claim = Claim.new(name, self._who, ttl=ttl, shared=shared, permits=permits, reason=reason, keep_place=keep_place)
        return AsyncLease(self, claim, await self._acquire(claim, limit))

    async def try_acquire(self, name: str, *, ttl: Duration = 30.0, shared: bool = False, permits: int | None = None, reason: str | None = None) -> AsyncLease | None:
        """The same without waiting: ``None`` if others hold the lock."""
        try:
            return await self.acquire(name, wait=0, ttl=ttl, shared=shared, permits=permits, reason=reason)
        except Held:
            return None

    async def once_per(
        self, name: str, period: Duration, *, retry_failed: bool = False, wait: Duration = 0.0, ttl: Duration = 30.0, reason: str | None = None
    ) -> AsyncTurn:
        """Whether it is our turn to do what is done once in each period: ``async with await client.once_per("report", "50m") as turn: if turn: …``."""
        claim = Claim.new(name, self._who, ttl=ttl, shared=False, permits=None, reason=reason, keep_place=None)
        length = seconds(period)
        sent = now()
        try:
            turn = read_turn(await self._call(claim.once_per(length, retry_failed, seconds(wait), self._timeout)), sent)
        except BaseException as error:
            await self._abandon(claim, error)
            raise
        if isinstance(turn, Taken):
            return AsyncTurn(self, None, turn, length, sent, retry_failed)
        return AsyncTurn(self, AsyncLease(self, claim, turn), None, length, sent, retry_failed)

    async def show(self, name: str) -> LockInfo:
        """Who holds a lock, and who waits for it."""
        return LockInfo.of(await self._call(Request("GET", lock_path(name), self._timeout)))

    async def locks(self, prefix: str = "") -> AsyncIterator[LockInfo]:
        """All locks that are held or waited for, by name."""
        cursor: str | None = None
        while True:
            page = await self._call(page_of_locks(prefix, cursor, self._timeout))
            for lock in page["locks"]:
                yield LockInfo.of(lock)
            cursor = page.get("next")
            if cursor is None:
                return

    async def ask(self, name: str, reason: str) -> None:
        """Asks the holders to release the lock. Takes nothing away."""
        await self._call(ask(name, reason, self._timeout))

    async def force_release(self, name: str, reason: str | None = None) -> bool:
        """Takes the lock away from whoever holds it; false if nobody did."""
        return bool((await self._call(force_release(name, reason, self._timeout)))["released"])

    async def ids(self, pool: str, count: int = 1) -> list[str]:
        """Ids that are unique by construction."""
        answer = await self._call(ids(pool, count, self._timeout))
        return [str(one) for one in answer["ids"]]

    async def close(self) -> None:
        """Ends what is under way in the background and closes the idle connections. Locks that are held stay held."""
        if self._abandoned:
            await asyncio.wait(self._abandoned)
        self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self.close()

    async def _once(self, request: Request) -> dict[str, Any]:
        return (await self._transport.send(request)).read()

    async def _call(self, request: Request) -> dict[str, Any]:
        """Sends a request, and repeats it while it may be repeated and there is time."""
        repetition = Repetition(request)
        while True:
            try:
                return (await self._transport.send(request, repetition.time_left())).read()
            except LeaseholdError as error:
                pause = repetition.pause(error)
            await asyncio.sleep(pause)

    async def _acquire(self, claim: Claim, limit: float) -> Grant:
        acquisition = Acquisition(claim, limit, self._timeout)
        try:
            while True:
                try:
                    return acquisition.granted(await self._once(acquisition.request()))
                except LeaseholdError as error:
                    pause = acquisition.pause(error)
                await asyncio.sleep(pause)
        except BaseException as error:
            await self._abandon(claim, error)
            raise

    async def _abandon(self, claim: Claim, error: BaseException | None) -> None:
        """Gives up, in the background, what may have been acquired although nobody will have it."""
        if not may_have_left_something(claim, error):
            return
        task = asyncio.get_running_loop().create_task(self._release_quietly(claim))
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    async def _release_quietly(self, claim: Claim) -> None:
        try:
            await self._transport.send(claim.release(min(2.0, self._timeout)))
        except LeaseholdError as error:
            log.debug("the lock %r could not be given up, it ends with its TTL: %s", claim.name, error)


class AsyncTurn:
    """The answer of :meth:`AsyncClient.once_per`: true if the turn is ours."""

    def __init__(self, client: AsyncClient, lease: AsyncLease | None, taken: Taken | None, period: float, began: float, retry_failed: bool) -> None:
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

    async def succeeded(self) -> None:
        """With ``retry_failed``: the run counts. Releases the lock. Raises :class:`LeaseLost` if it is not held any more."""
        if self.lease is None:
            raise ValueError("the turn is not ours")
        await self._client._call(self.lease._claim.succeeded(self._period, self._began, self.lease.token, self._client._timeout))
        await self.lease._end()

    async def __aenter__(self) -> AsyncTurn:
        if self.lease is not None:
            await self.lease.__aenter__()
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self.lease is None:
            return
        try:
            if error is None and self._retry_failed and self.lease.is_valid():
                await self.succeeded()
        finally:
            await self.lease.__aexit__(kind, error, trace)


class AsyncStore:
    """Guarded records: values that refuse writes with an older token."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, key: str) -> Record | None:
        """The record, or ``None``."""
        try:
            return Record.of(await self._client._call(Request("GET", store_path(key), self._client._timeout)))
        except LeaseholdError as error:
            if error.kind == "no_record":
                return None
            raise

    async def put(
        self, key: str, value: str | bytes, *, lease: AsyncLease | None = None, token: int | None = None, lock: str | None = None, version: int | None | _Unset = UNSET
    ) -> int:
        """Writes a record and returns its version; see :meth:`leasehold_client.client.Store.put`."""
        return int((await self._write("PUT", key, value, lease, token, lock, version))["version"])

    async def delete(
        self, key: str, *, lease: AsyncLease | None = None, token: int | None = None, lock: str | None = None, version: int | None | _Unset = UNSET
    ) -> None:
        """Deletes a record; the same conditions as for :meth:`put`."""
        await self._write("DELETE", key, None, lease, token, lock, version)

    async def _write(
        self, method: str, key: str, value: str | bytes | None, lease: AsyncLease | None, token: int | None, lock: str | None, version: int | None | _Unset
    ) -> dict[str, Any]:
        if lease is not None:
            token, lock = lease.token, lease.name
        return await self._client._call(write_record(method, key, value, token, lock, version, self._client._timeout))
