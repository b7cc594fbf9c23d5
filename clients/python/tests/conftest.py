"""Fixtures: a deadline for each test, a server for each module, a lock for each test."""

from __future__ import annotations

import signal
from typing import Iterator

import pytest

from leasehold_client import Client
from support import Server

DEADLINE = 90  # seconds for one test, servers included


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"the test took longer than {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, label="test") as client:
        yield client


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    """A lock of the test's own."""
    return request.node.name
