"""One client of another Python package: python fleet.py KIND PORT NAME TTL_SECONDS (0: no limit).

Each line on stdin is a command, answered by one line of JSON: see other.rs.
"""

import json
import logging
import sys
import time

import redis
import redis_lock

logging.disable()  # python-redis-lock warns of each refusal


class RedisPy:
    """The key is the name itself."""

    def __init__(self, client, name, ttl):
        self.lock = client.lock(name, timeout=ttl or None, sleep=0.01, thread_local=False)

    def take(self):
        return self.lock.acquire(blocking=False)

    def wait(self):
        return self.lock.acquire()

    def release(self):
        self.lock.release()


class PythonRedisLock:
    """The key is `lock:` and the name; who waits is told on a list `lock-signal:` and the name."""

    def __init__(self, client, name, ttl):
        self.lock = redis_lock.Lock(client, name, expire=ttl)

    def take(self):
        return self.lock.acquire(blocking=False)

    def wait(self):
        return self.lock.acquire()

    def release(self):
        self.lock.release()


def contend(lock, rounds, path, letter):
    for _ in range(rounds):
        while not lock.take():
            time.sleep(0.01)
        with open(path) as file:
            seen = file.read()
        time.sleep(0.002)
        with open(path, "w") as file:
            file.write(seen + letter)
        lock.release()
        time.sleep(0.01)


def main():
    kind, port, name, ttl = sys.argv[1:]
    kinds = {"redis-py": RedisPy, "redis-py-cluster": RedisPy, "python-redis-lock": PythonRedisLock}
    client = redis.cluster.RedisCluster if kind == "redis-py-cluster" else redis.Redis
    lock = kinds[kind](client(host="127.0.0.1", port=int(port)), name, int(ttl))
    for line in sys.stdin:
        command, *arguments = line.split()
        done = True
        if command == "try":
            done = bool(lock.take())
        elif command == "wait":
            done = bool(lock.wait())
        elif command == "release":
            lock.release()
        elif command == "contend":
            rounds, letter, path = arguments
            contend(lock, int(rounds), path, letter)
        print(json.dumps({"done": done}), flush=True)


main()
