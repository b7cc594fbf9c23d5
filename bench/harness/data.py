"""The kept runs: JSON, one run a line."""

import glob
import json
import os
import subprocess

from .subjects import ROOT

FOLDER = os.path.join(ROOT, "bench", "data")


def write(path, run_data):
    head = json.dumps({key: value for key, value in run_data.items() if key != "runs"}, indent=1, ensure_ascii=False)
    runs = ",\n".join("  " + json.dumps(run, ensure_ascii=False, separators=(",", ":")) for run in run_data["runs"])
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "w") as file:
        file.write(f'{head[:-2]},\n "runs": [\n{runs}\n ]\n}}\n')
    os.replace(path + ".new", path)


def read(path):
    with open(path) as file:
        return json.load(file)


def newest(other_than=None):
    """The newest kept data; None if there is none."""
    paths = sorted(glob.glob(os.path.join(FOLDER, "*.json")))
    paths = [path for path in paths if not other_than or not os.path.samefile(path, other_than)]
    return paths[-1] if paths else None


def commit():
    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    try:
        return git("rev-parse", "--short=12", "HEAD") + (" and changes" if git("status", "--porcelain", "--", "crates") else "")
    except OSError:
        return None
