"""Who is measured, on which store; and how their packages are installed."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

from .host import output
from .servers import Missing

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = os.path.join(ROOT, "bench", "peers")
INSTALLED = os.path.join(ROOT, "target", "bench")
OURS = "leasehold"


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str
    kind: str  # which package manager brings it
    adapter: str  # what the adapter calls it
    stores: tuple
    waits: str  # how it waits, for the report
    package: str = ""  # whose version is told


REDIS = ("redis",)
BOTH = ("redis", "redlock")
PEER_LIST = [
    Peer("flock(2)", "python", "flock", ("file",), "in the kernel"),
    Peer("rslock", "rust", "rslock", BOTH, "tries again, 3 times 0 to 200 ms apart, in a loop", "rslock"),
    Peer("redlock (npm)", "node", "redlock", BOTH, "tries again after 200 to 400 ms", "redlock"),
    Peer("redis-py", "python", "redis-py", REDIS, "tries again every 100 ms", "redis"),
    Peer("aioredlock", "python", "aioredlock", BOTH, "tries again after 100 to 300 ms", "aioredlock"),
    Peer("python-redis-lock", "python", "python-redis-lock", REDIS, "BLPOP", "python-redis-lock"),
    Peer("advisory lock", "python", "advisory-lock", ("postgres",), "in the server, a connection for each waiter", "psycopg"),
    Peer("GET_LOCK", "python", "get-lock", ("mysql",), "in the server, a connection for each waiter", "PyMySQL"),
    Peer("etcd's lock", "python", "etcd-lock", ("etcd",), "in the server, a request for each waiter"),
    Peer("kazoo", "python", "kazoo", ("zookeeper",), "a watch on the predecessor", "kazoo"),
    Peer("zookeeper-client", "rust", "zookeeper-client", ("zookeeper",), "a watch on the predecessor", "zookeeper-client"),
]


def command(peer, address):
    """The command of a waiter, from the name of the lock and the file of the last holder."""
    programs = {
        "python": [f"{INSTALLED}/venv/bin/python", f"{PEERS}/peer.py", peer.adapter],
        "node": [shutil.which("node") or "node", f"{PEERS}/{peer.adapter}.mjs"],
        "rust": [f"{INSTALLED}/rust/release/bench-peers", peer.adapter],
    }
    return lambda lock, last_holder: [*programs[peer.kind], address, lock, last_holder]


def build_leasehold():
    say("building leasehold")
    if not shutil.which("cargo"):
        raise Missing("cargo is not installed: https://rustup.rs")
    cargo("build", "--release", "-p", "leasehold-cli", "--features", "all-engines")
    metadata = subprocess.run(["cargo", "metadata", "--format-version=1", "--no-deps"], cwd=ROOT, check=True, capture_output=True)
    return os.path.join(json.loads(metadata.stdout)["target_directory"], "release", "leasehold")


def install(kind):
    """Installs the peers of a kind, unless they are there and unchanged."""
    os.makedirs(INSTALLED, exist_ok=True)
    try:
        {"python": install_python, "node": install_node, "rust": install_rust}[kind]()
    except subprocess.CalledProcessError as error:
        last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise Missing(f"{' '.join(error.cmd[:3])} failed: {' '.join(last) or 'see above'}") from None
    except OSError as error:
        raise Missing(str(error)) from None


def install_python():
    wanted, installed = f"{PEERS}/requirements.txt", f"{INSTALLED}/venv/requirements.txt"
    if same(wanted, installed):
        return
    say("installing the Python peers")
    shutil.rmtree(f"{INSTALLED}/venv", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", f"{INSTALLED}/venv"], check=True, capture_output=True)
    pip = [f"{INSTALLED}/venv/bin/pip", "install", "-q", "--disable-pip-version-check", "-r", wanted]
    subprocess.run(pip, check=True, capture_output=True)
    shutil.copy(wanted, installed)


def install_node():
    wanted, installed = f"{PEERS}/package-lock.json", f"{INSTALLED}/node_modules/installed.json"
    if not shutil.which("node") or not shutil.which("npm"):
        raise Missing("node or npm is not installed (Debian: apt install nodejs npm)")
    if same(wanted, installed):
        return
    say("installing the peers from npm")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(f"{PEERS}/{name}", INSTALLED)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=INSTALLED, check=True, capture_output=True)
    shutil.copy(wanted, installed)


def install_rust():
    say("building the Rust peers")
    cargo("build", "--release", "--locked", "--manifest-path", f"{PEERS}/rust/Cargo.toml", "--target-dir", f"{INSTALLED}/rust")


def cargo(*arguments):
    subprocess.run(["cargo", *arguments], cwd=ROOT, check=True)


def same(one, other):
    try:
        with open(one) as first, open(other) as second:
            return first.read() == second.read()
    except OSError:
        return False


def versions(peers):
    """Of the packages of the peers."""
    lists = {}
    if any(peer.kind == "python" for peer in peers):
        pip = subprocess.run([f"{INSTALLED}/venv/bin/pip", "list", "--format=json"], capture_output=True)
        lists["python"] = {entry["name"]: entry["version"] for entry in json.loads(pip.stdout or "[]")}
    if any(peer.kind == "node" for peer in peers):
        with open(f"{PEERS}/package-lock.json") as file:
            packages = json.load(file)["packages"]
        lists["node"] = {path.removeprefix("node_modules/"): entry.get("version") for path, entry in packages.items()}
    if any(peer.kind == "rust" for peer in peers):
        with open(f"{PEERS}/rust/Cargo.lock") as file:
            lines = file.read().splitlines()
        named = [(line, after) for line, after in zip(lines, lines[1:]) if line.startswith("name = ")]
        lists["rust"] = {line.split('"')[1]: after.split('"')[1] for line, after in named}
    found = {peer.package: lists[peer.kind].get(peer.package) for peer in peers if peer.package}
    if any(peer.kind == "python" for peer in peers):
        found["Python"] = sys.version.split()[0]
    if any(peer.kind == "node" for peer in peers):
        found["Node.js"] = output("node", "--version")
    return {name: version for name, version in found.items() if version}


def say(text):
    print(text, file=sys.stderr, flush=True)
