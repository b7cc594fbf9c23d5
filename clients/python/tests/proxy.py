"""A way to a server that can lose answers and break."""

from __future__ import annotations

import socket
import threading
import time


class Proxy:
    """Passes connections on to a server. `lose_answers(n)`: the next n answers are dropped, with their connection. `broken`: nobody gets through.

    `garble`: the body that every answer gets instead of its own.
    `ends_after_loss`: once an answer was lost, connections are refused.
    `slow`: what is in requests that arrive late, by `delay` seconds; `delayed` is set when there is one.
    """

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lose = 0
        self.lost = 0
        self.broken = False
        self.ends_after_loss = False
        self.garble: bytes | None = None
        self.slow = b""
        self.delay = 1.0
        self.delayed = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self, count: int) -> None:
        with self._lock:
            self._lose = count

    def break_connections(self) -> None:
        self.broken = True
        self.drop_connections()

    def drop_connections(self) -> None:
        """Closes those that are open; new ones get through."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _shut(connection)

    def close(self) -> None:
        self._listener.close()
        self.break_connections()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.broken:
                client.close()
                continue
            server = socket.create_connection(self._target)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if answers and self._loses_this():
                    break
                if answers and self.garble is not None:
                    data = _with_body(data, self.garble)
                if not answers and self.slow and self.slow in data:
                    self.delayed.set()
                    time.sleep(self.delay)
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            _shut(one)
            with self._lock:
                self._open.discard(one)

    def _loses_this(self) -> bool:
        with self._lock:
            if self._lose == 0:
                return False
            self._lose -= 1
            self.lost += 1
            if self.ends_after_loss:
                _shut(self._listener)
            return True


def _with_body(answer: bytes, body: bytes) -> bytes:
    """The answer with another body."""
    head, _, _ = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
