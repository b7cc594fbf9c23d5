"""What is known about the machine: its steal, its load, what is installed."""

import datetime
import os
import platform
import re
import subprocess
import time


class Steal:
    """The share of processor time that the host gave to other machines, since this was made."""

    def __init__(self):
        self.before = self.ticks()

    @staticmethod
    def ticks():
        """All and stolen ticks, from the first line: user, nice, system, idle, iowait, irq, softirq, steal."""
        try:
            with open("/proc/stat") as stat:
                ticks = [int(word) for word in stat.readline().split()[1:9]]
            return sum(ticks), ticks[7]
        except (OSError, ValueError, IndexError):
            return None

    def share(self):
        after = self.ticks()
        if not self.before or not after:
            return None
        return round((after[1] - self.before[1]) / max(1, after[0] - self.before[0]), 3)


def load():
    return round(os.getloadavg()[0], 2)


def machine():
    return {
        "cpu": field("/proc/cpuinfo", r"model name\s*: (.*)") or platform.processor() or "unknown",
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "os": (field("/etc/os-release", r'PRETTY_NAME="(.*)"') or platform.system()),
    }


def field(path, pattern):
    try:
        with open(path) as file:
            found = re.search(pattern, file.read())
        return found and found[1]
    except OSError:
        return None


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def output(*command, cwd=None):
    """The first line with a version that a command prints, or None."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout + "\n" + done.stderr).strip().splitlines()
    return next((line.strip() for line in lines if re.search(r"\d\.\d", line)), None)


def wait_until(what, check, seconds=60):
    """Polls until `check` returns true."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not ready after {seconds} s")
        time.sleep(0.05)
