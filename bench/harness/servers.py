"""The stores, each with servers of its own on free ports of the loopback, in a temporary folder."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile

from .host import output, wait_until

# For how long new servers grant nothing: the TTL of the locks.
REDLOCK_WAITS = 30
JAR = "/usr/share/java/zookeeper.jar"


class Missing(Exception):
    """A server or package that is not installed; the text says what to do."""


class Server:
    """A server process; `stop` ends it and nothing else."""

    def __init__(self, folder, command, port, user=None, stop=signal.SIGTERM, says=None):
        if user and os.getuid() == 0:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        self.log_path = os.path.join(folder, f"log-{port}")
        self.port, self.signal = port, stop
        self.says = says  # what its log has once it is ready, if it accepts connections before
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)

    def answers(self):
        with open(self.log_path) as log:
            text = log.read()
        if self.process.poll() is not None:
            raise RuntimeError(f"a server ended at its start:\n{text[-2000:]}")
        if self.says and self.says not in text:
            return False
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self.process.send_signal(self.signal)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name, package, *places):
    found = shutil.which(name) or next((path for place in places for path in sorted(glob.glob(place))[-1:]), None)
    if not found:
        raise Missing(f"{name} is not installed (Debian: apt install {package})")
    return found


def own(path, user):
    if os.getuid() == 0:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def as_user(user, command):
    if os.getuid() == 0:
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
    subprocess.run(command, check=True, capture_output=True)


def redis(folder, count=1):
    binary = program("redis-server", "redis-server")
    servers = []
    for _ in range(count):
        port = free_port()
        options = ["--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no"]
        servers.append(Server(folder, [binary, "--port", str(port), *options], port))
    return servers, ",".join(f"redis://127.0.0.1:{server.port}" for server in servers)


def redlock(folder):
    return redis(folder, 5)


def etcd(folder):
    binary = program("etcd", "etcd-server")
    client, peer = free_port(), free_port()
    urls = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    command = [binary, "--name=n", f"--data-dir={folder}/etcd", f"--listen-client-urls={urls[0]}",
               f"--advertise-client-urls={urls[0]}", f"--listen-peer-urls={urls[1]}",
               f"--initial-advertise-peer-urls={urls[1]}", f"--initial-cluster=n={urls[1]}"]
    return [Server(folder, command, client)], f"http://127.0.0.1:{client}"


def zookeeper(folder):
    java = program("java", "zookeeper default-jre-headless")
    if not os.path.exists(JAR):
        raise Missing(f"{JAR} is not there (Debian: apt install zookeeper)")
    port = free_port()
    with open(f"{folder}/zoo.cfg", "w") as file:
        file.write(f"tickTime=2000\ndataDir={folder}/zookeeper\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
                   "admin.enableServer=false\nmaxClientCnxns=0\n")
    command = [java, "-Xmx512m", "-cp", JAR, "org.apache.zookeeper.server.ZooKeeperServerMain", f"{folder}/zoo.cfg"]
    return [Server(folder, command, port)], f"127.0.0.1:{port}"


def postgres(folder):
    places = "/usr/lib/postgresql/*/bin/"
    initdb = program("initdb", "postgresql", places + "initdb")
    binary = program("postgres", "postgresql", places + "postgres")
    data, port = f"{folder}/postgres", free_port()
    os.mkdir(data, 0o700)
    own(data, "postgres")
    as_user("postgres", [initdb, "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"])
    command = [binary, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-c", "max_connections=300"]
    server = Server(folder, command, port, user="postgres", stop=signal.SIGINT, says="ready to accept connections")
    return [server], f"postgres://postgres@127.0.0.1:{port}/postgres"


def mysql(folder):
    install = program("mariadb-install-db", "mariadb-server")
    binary = program("mariadbd", "mariadb-server", "/usr/sbin/mariadbd")
    data, port = f"{folder}/mysql", free_port()
    os.mkdir(data, 0o700)
    own(data, "mysql")
    user = ["--user=mysql"] if os.getuid() == 0 else []
    prepare = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db", *user]
    subprocess.run(prepare, check=True, capture_output=True)
    command = [binary, "--no-defaults", f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", f"--socket={data}/socket",
               f"--pid-file={data}/pid", "--skip-log-bin", "--skip-name-resolve", "--max-connections=300", *user]
    # The engine makes its table in a database that exists.
    server = Server(folder, command, port)
    wait_until("mysql", server.answers)
    subprocess.run([program("mariadb", "mariadb-client"), "--no-defaults", "-h127.0.0.1", f"-P{port}", "-uroot", "-e", "CREATE DATABASE locks"],
                   check=True, capture_output=True)
    return [server], f"mysql://root@127.0.0.1:{port}"


def file(folder):
    return [], folder


START = {"file": file, "redis": redis, "redlock": redlock, "postgres": postgres, "mysql": mysql, "etcd": etcd, "zookeeper": zookeeper}


@contextlib.contextmanager
def store(name):
    """Starts the servers of a store; yields their address as the peers take it."""
    folder = tempfile.mkdtemp(prefix="leasehold-bench-")
    os.chmod(folder, 0o755)  # other users run some of the servers
    servers = []
    try:
        servers, address = START[name](folder)
        for server in servers:
            wait_until(name, server.answers)
        yield address
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def url(name, address):
    """The store's address as leasehold takes it."""
    return {
        "file": lambda: f"sqlite:{address}/locks.db",
        "redlock": lambda: f"redlock://{address.replace('redis://', '')}?max_ttl={REDLOCK_WAITS}s",
        "etcd": lambda: address.replace("http:", "etcd:"),
        "zookeeper": lambda: f"zookeeper://{address}",
        "mysql": lambda: f"{address}/locks",
    }.get(name, lambda: address)()


def zookeeper_version():
    """From the name of the file that the link names, or from the package."""
    linked = os.path.basename(os.path.realpath(JAR))
    packaged = output("dpkg-query", "-W", "-f", "zookeeper-${Version}", "zookeeper")
    return linked.removesuffix(".jar") if any(letter.isdigit() for letter in linked) else packaged


def versions():
    places = {"postgres": sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1:], "mariadbd": glob.glob("/usr/sbin/mariadbd")}
    found = {}
    for name, arguments in {"redis-server": ["--version"], "etcd": ["--version"], "postgres": ["--version"], "mariadbd": ["--version"]}.items():
        path = shutil.which(name) or next(iter(places.get(name, [])), None)
        if path:
            found[name] = output(path, *arguments)
    if os.path.exists(JAR):
        found["zookeeper"] = zookeeper_version()
    return {name: text for name, text in found.items() if text}
