"""One client of kazoo: python kazoo_fleet.py HOSTS KIND PATH.

Each line on stdin is a command, answered by one line of JSON: see script.rs.
"""

import json
import logging
import sys
import time

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock, ReadLock, WriteLock

logging.disable()


def contend(lock, rounds, path, letter):
    for _ in range(rounds):
        lock.acquire()
        with open(path) as file:
            seen = file.read()
        time.sleep(0.002)
        with open(path, "w") as file:
            file.write(seen + letter)
        lock.release()
        time.sleep(0.005)


def main():
    hosts, kind, path = sys.argv[1:]
    client = KazooClient(hosts, timeout=2)
    client.start()
    lock = {"lock": Lock, "read": ReadLock, "write": WriteLock}[kind](client, path)
    for line in sys.stdin:
        command, *arguments = line.split()
        done = True
        if command == "try":
            done = lock.acquire(blocking=False)
        elif command == "wait":
            done = lock.acquire()
        elif command == "release":
            lock.release()
        elif command == "contend":
            rounds, letter, file = arguments
            contend(lock, int(rounds), file, letter)
        print(json.dumps({"done": done}), flush=True)


main()
