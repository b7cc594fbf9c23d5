"""Requests and answers, without a socket: what the client with threads and the one with tasks share."""

from __future__ import annotations

import base64
import json
import os
import random
import secrets
import socket
import sys
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence
from urllib.parse import quote, urlencode, urlsplit

from ._clock import Duration, milliseconds, now, seconds
from ._shapes import Grant, Taken
from .errors import Held, LeaseholdError, LeaseLost, Unavailable, UnexpectedAnswer, from_problem

#: Long polls are no longer than this, since proxies often end requests after a minute.
LONGEST_POLL = 50.0
#: For how long a place in the queue is kept between two long polls.
PLACE_BETWEEN_POLLS = 10.0
FOREVER = float("inf")


class _Unset:
    """Stands for an argument that was not given, where ``None`` means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()


@dataclass(frozen=True)
class Server:
    """One address."""

    tls: bool
    host: str
    port: int
    prefix: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_urls(urls: str | Sequence[str]) -> list[Server]:
    """The servers of one URL or several. Raises ``ValueError``."""
    given = [urls] if isinstance(urls, str) else list(urls)
    if not given:
        raise ValueError("no URL of a server")
    return [_parse_url(url) for url in given]


def _parse_url(url: str) -> Server:
    # First, and without showing any of it: what is before the @ may be a secret, wherever the URL is split.
    if "@" in url:
        raise ValueError("the URL of a server has no user and no @; give an access token as token=")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        shown = url.partition("?")[0].partition("#")[0]
        raise ValueError(f"not the URL of a server: {shown!r}; write it like http://127.0.0.1:7654")
    if parts.query or parts.fragment:
        raise ValueError("the URL of a server has no query or fragment; give an access token as token=")
    tls = parts.scheme == "https"
    return Server(tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"))


@dataclass(frozen=True)
class Request:
    """One request. ``repeatable``: doing it twice is the same as doing it once."""

    method: str
    path: str
    timeout: float
    body: Mapping[str, Any] | None = None
    claim: str | None = field(default=None, repr=False)
    repeatable: bool = True

    def encode(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()

    def headers(self, token: str | None) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "leasehold-client-python"}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        if self.claim is not None:
            headers["Leasehold-Claim"] = self.claim
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers


@dataclass(frozen=True)
class Response:
    """What came back. Names of headers are in lower case. ``in_doubt``: the request was sent before as well, and may have been carried out then."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    in_doubt: bool = False

    def read(self) -> dict[str, Any]:
        """The answer. Raises what the server said was wrong."""
        try:
            data = json.loads(self.body)
        except ValueError:
            data = None
        if 200 <= self.status < 300 and isinstance(data, dict):
            return data
        error = from_problem(self.status, data if isinstance(data, dict) else {}, self.headers.get("retry-after"))
        if self.in_doubt:
            error.effect = "unknown"
        raise error


def read_grant(answer: Mapping[str, Any], sent: float) -> Grant:
    """The grant in an answer. Raises ``UnexpectedAnswer`` if there is none, although the server may have granted the lock."""
    try:
        return Grant.of(answer, sent)
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer("unexpected", "the server's answer does not say what was granted", effect="unknown") from error


def read_turn(answer: Mapping[str, Any], sent: float) -> Grant | Taken:
    """What ``once-per`` answers: the grant if the turn is ours, else who has had it. Raises as :func:`read_grant` does."""
    if answer.get("turn") != "taken":
        return read_grant(answer, sent)
    try:
        return Taken.of(answer)
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer("unexpected", "the server's answer does not say who has had the turn", effect="unknown") from error


class Backoff:
    """Longer and longer pauses, with some chance in them, so that many clients do not come back at once."""

    def __init__(self) -> None:
        self._next = 0.05

    def pause(self, error: Unavailable) -> float:
        base = max(self._next, error.retry_after or 0.0)
        self._next = min(2.0, self._next * 2)
        return base * random.uniform(0.8, 1.2)


class _Tries:
    """Tries of one request. Once one of them may have been carried out, no later error is without effect."""

    def __init__(self) -> None:
        self._in_doubt = False

    def _failed(self, error: LeaseholdError) -> None:
        if self._in_doubt:
            error.effect = "unknown"
        self._in_doubt = error.effect != "none"


class Repetition(_Tries):
    """When a request that failed is sent again."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request
        self._deadline = now() + request.timeout
        self._backoff = Backoff()

    def time_left(self) -> float:
        return max(0.05, self._deadline - now())

    def pause(self, error: LeaseholdError) -> float:
        """For how long to wait before the next attempt. Raises the error if there is none."""
        self._failed(error)
        if not isinstance(error, Unavailable) or not (self._request.repeatable or error.effect == "none"):
            raise error
        pause = self._backoff.pause(error)
        if now() + pause >= self._deadline:
            raise error
        return pause


def new_claim() -> str:
    return secrets.token_hex(16)


def lock_path(name: str, action: str = "") -> str:
    return f"/v1/locks/{quote(name, safe='')}{action}"


def store_path(key: str) -> str:
    return f"/v1/store/{quote(key, safe='')}"


@dataclass(frozen=True)
class Who:
    """What people see of this client in lists."""

    label: str
    host: str
    pid: int

    @classmethod
    def this_process(cls, label: str | None, host: str | None) -> Who:
        return cls(label or os.path.basename(sys.argv[0] or "") or "python", host or socket.gethostname(), os.getpid())


@dataclass(frozen=True)
class Claim:
    """One acquisition: what is asked for, under an id that stays the same however often it is sent."""

    name: str
    ttl: float
    who: Who
    mode: str = "exclusive"
    permits: int | None = None
    reason: str | None = None
    keep_place: float = 0.0
    id: str = field(default_factory=new_claim, repr=False)

    @classmethod
    def new(cls, name: str, who: Who, *, ttl: Duration, shared: bool, permits: int | None, reason: str | None, keep_place: Duration | None) -> Claim:
        if shared and permits is not None:
            raise ValueError("a lock is either shared or has permits")
        mode = "shared" if shared else "exclusive" if permits is None else "permit"
        return cls(name, seconds(ttl), who, mode, permits, reason, 0.0 if keep_place is None else seconds(keep_place))

    def _about(self) -> dict[str, Any]:
        body: dict[str, Any] = {"ttl": milliseconds(self.ttl), "label": self.who.label, "host": self.who.host, "pid": self.who.pid}
        if self.reason is not None:
            body["reason"] = self.reason
        return body

    def acquire(self, left: float, timeout: float) -> Request:
        """One long poll, if `left` seconds are left to wait."""
        poll = min(left, LONGEST_POLL)
        keep = max(self.keep_place, PLACE_BETWEEN_POLLS) if left > poll else self.keep_place
        body = {**self._about(), "mode": self.mode, "wait": milliseconds(poll)}
        if self.permits is not None:
            body["permits"] = self.permits
        if keep > 0:
            body["keep_place"] = milliseconds(keep)
        return Request("POST", lock_path(self.name, "/acquire"), poll + timeout, body, self.id)

    def once_per(self, period: float, retry_failed: bool, wait: float, timeout: float) -> Request:
        body = {**self._about(), "period": milliseconds(period), "retry_failed": retry_failed, "wait": milliseconds(wait)}
        return Request("POST", lock_path(self.name, "/once-per"), wait + timeout, body, self.id)

    def succeeded(self, period: float, began: float, token: int, timeout: float) -> Request:
        body = {"period": milliseconds(period), "began_ms_ago": max(0, int((now() - began) * 1000)), "token": token}
        return Request("POST", lock_path(self.name, "/once-per/succeeded"), timeout, body, self.id)

    def renew(self, timeout: float) -> Request:
        return Request("POST", lock_path(self.name, "/renew"), timeout, {"ttl": milliseconds(self.ttl)}, self.id)

    def release(self, timeout: float, keep_for: Duration | None = None) -> Request:
        body = {} if keep_for is None else {"keep_for": milliseconds(keep_for)}
        return Request("POST", lock_path(self.name, "/release"), timeout, body, self.id)


class Acquisition(_Tries):
    """The long polls for one claim, until it is granted or the time is over."""

    def __init__(self, claim: Claim, limit: float, timeout: float) -> None:
        super().__init__()
        self._claim = claim
        self._timeout = timeout
        self._sent = now()
        self._end = self._sent + limit
        # A lock that need not be waited for may still be asked for again while the server does not answer.
        self._last_repetition = self._sent + max(limit, timeout)
        self._backoff = Backoff()

    def request(self) -> Request:
        self._sent = now()
        return self._claim.acquire(max(0.0, self._end - self._sent), self._timeout)

    def granted(self, answer: Mapping[str, Any]) -> Grant:
        grant = read_grant(answer, self._sent)
        if grant.until <= now():
            raise LeaseLost("lease_lost", f"the lock {self._claim.name!r} was granted, but the answer took too long", advice="use a longer TTL")
        return grant

    def pause(self, error: LeaseholdError) -> float:
        """For how long to wait before the next request. Raises the error if there is none."""
        self._failed(error)
        if isinstance(error, Held) and now() < self._end:
            return 0.0 if now() - self._sent > 0.05 else 0.05
        if not isinstance(error, Unavailable):
            raise error
        pause = self._backoff.pause(error)
        if now() + pause >= self._last_repetition:
            raise error
        return pause


def may_have_left_something(claim: Claim, error: BaseException | None) -> bool:
    """Whether the engine may have granted or queued a claim although nobody will have it: after an error of unknown effect, or an interrupt."""
    return not isinstance(error, LeaseholdError) or error.effect != "none" or isinstance(error, LeaseLost) or claim.keep_place > 0


def ask(name: str, reason: str, timeout: float) -> Request:
    return Request("POST", lock_path(name, "/ask"), timeout, {"reason": reason})


def force_release(name: str, reason: str | None, timeout: float) -> Request:
    body = {"confirm": name} if reason is None else {"confirm": name, "reason": reason}
    # A second time, it would break the next holder's lock.
    return Request("POST", lock_path(name, "/force-release"), timeout, body, repeatable=False)


def ids(pool: str, count: int, timeout: float) -> Request:
    return Request("POST", f"/v1/ids/{quote(pool, safe='')}", timeout, {"count": count})


def page_of_locks(prefix: str, cursor: str | None, timeout: float) -> Request:
    query = {"prefix": prefix, "limit": "1000"}
    if cursor is not None:
        query["cursor"] = cursor
    return Request("GET", f"/v1/locks?{urlencode(query)}", timeout)


def write_record(method: str, key: str, value: str | bytes | None, token: int | None, lock: str | None, version: int | None | _Unset, timeout: float) -> Request:
    """A write to a guarded record, by token or by version."""
    body: dict[str, Any] = {}
    if isinstance(value, bytes):
        body["value_base64"] = base64.b64encode(value).decode()
    elif value is not None:
        body["value"] = value
    if token is not None and isinstance(version, _Unset):
        body["token"] = token
        if lock is not None:
            body["lock"] = lock
        # One that is repeated may arrive after the next write with the same token.
        return Request(method, store_path(key), timeout, body, repeatable=False)
    if token is None and not isinstance(version, _Unset):
        body["version"] = version
        # A second time, it would find its own write.
        return Request(method, store_path(key), timeout, body, repeatable=False)
    raise ValueError("give either the lease (or its token), or the version that the record must have")
