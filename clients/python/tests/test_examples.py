"""The examples of the documentation, run as they stand there. What a block must print is in the block after it; … stands for any text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from support import ROOT, Server

PAGES = ["docs/http-examples.md", "docs/python.md"]
COMMANDS = {
    "sh": ["bash", "-euo", "pipefail", "-c"],
    "js": ["node", "--input-type=module", "-e"],
    "python": [sys.executable, "-c"],
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> Iterator[pytest.param]:  # type: ignore[valid-type]
    for page in PAGES:
        text = (ROOT / page).read_text()
        blocks = [(found.group(1), found.group(2), text[: found.start()].count("\n") + 1) for found in BLOCK.finditer(text)]
        for at, (language, code, line) in enumerate(blocks):
            if language not in COMMANDS:
                continue
            follows = blocks[at + 1] if at + 1 < len(blocks) else ("", "", 0)
            assert follows[0] == "output", f"{page}:{line}: the example does not say what it prints"
            yield pytest.param(language, code, follows[1], id=f"{Path(page).stem}:{line}")


@pytest.mark.parametrize("language, code, expected", list(examples()))
def test_example(server: Server, language: str, code: str, expected: str) -> None:
    code = code.replace("127.0.0.1:7654", server.address)
    done = subprocess.run([*COMMANDS[language], code], capture_output=True, text=True, timeout=30)
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.fullmatch(pattern, done.stdout.strip()), done.stdout


def test_every_page_has_examples() -> None:
    assert len(list(examples())) >= 12


def test_the_readme_is_right_about_the_client() -> None:
    text = (ROOT / "clients/python/README.md").read_text()
    for found in BLOCK.finditer(text):
        if found.group(1) == "python":
            compile(found.group(2), "README.md", "exec", flags=0x2000)  # top-level await
