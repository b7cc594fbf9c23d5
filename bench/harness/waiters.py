"""A group of waiters, each a process of its own, that take part in rounds."""

import json
import os
import subprocess
import tempfile
import threading
import time

# How long before its start a round is announced.
LEAD_NS = 50_000_000
# How long waiters may take to start, and to answer after the end of a round.
PATIENCE = 60


class Failed(Exception):
    """A waiter ended or did not answer."""


class Group:
    """`command` makes the command of a waiter from the name of the lock and the file of the last holder.

    With `warm_up`, each makes some cycles while the others are idle, since the first one opens connections.
    """

    def __init__(self, command, size, clock=time.CLOCK_MONOTONIC, env=None, cwd=None, warm_up=False):
        self.clock = clock
        self.processes = []
        self.errors = tempfile.TemporaryFile("w+")
        handle, self.last_holder = tempfile.mkstemp(prefix="leasehold-bench-")
        os.write(handle, bytes(8))
        os.close(handle)
        arguments = command(os.path.basename(self.last_holder), self.last_holder)
        try:
            for _ in range(size):
                self.processes.append(subprocess.Popen(
                    arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, cwd=cwd,
                    env={**os.environ, **(env or {})}))
            self.answers(self.processes, PATIENCE)
            for process in self.processes if warm_up else []:
                self.run("cycle", 0.02, [process], lead=0)
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def run(self, task, seconds, taking_part, lead=LEAD_NS, **fields):
        """A round of these waiters: when it started and ended, and their answers."""
        start = time.clock_gettime_ns(self.clock) + lead
        end = start + int(seconds * 1e9)
        line = json.dumps({"do": task, "start": start, "end": end, **fields}) + "\n"
        for process in taking_part:
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except OSError:
                raise self.failed() from None
        return start, end, self.answers(taking_part, seconds + PATIENCE)

    def answers(self, processes, patience):
        """One line of each. Those that take too long are killed."""
        late = threading.Event()

        def kill():
            late.set()
            for process in processes:
                process.kill()

        watchdog = threading.Timer(patience, kill)
        watchdog.start()
        try:
            lines = [process.stdout.readline() for process in processes]
        finally:
            watchdog.cancel()
        if not all(lines):
            raise Failed(f"no answer within {patience} s") if late.is_set() else self.failed()
        return [json.loads(line) for line in lines]

    def failed(self):
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return Failed(lines[-1] if lines else "a waiter ended without a message")

    def stop(self):
        for process in self.processes:
            try:
                process.stdin.close()  # they exit at its end
            except OSError:
                pass
        end = time.monotonic() + 5
        for process in self.processes:
            try:
                process.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self.errors.close()
        os.unlink(self.last_holder)
