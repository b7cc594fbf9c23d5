"""A real server, and what tests need to wait for things without sleeping. The tests of the dashboard use it, too."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest

ROOT = Path(__file__).resolve().parents[3]


def leasehold_binary() -> str:
    given = os.environ.get("LEASEHOLD_BIN")
    if given:
        return given
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    binary = target / "debug" / "leasehold"
    if not binary.exists():
        raise RuntimeError(f"{binary} is missing: run `cargo build -p leasehold-cli`, or set LEASEHOLD_BIN")
    return str(binary)


class Server:
    """`leasehold serve` on a free port of the loopback, ended with the test."""

    def __init__(self, folder: Path, *options: str, listen: str = "127.0.0.1:0", url: str = "memory:") -> None:
        self.log = open(folder / f"server-{time.monotonic_ns()}.log", "w+")
        command = [leasehold_binary(), "--url", url, "serve", "--listen", listen, *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        found = eventually(lambda: re.search(r"http://(127\.0\.0\.1:\d+)", self.said()) or self._died())
        self.address = found.group(1)
        self.url = f"http://{self.address}"

    def said(self) -> str:
        return Path(self.log.name).read_text()

    def _died(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended: {self.said()}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.log.close()


def eventually(condition: Callable[[], Any], within: float = 30.0) -> Any:
    """What the condition gives as soon as it is true."""
    end = time.monotonic() + within
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"did not happen within {within} s")
        time.sleep(0.02)


def tokens_file(folder: Path, tokens: dict[str, list[str]]) -> Path:
    """A file of access tokens; each token is its own name."""
    parts = [
        f'[[token]]\nname = "{token}"\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\nscopes = {scopes!r}\n'.replace("'", '"')
        for token, scopes in tokens.items()
    ]
    path = folder / "tokens.toml"
    path.write_text("\n".join(parts))
    path.chmod(0o600)
    return path


class StallMeter(threading.Thread):
    """Measures for how long this machine did not let the process run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self._done = threading.Event()

    def run(self) -> None:
        while True:
            before = time.monotonic()
            if self._done.wait(0.02):
                return
            self.longest = max(self.longest, time.monotonic() - before)

    def stop(self) -> float:
        self._done.set()
        self.join()
        return self.longest


def again_if_stalled(test: Callable[..., None]) -> Callable[..., None]:
    """For tests with short TTLs: a failure counts unless the machine stood still meanwhile; then the test runs again."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        for _ in range(3):
            meter = StallMeter()
            meter.start()
            try:
                test(*args, **kwargs)
                meter.stop()
                return
            except AssertionError:
                if meter.stop() < 0.3:
                    raise
        pytest.fail("the machine stalled in three runs")

    return run
