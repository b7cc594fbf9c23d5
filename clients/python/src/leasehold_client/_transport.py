"""HTTP with threads: connections of ``http.client`` that are used again."""

from __future__ import annotations

import http.client
import selectors
import ssl
import threading
from dataclasses import replace

from ._clock import now
from ._protocol import Request, Response, Server
from .errors import Unavailable, no_answer


class Transport:
    """Sends requests to one of the servers: the one that answered last, and the next one if it does not. Can be used from several threads."""

    def __init__(self, servers: list[Server], token: str | None, context: ssl.SSLContext | None) -> None:
        self._servers = servers
        self._token = token
        self._context = context or (ssl.create_default_context() if any(server.tls for server in servers) else None)
        self._current = 0
        self._idle: list[tuple[int, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()

    def send(self, request: Request, timeout: float | None = None) -> Response:
        """The answer, whatever its status. Raises ``Unavailable`` if there is none within the timeout."""
        deadline = now() + (request.timeout if timeout is None else timeout)
        at, connection = self._take()
        in_doubt = False
        if connection.sock is not None and request.repeatable:
            try:
                return self._exchange(request, at, connection, deadline)
            except Unavailable as error:
                if not isinstance(error.__cause__, ConnectionError) or now() >= deadline:
                    raise
                # The server has closed the idle connection at this moment, which says nothing about the server.
                at, connection = self._new()
                in_doubt = True
        try:
            response = self._exchange(request, at, connection, deadline)
        except Unavailable as error:
            if in_doubt:
                error.effect = "unknown"
            raise
        return replace(response, in_doubt=in_doubt)

    def _exchange(self, request: Request, at: int, connection: http.client.HTTPConnection, deadline: float) -> Response:
        reused = connection.sock is not None
        sent = False
        try:
            connection.timeout = max(0.001, deadline - now())
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(max(0.001, deadline - now()))
            sent = True
            connection.request(request.method, self._servers[at].prefix + request.path, request.encode(), request.headers(self._token))
            connection.sock.settimeout(max(0.001, deadline - now()))
            answer = connection.getresponse()
            response = Response(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if not reused:
                self._go_on(at)
            raise no_answer(f"{self._servers[at].authority} does not answer ({error or type(error).__name__})", sent=sent) from error
        except BaseException:
            connection.close()
            raise
        if response.status == 503:
            self._go_on(at)
        if answer.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append((at, connection))
        return response

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take(self) -> tuple[int, http.client.HTTPConnection]:
        with self._lock:
            at = self._current
            while self._idle:
                of, connection = self._idle.pop()
                if of == at and _is_quiet(connection):
                    return at, connection
                connection.close()
        return self._new()

    def _new(self) -> tuple[int, http.client.HTTPConnection]:
        at = self._current
        server = self._servers[at]
        if server.tls:
            return at, http.client.HTTPSConnection(server.host, server.port, context=self._context)
        return at, http.client.HTTPConnection(server.host, server.port)

    def _go_on(self, failed: int) -> None:
        with self._lock:
            if self._current == failed:
                self._current = (failed + 1) % len(self._servers)


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """A connection that has something to read was closed by the server."""
    if connection.sock is None:
        return False
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.sock, selectors.EVENT_READ)
            return not selector.select(0)
    except (OSError, ValueError):
        return False
