"""A proxy that serves a server under a path, as nginx does with `proxy_pass`."""

from __future__ import annotations

import re
import socket
import threading


class PrefixProxy:
    """Takes the prefix off the path of every request. A browser sends the head of a request in one piece, which is all that is needed here."""

    def __init__(self, target: str, prefix: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._head = re.compile(rb"^((?:GET|POST) )" + re.escape(prefix).encode() + rb"(/\S* HTTP/1\.1\r\n)")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, requests: bool) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(self._head.sub(rb"\1\2", data) if requests else data)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
