"""HTTP/1.1 with tasks: what the locks need of it, on asyncio's streams. A cancelled request closes its connection, which gives up a place in the queue."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import Optional

from ._clock import now
from ._protocol import Request, Response, Server
from .errors import LeaseholdError, Unavailable, UnexpectedAnswer, no_answer

MOST_HEADER_BYTES = 64 * 1024
MOST_BODY_BYTES = 64 * 1024 * 1024


class _BadAnswer(Exception):
    """What came is not HTTP/1.1."""


class Connection:
    """One connection, with one request at a time."""

    def __init__(self, server: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self._reader = reader
        self._writer = writer
        self.reusable = True

    def is_quiet(self) -> bool:
        """Whether the server has not closed it, as far as is known."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def exchange(self, head: bytes, body: bytes) -> Response:
        self._writer.write(head + body)
        await self._writer.drain()
        while True:
            status, headers, http_1_0 = await self._read_head()
            if status >= 200:
                break
        content = await self._read_body(status, headers)
        if http_1_0 or "close" in headers.get("connection", "").lower():
            self.reusable = False
        return Response(status, headers, content)

    async def _read_head(self) -> tuple[int, dict[str, str], bool]:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise _BadAnswer("the headers of the answer are too long") from error
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise _BadAnswer("the answer is not HTTP")
        headers: dict[str, str] = {}
        for line in lines:
            key, colon, value = line.partition(":")
            if not colon:
                raise _BadAnswer("a header of the answer cannot be read")
            headers[key.strip().lower()] = value.strip()
        return int(parts[1]), headers, parts[0] == "HTTP/1.0"

    async def _read_body(self, status: int, headers: dict[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._read_chunks()
        length = headers.get("content-length")
        if length is None:
            self.reusable = False
            return await self._read_to_end()
        if not length.isdigit() or int(length) > MOST_BODY_BYTES:
            raise _BadAnswer("the length of the answer cannot be right")
        return await self._reader.readexactly(int(length))

    async def _read_to_end(self) -> bytes:
        body = b""
        while more := await self._reader.read(64 * 1024):
            body += more
            if len(body) > MOST_BODY_BYTES:
                raise _BadAnswer("the answer is too long")
        return body

    async def _read_chunks(self) -> bytes:
        body = b""
        while True:
            line = await self._reader.readuntil(b"\r\n")
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError as error:
                raise _BadAnswer("a chunk of the answer cannot be read") from error
            if size == 0:
                while await self._reader.readuntil(b"\r\n") != b"\r\n":
                    pass
                return body
            if len(body) + size > MOST_BODY_BYTES:
                raise _BadAnswer("the answer is too long")
            body += (await self._reader.readexactly(size + 2))[:-2]


class AsyncTransport:
    """Sends requests to one of the servers: the one that answered last, and the next one if it does not."""

    def __init__(self, servers: list[Server], token: Optional[str], context: Optional[ssl.SSLContext]) -> None:
        self._servers = servers
        self._token = token
        self._context = context or (ssl.create_default_context() if any(server.tls for server in servers) else None)
        self._current = 0
        self._idle: list[Connection] = []

    async def send(self, request: Request, timeout: Optional[float] = None) -> Response:
        """The answer, whatever its status. Raises ``Unavailable`` if there is none within the timeout."""
        deadline = now() + (request.timeout if timeout is None else timeout)
        at = self._current
        connection = self._take(at)
        in_doubt = False
        if connection is not None and request.repeatable:
            try:
                return await self._exchange(request, at, connection, deadline)
            except Unavailable as error:
                if not isinstance(error.__cause__, (ConnectionError, EOFError)) or now() >= deadline:
                    raise
                # The server has closed the idle connection at this moment, which says nothing about the server.
                connection = None
                in_doubt = True
        try:
            response = await self._exchange(request, at, connection, deadline)
        except LeaseholdError as error:
            if in_doubt:
                error.effect = "unknown"
            raise
        return replace(response, in_doubt=in_doubt)

    async def _exchange(self, request: Request, at: int, connection: Optional[Connection], deadline: float) -> Response:
        server = self._servers[at]
        reused = connection is not None
        sent = False
        done = False

        async def exchange() -> Response:
            nonlocal connection, sent
            connection = connection or await self._connect(at)
            head, body = _encode(request, server, self._token)
            sent = True
            return await connection.exchange(head, body)

        try:
            response = await asyncio.wait_for(exchange(), max(0.001, deadline - now()))
            done = True
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            if not reused:
                self._go_on(at)
            raise no_answer(f"{server.authority} does not answer ({error or type(error).__name__})", sent=sent) from error
        except _BadAnswer as error:
            raise UnexpectedAnswer("unexpected", f"{server.authority}: {error}", advice="check the address", effect="unknown") from error
        finally:
            if connection is not None and not (done and connection.reusable):
                connection.close()
        if response.status == 503:
            self._go_on(at)
        if connection is not None and connection.reusable:
            self._idle.append(connection)
        return response

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self, at: int) -> Optional[Connection]:
        while self._idle:
            connection = self._idle.pop()
            if connection.server == at and connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _connect(self, at: int) -> Connection:
        server = self._servers[at]
        reader, writer = await asyncio.open_connection(
            server.host, server.port, ssl=self._context if server.tls else None, server_hostname=server.host if server.tls else None, limit=MOST_HEADER_BYTES
        )
        return Connection(at, reader, writer)

    def _go_on(self, failed: int) -> None:
        if self._current == failed:
            self._current = (failed + 1) % len(self._servers)


def _encode(request: Request, server: Server, token: Optional[str]) -> tuple[bytes, bytes]:
    body = request.encode()
    headers = {"Host": server.authority, **request.headers(token)}
    if body is not None:
        headers["Content-Length"] = str(len(body))
    lines = [f"{request.method} {server.prefix}{request.path} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header must not contain line breaks")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body or b""
