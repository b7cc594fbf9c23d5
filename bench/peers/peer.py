"""One waiter: python peer.py KIND ADDRESS LOCK LAST_HOLDER. The protocol is described in bench/README.md.

Each lock is used as its own documentation says, with its default settings.
"""

import json
import logging
import os
import random
import struct
import sys
import time
import zlib

logging.disable()  # python-redis-lock warns of each wait


def split(address):
    host, port = address.split("/")[-1].split("@")[-1].split(":")
    return host, int(port)


class RedisPy:
    """redis-py: tries again every 0.1 s."""

    def __init__(self, address, name):
        import redis

        host, port = split(address)
        lock = redis.Redis(host=host, port=port).lock(name, timeout=30)
        self.acquire, self.release = lock.acquire, lock.release


class PythonRedisLock:
    """python-redis-lock: waits by BLPOP."""

    def __init__(self, address, name):
        import redis
        import redis_lock

        host, port = split(address)
        lock = redis_lock.Lock(redis.Redis(host=host, port=port), name, expire=30)
        self.acquire, self.release = lock.acquire, lock.release


class Aioredlock:
    """aioredlock: three tries, 0.1 to 0.3 s apart, then an error; the caller tries again."""

    end = float("inf")

    def __init__(self, address, name):
        import asyncio

        import aioredlock

        self.name = name
        self.error = aioredlock.LockError
        self.run = asyncio.new_event_loop().run_until_complete
        servers = [split(server) for server in address.split(",")]
        self.run(self.open(aioredlock.Aioredlock, [{"host": host, "port": port} for host, port in servers]))

    async def open(self, manager, servers):
        self.manager = manager(servers)

    def acquire(self):
        """False if it was not obtained by the end of the round: many of them on several servers can keep each other out for long."""
        while True:
            try:
                self.lock = self.run(self.manager.lock(self.name, lock_timeout=30))
                return True
            except self.error:
                if time.monotonic_ns() > self.end:
                    return False

    def release(self):
        self.run(self.manager.unlock(self.lock))


class Kazoo:
    """kazoo's Lock recipe."""

    def __init__(self, address, name):
        from kazoo.client import KazooClient

        client = KazooClient(address)
        client.start()
        lock = client.Lock("/" + name, str(os.getpid()))
        self.acquire, self.release = lock.acquire, lock.release


class EtcdLock:
    """etcd's own lock service, through its JSON gateway, under one lease for the whole process."""

    def __init__(self, address, name):
        import base64
        import http.client
        import socket

        self.connection = http.client.HTTPConnection(*split(address))
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name = base64.b64encode(name.encode()).decode()
        self.lease = self.call("/v3/lease/grant", TTL=3600)["ID"]

    def call(self, path, **fields):
        self.connection.request("POST", path, json.dumps(fields))
        answer = self.connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"etcd: {body}")
        return body

    def acquire(self):
        self.key = self.call("/v3/lock/lock", name=self.name, lease=self.lease)["key"]

    def release(self):
        self.call("/v3/lock/unlock", key=self.key)


class AdvisoryLock:
    """PostgreSQL's session-level advisory lock, a connection for each waiter."""

    def __init__(self, address, name):
        import psycopg

        self.execute = psycopg.connect(address, autocommit=True).execute
        self.key = [zlib.crc32(name.encode())]

    def acquire(self):
        self.execute("SELECT pg_advisory_lock(%s)", self.key)

    def release(self):
        self.execute("SELECT pg_advisory_unlock(%s)", self.key)


class GetLock:
    """MySQL's GET_LOCK, a connection for each waiter."""

    def __init__(self, address, name):
        import pymysql

        host, port = split(address)
        self.cursor = pymysql.connect(host=host, port=port, user="root", autocommit=True).cursor()
        self.name = [name[:64]]

    def call(self, sql):
        self.cursor.execute(sql, self.name)
        if self.cursor.fetchone() != (1,):
            raise RuntimeError(f"{sql} failed")

    def acquire(self):
        self.call("SELECT GET_LOCK(%s, 3600)")

    def release(self):
        self.call("SELECT RELEASE_LOCK(%s)")


class Flock:
    """flock(2) on a file that stays open."""

    def __init__(self, address, name):
        import fcntl

        file = open(os.path.join(address, name), "w")
        self.acquire = lambda: fcntl.flock(file, fcntl.LOCK_EX)
        self.release = lambda: fcntl.flock(file, fcntl.LOCK_UN)


KINDS = {
    "redis-py": RedisPy,
    "python-redis-lock": PythonRedisLock,
    "aioredlock": Aioredlock,
    "kazoo": Kazoo,
    "etcd-lock": EtcdLock,
    "advisory-lock": AdvisoryLock,
    "get-lock": GetLock,
    "flock": Flock,
}


def cycle(lock, end):
    cycles = []
    while (began := time.monotonic_ns()) < end:
        lock.acquire()
        lock.release()
        cycles.append(time.monotonic_ns() - began)
    return {"cycles": cycles}


def hand_over(lock, last_holder, end):
    me = struct.pack("=Q", random.getrandbits(63) + 1)
    holds = []
    while time.monotonic_ns() < end:
        if lock.acquire() is False:
            break
        began = time.monotonic_ns()
        os.pwrite(last_holder, me, 0)
        time.sleep(random.random() / 1000)
        holds.append((began, time.monotonic_ns()))
        lock.release()
        while os.pread(last_holder, 8, 0) == me and time.monotonic_ns() < end:
            time.sleep(0.0001)
    return {"holds": holds}


def main():
    kind, address, name, path = sys.argv[1:]
    lock = KINDS[kind](address, name)
    last_holder = os.open(path, os.O_RDWR)
    print("{}", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        time.sleep(max(0, task["start"] - time.monotonic_ns()) / 1e9)
        lock.end = task["end"]
        if task["do"] == "cycle":
            answer = cycle(lock, task["end"])
        else:
            answer = hand_over(lock, last_holder, task["end"])
        print(json.dumps(answer), flush=True)


main()
