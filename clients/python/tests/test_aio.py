"""The client with asyncio, against a real server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Awaitable, Callable

import pytest

from leasehold_client import AsyncClient, AsyncLease, Held, LeaseLost, Stale, Unavailable, UnexpectedAnswer
from leasehold_client.errors import no_answer
from proxy import Proxy
from support import Server, again_if_stalled


async def eventually(condition: Callable[[], Awaitable[Any]], within: float = 30.0) -> Any:
    end = time.monotonic() + within
    while True:
        result = await condition()
        if result:
            return result
        assert time.monotonic() < end, f"did not happen within {within} s"
        await asyncio.sleep(0.02)


def run(server: Server, test: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, label="test") as client:
            await asyncio.wait_for(test(client), 60)

    asyncio.run(main())


def test_hold_try_wait_and_release(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        async with client.hold(lock, reason="release 42") as lease:
            assert lease.is_valid()
            assert await client.try_acquire(lock) is None
            info = await client.show(lock)
            assert (info.holders[0].label, info.holders[0].reason) == ("test", "release 42")
            with pytest.raises(Held):
                await client.acquire(lock, wait="200ms")
        other = await client.acquire(lock)
        assert other.token > lease.token
        await other.renew()
        assert await other.release() is True
        assert await other.release() is False
        held = await client.hold(lock)
        assert await held.release() is True

    run(server, test)


def test_many_tasks_take_turns(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        inside = 0
        tokens = []

        async def work() -> None:
            nonlocal inside
            async with client.hold(lock, wait="25s") as lease:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                tokens.append(lease.token)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(30)))
        assert tokens == sorted(set(tokens))

    run(server, test)


def test_a_cancelled_task_leaves_the_queue(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        async with client.hold(lock):
            waiting = asyncio.create_task(client.acquire(lock, wait=None))

            async def waiters() -> int:
                return len((await client.show(lock)).waiters)

            await eventually(waiters)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

            async def nobody() -> bool:
                return await waiters() == 0

            await eventually(nobody)
        assert await client.try_acquire(lock) is not None

    run(server, test)


@again_if_stalled
def test_a_lock_outlives_its_ttl_while_it_is_kept_alive(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        async with client.hold(lock, ttl="1s") as lease:
            began = time.monotonic()
            while time.monotonic() - began < 2.5:
                assert lease.is_valid()
                assert await client.try_acquire(lock) is None
                await asyncio.sleep(0.1)

    run(server, test)


def test_a_loss_cancels_the_block(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        told = []

        async def on_loss(lease: AsyncLease) -> None:
            told.append(lease)

        with pytest.raises(LeaseLost):
            async with client.hold(lock, ttl="3s", on_loss=on_loss) as lease:
                await client.force_release(lock)
                await asyncio.sleep(60)
        assert told == [lease]
        # The task itself is not cancelled.
        await asyncio.sleep(0)

    run(server, test)


def test_a_loss_need_not_cancel_the_block(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        ended = False
        with pytest.raises(LeaseLost):
            async with client.hold(lock, ttl="3s", cancel_on_loss=False) as lease:
                await client.force_release(lock)
                await asyncio.wait_for(lease.lost.wait(), 10)
                with pytest.raises(LeaseLost):
                    lease.check()
                ended = True
        assert ended

    run(server, test)


def test_a_dead_server_means_loss_when_validity_ends(tmp_path: Path, lock: str) -> None:
    server = Server(tmp_path)

    async def test(client: AsyncClient) -> None:
        lease = await client.hold(lock, ttl="1500ms")
        server.stop()
        await asyncio.wait_for(lease.lost.wait(), 10)
        assert not lease.is_valid()

    run(server, test)


def test_a_loss_is_told_while_a_renewal_hangs(server: Server, lock: str) -> None:
    proxy = Proxy(server.address)
    proxy.slow, proxy.delay = b"/renew", 30.0

    async def test(_: AsyncClient) -> None:
        async with AsyncClient(proxy.url, timeout=20) as through:
            lease = await through.hold(lock, ttl="3s")
            renewal = asyncio.create_task(lease.renew())
            assert await asyncio.to_thread(proxy.delayed.wait, 20)
            await asyncio.wait_for(lease.lost.wait(), 10)
            assert not renewal.done()
            renewal.cancel()

    run(server, test)
    proxy.close()


def test_a_callback_that_awaits_runs_to_its_end(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        told = asyncio.Event()

        async def on_loss(lease: AsyncLease) -> None:
            await asyncio.sleep(0.2)
            told.set()

        with pytest.raises(LeaseLost):
            async with client.hold(lock, ttl="3s", on_loss=on_loss):
                await client.force_release(lock)
                await asyncio.sleep(60)
        await asyncio.wait_for(told.wait(), 10)

    run(server, test)


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_a_renewal_that_cannot_be_read_is_tried_again(server: Server, lock: str, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    proxy = Proxy(server.address)

    async def test(_: AsyncClient) -> None:
        async with AsyncClient(proxy.url) as through:
            lease = await through.hold(lock, ttl="6s")
            proxy.garble = body

            async def failed() -> bool:
                return f"{lock!r} could not be renewed" in caplog.text

            await eventually(failed)
            proxy.garble = None
            before = lease._until

            async def renewed() -> bool:
                return lease._until > before

            await eventually(renewed)
            await lease.release()

    run(server, test)
    proxy.close()


@pytest.mark.parametrize("call", ["acquire", "once_per"])
@pytest.mark.parametrize("body", [b"<html>", b"", b"{}"])
def test_a_grant_that_cannot_be_read_is_given_up(server: Server, lock: str, call: str, body: bytes) -> None:
    proxy = Proxy(server.address)
    proxy.garble = body

    async def test(client: AsyncClient) -> None:
        async with AsyncClient(proxy.url, timeout=5) as through:
            with pytest.raises(UnexpectedAnswer) as raised:
                await (through.acquire(lock, ttl="5m") if call == "acquire" else through.once_per(lock, "1h", ttl="5m"))
            assert raised.value.effect == "unknown"

            async def free() -> bool:
                return (await client.show(lock)).holders == []

            await eventually(free)

    run(server, test)
    proxy.close()


def test_a_lost_answer_costs_nothing(server: Server, lock: str) -> None:
    proxy = Proxy(server.address)

    async def test(client: AsyncClient) -> None:
        async with AsyncClient(proxy.url) as through:
            proxy.lose_answers(1)
            async with through.hold(lock, wait="10s") as lease:
                assert proxy.lost == 1
                assert (await client.show(lock)).holders[0].token == lease.token
                proxy.lose_answers(1)
                await lease.renew()
        assert (await client.show(lock)).holders == []

    run(server, test)
    proxy.close()


def test_records_ids_and_once_per(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        async with client.hold(lock) as first:
            await client.store.put(lock, "one", lease=first)
        async with client.hold(lock) as second:
            await client.store.put(lock, "two", lease=second)
        with pytest.raises(Stale):
            await client.store.delete(lock, token=first.token)
        record = await client.store.get(lock)
        assert record is not None and record.text == "two"
        assert len(set(await client.ids(lock, 5))) == 5
        turns = []
        for _ in range(2):
            async with await client.once_per(f"{lock}/once", "1h", retry_failed=True) as turn:
                turns.append(bool(turn))
        assert turns == [True, False]
        async with client.hold(f"{lock}/listed"):
            assert [one.name async for one in client.locks(f"{lock}/")] == [f"{lock}/listed"]

    run(server, test)


@pytest.mark.parametrize(
    "answer, error",
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", UnexpectedAnswer),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", UnexpectedAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", UnexpectedAnswer),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", UnexpectedAnswer),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>", UnexpectedAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", Unavailable),
        (b"", Unavailable),
    ],
)
def test_answers_that_are_none(lock: str, answer: bytes, error: type[Exception]) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}", timeout=3) as client:
            with pytest.raises(error):
                await client.show(lock)
        listener.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_answers_in_chunks_and_on_one_connection(lock: str) -> None:
    connections = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in (b'{"name":"x","hol', b'ders":[],"waiters":[]}'):
                writer.write(b"%x;a=b\r\n%s\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\nTrailer: x\r\n\r\n")

    async def main() -> None:
        listener = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}/under/a/prefix/") as client:
            for _ in range(3):
                assert (await client.show(lock)).name == "x"
        listener.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert connections == 1


def test_an_answer_without_a_length_is_read_to_its_end(lock: str) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in (b'HTTP/1.1 200 OK\r\n\r\n{"name":"x","hol', b'ders":[],"waiters":[]}'):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.2)
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(speak, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}", timeout=5) as client:
            assert (await client.show(lock)).name == "x"
        listener.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_run_whose_success_fails_is_released(server: Server, lock: str) -> None:
    async def test(client: AsyncClient) -> None:
        async def fail() -> None:
            raise no_answer("a test", sent=True)

        with pytest.raises(Unavailable):
            async with await client.once_per(lock, "1h", retry_failed=True) as turn:
                turn.succeeded = fail  # type: ignore[method-assign]
        assert (await client.show(lock)).holders == []

    run(server, test)


@again_if_stalled
def test_a_kept_lock_is_not_prolonged_by_a_late_renewal(server: Server, lock: str) -> None:
    proxy = Proxy(server.address)
    proxy.slow = b"/renew"

    async def test(client: AsyncClient) -> None:
        async with AsyncClient(proxy.url) as through:
            lease = await through.hold(lock, ttl="6s")
            assert await asyncio.to_thread(proxy.delayed.wait, 20)
            await lease.release(keep_for="3s")
            await asyncio.sleep(1.5 * proxy.delay)
            assert all(holder.time_left <= 3 for holder in (await client.show(lock)).holders)

    run(server, test)
    proxy.close()


def test_a_lost_grant_is_given_up_after_a_refusal(server: Server, lock: str) -> None:
    proxy = Proxy(server.address)

    async def test(_: AsyncClient) -> None:
        async with AsyncClient(proxy.url, timeout=1) as through:
            await through.show(lock)
            proxy.ends_after_loss = True
            proxy.lose_answers(1)
            with pytest.raises(Unavailable) as raised:
                await through.acquire(lock, wait=0)
            assert raised.value.effect == "unknown" and proxy.lost == 1

    run(server, test)
    proxy.close()
