"""The client with threads, against a real server."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

from leasehold_client import AccessDenied, Changed, Client, Held, InvalidRequest, Lease, LeaseLost, Stale, Unavailable, UnexpectedAnswer
from leasehold_client._clock import milliseconds, seconds
from leasehold_client._protocol import Acquisition, Claim, Repetition, Request, Who
from leasehold_client.errors import no_answer
from proxy import Proxy
from support import Server, again_if_stalled, eventually, tokens_file


def test_tokens_rise_from_holder_to_holder(client: Client, lock: str) -> None:
    tokens = []
    for _ in range(3):
        with client.hold(lock) as lease:
            assert lease.is_valid()
            assert 0 < lease.remaining() <= 30
            tokens.append(lease.token)
        assert not lease.is_valid()
    assert tokens == sorted(set(tokens))


def test_a_held_lock_is_none_for_try_acquire(client: Client, lock: str) -> None:
    with client.hold(lock, reason="release 42"):
        assert client.try_acquire(lock) is None
        [holder] = client.show(lock).holders
        assert (holder.label, holder.reason, holder.mode) == ("test", "release 42", "exclusive")
    with client.try_acquire(lock) as lease:  # type: ignore[union-attr]
        assert lease.is_valid()
    assert client.show(lock).holders == []


def test_a_wait_that_is_over_raises_held(client: Client, lock: str) -> None:
    with client.hold(lock):
        began = time.monotonic()
        with pytest.raises(Held) as raised:
            client.acquire(lock, wait="300ms")
        assert time.monotonic() - began >= 0.3
        assert raised.value.kind == "held"
        assert raised.value.status == 409
        assert raised.value.detail and raised.value.advice
        assert raised.value.effect == "none"
        assert raised.value.holders[0].label == "test"
        eventually(lambda: client.show(lock).waiters == [])


def test_waiters_get_the_lock_in_their_order(client: Client, lock: str) -> None:
    order: list[int] = []

    def work(number: int) -> None:
        with client.hold(lock, wait="20s"):
            order.append(number)

    with client.hold(lock):
        threads = []
        for number in range(4):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            eventually(lambda: len(client.show(lock).waiters) == number + 1)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_a_lease_can_be_renewed_and_released(client: Client, lock: str) -> None:
    lease = client.acquire(lock, ttl="5s")
    assert lease.remaining() <= 5
    eventually(lambda: lease.remaining() < 4.7)
    lease.renew()
    assert lease.remaining() > 4.7
    assert lease.release() is True
    assert lease.release() is False
    assert not lease.is_valid()
    assert not lease.lost.is_set()
    with pytest.raises(LeaseLost):
        lease.renew()


def test_a_lock_can_be_kept_after_its_release(client: Client, lock: str) -> None:
    client.acquire(lock).release(keep_for="20s")
    assert client.try_acquire(lock) is None
    assert client.show(lock).holders[0].time_left <= 20


@again_if_stalled
def test_a_lock_outlives_its_ttl_while_it_is_kept_alive(client: Client, lock: str) -> None:
    with client.hold(lock, ttl="1s") as lease:
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            assert lease.is_valid()
            assert client.try_acquire(lock) is None
            lease.lost.wait(0.1)
        lease.check()


@again_if_stalled
def test_a_lock_without_keep_alive_ends_with_its_ttl(client: Client, lock: str) -> None:
    lease = client.acquire(lock, ttl="400ms")
    assert lease.remaining() <= 0.4
    with client.hold(lock, wait="10s") as other:
        assert not lease.is_valid(), "validity ends before another gets the lock"
        assert other.token > lease.token
        with pytest.raises(LeaseLost):
            lease.check()


def test_a_broken_lock_is_told_and_raised(client: Client, lock: str) -> None:
    told: list[Lease] = []
    heard = threading.Event()

    def on_loss(lost: Lease) -> None:
        told.append(lost)
        heard.set()

    with pytest.raises(LeaseLost) as raised:
        with client.hold(lock, ttl="3s", on_loss=on_loss) as lease:
            assert client.force_release(lock, "a test") is True
            assert heard.wait(10)
            assert lease.lost.is_set() and not lease.is_valid()
    assert told == [lease]
    assert raised.value.kind == "lease_lost" and raised.value.advice


def test_what_the_block_raises_is_not_hidden(client: Client, lock: str) -> None:
    with pytest.raises(ZeroDivisionError):
        with client.hold(lock, ttl="3s") as lease:
            client.force_release(lock)
            assert lease.lost.wait(10)
            1 / 0
    with pytest.raises(ZeroDivisionError):
        with client.hold(lock):
            1 / 0
    assert client.show(lock).holders == []


def test_a_callback_that_raises_is_logged(client: Client, lock: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LeaseLost):
        with client.hold(lock, ttl="3s", on_loss=lambda lease: 1 / 0) as lease:
            client.force_release(lock)
            assert lease.lost.wait(10)
            eventually(lambda: "callback" in caplog.text)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("callback", ["blocks", "exits"])
def test_a_callback_does_not_hide_other_losses(tmp_path: Path, lock: str, callback: str) -> None:
    called, done = threading.Event(), threading.Event()

    def on_loss(lost: Lease) -> None:
        called.set()
        if callback == "exits":
            sys.exit("a test")
        done.wait(60)

    server = Server(tmp_path)
    with Client(server.url) as client:
        first = client.hold(lock, ttl="2s", on_loss=on_loss)
        second = client.hold(f"{lock}/second", ttl="4s")
        server.stop()
        assert first.lost.wait(10) and called.wait(10)
        assert second.lost.wait(10)
    done.set()


def test_a_dead_server_means_loss_when_validity_ends(tmp_path: Path, lock: str) -> None:
    server = Server(tmp_path)
    with Client(server.url) as client:
        lease = client.hold(lock, ttl="1500ms")
        server.stop()
        assert lease.lost.wait(10)
        assert not lease.is_valid()
        with pytest.raises(LeaseLost):
            lease.check()


def test_a_lost_answer_costs_nothing(server: Server, client: Client, lock: str) -> None:
    proxy = Proxy(server.address)
    with Client(proxy.url) as through:
        proxy.lose_answers(1)
        with through.hold(lock, wait="10s") as lease:
            assert proxy.lost == 1
            [holder] = client.show(lock).holders
            assert holder.token == lease.token, "the repetition got the grant of the first request"
            proxy.lose_answers(1)
            lease.renew()
        assert client.show(lock).holders == []
    proxy.close()


def test_a_closed_idle_connection_is_no_failure(server: Server, lock: str, caplog: pytest.LogCaptureFixture) -> None:
    proxy = Proxy(server.address)
    with Client(proxy.url, timeout=5) as through:
        lease = through.acquire(lock)
        for _ in range(5):
            proxy.drop_connections()  # as a server does that saw nothing for a while
            lease._renew(through._once)
        assert lease.is_valid() and caplog.text == ""
    proxy.close()


def test_a_break_whose_answer_was_lost_is_not_repeated(server: Server, client: Client, lock: str) -> None:
    proxy = Proxy(server.address)
    held = client.acquire(lock)
    got: list[Lease] = []
    waiter = threading.Thread(target=lambda: got.append(client.acquire(lock, wait="30s")))
    waiter.start()
    eventually(lambda: client.show(lock).waiters)
    with Client(proxy.url) as through:
        proxy.lose_answers(1)
        with pytest.raises(Unavailable) as raised:
            through.force_release(lock)
        assert raised.value.effect == "unknown" and proxy.lost == 1
    waiter.join()
    got[0].renew()
    assert got[0].token > held.token
    proxy.close()


def test_a_write_whose_answer_was_lost_is_not_repeated(server: Server, client: Client, lock: str) -> None:
    proxy = Proxy(server.address)
    with Client(proxy.url) as through, client.hold(lock) as lease:
        for write in (lambda: through.store.put(lock, "one", token=lease.token), lambda: through.store.delete(lock, token=lease.token)):
            proxy.lose_answers(1)
            with pytest.raises(Unavailable) as raised:
                write()
            assert raised.value.effect == "unknown"
    assert proxy.lost == 2
    proxy.close()


@pytest.mark.parametrize("call", ["acquire", "once_per"])
@pytest.mark.parametrize("reuses", [False, True])
def test_a_lost_grant_is_given_up_after_a_refusal(server: Server, client: Client, lock: str, call: str, reuses: bool) -> None:
    proxy = Proxy(server.address)
    with Client(proxy.url, timeout=1) as through:
        if reuses:
            through.show(lock)
        proxy.ends_after_loss = True
        proxy.lose_answers(1)
        with pytest.raises(Unavailable) as raised:
            through.acquire(lock, wait=0) if call == "acquire" else through.once_per(lock, "1h")
        assert raised.value.effect == "unknown" and proxy.lost == 1
    proxy.close()


@pytest.mark.parametrize("call", ["acquire", "once_per"])
@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b"{}"])
def test_a_grant_that_cannot_be_read_is_given_up(server: Server, client: Client, lock: str, call: str, body: bytes) -> None:
    proxy = Proxy(server.address)
    proxy.garble = body
    with Client(proxy.url, timeout=5) as through:
        with pytest.raises(UnexpectedAnswer) as raised:
            through.acquire(lock, ttl="5m") if call == "acquire" else through.once_per(lock, "1h", ttl="5m")
        assert raised.value.effect == "unknown"
        eventually(lambda: client.show(lock).holders == [])
    proxy.close()


def test_a_renewal_that_cannot_be_read_is_tried_again(server: Server, lock: str, caplog: pytest.LogCaptureFixture) -> None:
    proxy = Proxy(server.address)
    with Client(proxy.url) as through:
        lease = through.hold(lock, ttl="6s")
        proxy.garble = b"{}"
        eventually(lambda: f"{lock!r} could not be renewed" in caplog.text)
        proxy.garble = None
        before = lease._until
        eventually(lambda: lease._until > before)
        lease.release()
    proxy.close()


def test_doubt_about_one_try_stays() -> None:
    request = Request("POST", "/", 60.0)
    for tries in (Repetition(request), Acquisition(Claim("x", 30.0, Who("a", "b", 1)), 60.0, 60.0)):
        tries.pause(no_answer("lost", sent=True))
        later = no_answer("refused", sent=False)
        tries.pause(later)
        assert later.effect == "unknown"
        denied = AccessDenied("unauthorized", "the token has expired")
        with pytest.raises(AccessDenied):
            tries.pause(denied)
        assert denied.effect == "unknown"


def test_a_run_whose_success_fails_is_released(client: Client, lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise no_answer("a test", sent=True)

    with pytest.raises(Unavailable):
        with client.once_per(lock, "1h", retry_failed=True) as turn:
            monkeypatch.setattr(turn, "succeeded", fail)
    assert client.show(lock).holders == []
    assert turn.lease is not None and turn.lease._over.is_set()


def test_a_success_whose_answer_was_lost_is_repeated(server: Server, lock: str) -> None:
    proxy = Proxy(server.address)
    with Client(proxy.url) as through:
        with through.once_per(lock, "1h", retry_failed=True):
            proxy.lose_answers(1)
        assert proxy.lost == 1
        assert not through.once_per(lock, "1h", retry_failed=True)
    proxy.close()


@again_if_stalled
def test_a_kept_lock_is_not_prolonged_by_a_late_renewal(server: Server, client: Client, lock: str) -> None:
    proxy = Proxy(server.address)
    proxy.slow = b"/renew"
    with Client(proxy.url) as through:
        lease = through.hold(lock, ttl="6s")
        assert proxy.delayed.wait(20)
        lease.release(keep_for="3s")
        time.sleep(1.5 * proxy.delay)
        assert all(holder.time_left <= 3 for holder in client.show(lock).holders)
    proxy.close()


@again_if_stalled
def test_a_lock_survives_a_short_outage(server: Server, client: Client, lock: str) -> None:
    proxy = Proxy(server.address)
    with Client(proxy.url) as through, through.hold(lock, ttl="4s") as lease:
        proxy.break_connections()
        before = lease._until
        eventually(lambda: lease.remaining() < 2)
        proxy.broken = False
        eventually(lambda: lease._until > before)
        assert lease.is_valid()
        assert client.show(lock).holders[0].token == lease.token
    proxy.close()


def heed_interrupts() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and a child inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_leaves_the_queue(server: Server, client: Client, lock: str) -> None:
    code = "import sys; from leasehold_client import Client; Client(sys.argv[1]).acquire(sys.argv[2], wait=None)"
    command = [sys.executable, "-c", code, server.url, lock]
    with client.hold(lock):
        waiting = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts)
        eventually(lambda: len(client.show(lock).waiters) == 1)
        waiting.send_signal(signal.SIGINT)
        waiting.wait(60)
        eventually(lambda: client.show(lock).waiters == [])


def test_shared_locks_and_permits(client: Client, lock: str) -> None:
    with client.hold(lock, shared=True), client.hold(lock, shared=True):
        assert client.try_acquire(lock) is None
        assert [holder.mode for holder in client.show(lock).holders] == ["shared", "shared"]
    first, second = (client.try_acquire(f"{lock}/permits", permits=2) for _ in range(2))
    assert first and second
    assert client.try_acquire(f"{lock}/permits", permits=2) is None
    with pytest.raises(ValueError):
        client.try_acquire(lock, shared=True, permits=2)


@pytest.mark.parametrize("name", ["../etc/passwd", "a b%2Fc?d#e&f", "ключ", "🦀", 'quo"te\\'])
def test_names_are_data(client: Client, name: str) -> None:
    with client.hold(name):
        assert client.show(name).holders[0].label == "test"
        assert name in [lock.name for lock in client.locks(name[:2])]
        assert client.try_acquire(name) is None


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "line\nbreak"])
def test_bad_names_are_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidRequest):
        client.try_acquire(name)


def test_bad_values_are_refused(client: Client, lock: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        client.try_acquire(lock, ttl=0)
    assert raised.value.kind == "invalid_request"
    for bad in ("5", "-1s", "soon", "1s2", "", -1, float("nan"), float("inf"), True):
        with pytest.raises(ValueError):
            client.acquire(lock, wait=bad)
    for url in ("127.0.0.1:7654", "ftp://host", "http://", "http://user:secret@host", "http://host/?a=b"):
        with pytest.raises(ValueError):
            Client(url)


@pytest.mark.parametrize(
    "url", ["user:s3cret@host", "htp://user:s3cret@host", "http://user:s3cret@", "http://user:s3cret/@host", "http://user:s3cret?@host", "http://user:1/s3cret@host"]
)
def test_a_bad_url_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(ValueError) as raised:
        Client(url)
    shown = "".join(traceback.format_exception(raised.type, raised.value, None))
    assert "s3cret" not in shown


def test_durations() -> None:
    table = {"500ms": 0.5, "30s": 30, "5m": 300, "1h30m": 5400, "1.5s": 1.5, 2: 2, 0.25: 0.25, timedelta(minutes=1): 60}
    for given, expected in table.items():
        assert seconds(given) == expected
    assert milliseconds(0) == 0
    assert milliseconds(0.0001) == 1


def test_records_refuse_older_tokens(client: Client, lock: str) -> None:
    key = f"{lock}/record"
    assert client.store.get(key) is None
    with client.hold(lock) as first:
        version = client.store.put(key, "one", lease=first)
    with client.hold(lock) as second:
        client.store.put(key, b"\xff\x00two", lease=second)
        with pytest.raises(Stale) as raised:
            client.store.put(key, "late", token=first.token, lock=lock)
        assert raised.value.highest == second.token
    record = client.store.get(key)
    assert record is not None and record.version > version
    assert (record.value, record.token, record.lock) == (b"\xff\x00two", second.token, lock)


def test_records_by_version(client: Client, lock: str) -> None:
    key = f"{lock}/record"
    version = client.store.put(key, "one", version=None)
    with pytest.raises(Changed) as raised:
        client.store.put(key, "two", version=None)
    assert raised.value.version == version
    version = client.store.put(key, "zwei ✓", version=version)
    record = client.store.get(key)
    assert record is not None and record.text == "zwei ✓"
    client.store.delete(key, version=version)
    assert client.store.get(key) is None
    for wrong in ({}, {"token": 1, "version": None}):
        with pytest.raises(ValueError):
            client.store.put(key, "x", **wrong)  # type: ignore[arg-type]


def test_once_per_period(client: Client, lock: str) -> None:
    runs = []
    for _ in range(3):
        with client.once_per(lock, "1h") as turn:
            if turn:
                runs.append(turn.lease)
            else:
                assert turn.taken is not None
                assert turn.taken.label == "test" and 3500 < turn.taken.next_in <= 3600
    assert len(runs) == 1
    assert client.show(lock).holders == []


def test_a_failed_run_does_not_count_if_it_is_retried(client: Client, lock: str) -> None:
    with pytest.raises(ZeroDivisionError):
        with client.once_per(lock, "1h", retry_failed=True) as turn:
            assert turn
            1 / 0
    with client.once_per(lock, "1h", retry_failed=True) as turn:
        assert turn
    with client.once_per(lock, "1h", retry_failed=True) as turn:
        assert not turn


def test_ids_and_asking(client: Client, lock: str) -> None:
    ids = client.ids(lock, 50)
    assert len(set(ids)) == 50
    with client.hold(lock):
        client.ask(lock, "a fix must go out")


def test_locks_are_listed_by_prefix(client: Client, lock: str) -> None:
    held = [client.acquire(f"{lock}/{number}") for number in range(3)]
    assert [one.name for one in client.locks(f"{lock}/")] == [lease.name for lease in held]


def test_an_access_token_decides(tmp_path: Path, lock: str) -> None:
    server = Server(tmp_path, "--tokens", str(tokens_file(tmp_path, {"worker": ["read", "hold"], "viewer": ["read"]})))
    for token, kind in ((None, "unauthorized"), ("wrong", "unauthorized"), ("viewer", "forbidden")):
        with Client(server.url, token=token) as client, pytest.raises(AccessDenied) as raised:
            client.try_acquire(lock)
        assert raised.value.kind == kind and raised.value.advice
    with Client(server.url, token="worker") as client:
        with client.hold(lock), pytest.raises(AccessDenied):
            client.force_release(lock)
    server.stop()


def test_another_server_is_used_if_one_is_gone(server: Server, tmp_path: Path, lock: str) -> None:
    gone = Server(tmp_path)
    gone.stop()
    with Client([gone.url, server.url]) as client, client.hold(lock) as lease:
        lease.renew()


def test_no_server_is_an_error(tmp_path: Path, lock: str) -> None:
    server = Server(tmp_path)
    server.stop()
    with Client(server.url, timeout=0.5) as client, pytest.raises(Unavailable) as raised:
        client.try_acquire(lock)
    assert raised.value.kind == "no_answer" and raised.value.effect == "none" and raised.value.advice


def test_something_else_than_a_server_is_an_error(server: Server, lock: str) -> None:
    with Client(server.url + "/elsewhere") as client, pytest.raises((InvalidRequest, UnexpectedAnswer)):
        client.try_acquire(lock)


def test_claim_ids_and_tokens_are_not_shown(server: Server, client: Client, lock: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), client.hold(lock) as lease:
        secret = lease._claim.id
        shown = f"{lease!r} {lease._claim!r} {client.show(lock)!r} {lease._claim.renew(1.0)!r}"
        with pytest.raises(Held) as raised:
            client.acquire(lock, wait=0)
        assert secret not in shown + caplog.text + server.said() + repr(raised.value) + repr(raised.value.problem)
