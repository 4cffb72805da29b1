"""Compares two sources: `python -m tests.frozen.beside OLD_SRC NEW_SRC [--questions 10000 --mechanisms 500]`.

Random questions of the grammar that compares engines, and the mechanisms of the contracts with some of their
numbers changed, are run on both, each in a process of its own, without noise. Exact integers, events and classes
of errors are compared, and differences listed; the exit code says whether there are any. A source folder has its
tests beside it, as in a checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ..contracts.test_engines_queries import Grammar
from ..contracts.test_mechanisms import CASES
from .stage import differences

SHOWN = 5


def orders(number_of_questions: int, number_of_mechanisms: int, seed: int) -> dict[str, Any]:
    """Draw what is asked of both sides."""
    grammar, source = Grammar(seed), random.Random(seed)
    asked = []
    for _ in range(number_of_questions):
        noise = source.choice(["auto", "auto", "laplace", "gaussian"])
        terms = {"epsilon": source.choice([0.1, 1, 3]), "delta": source.choice([1e-6, 1e-9]), "noise": noise}
        asked.append({"sql": grammar.query(), "terms": terms})
    names = sorted(case.name for case in CASES)
    chosen = [[source.choice(names), source.getrandbits(32)] for _ in range(number_of_mechanisms)]
    return {"questions": asked, "mechanisms": chosen}


def start(source: Path, order: Path, out: Path) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("beside_run.py")
    paths = os.pathsep.join([str(source.resolve()), str(source.resolve().parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(script), str(order), str(out)]
    return subprocess.Popen(command, env=environment, cwd=out.parent)


def compare(old: Path, new: Path, order: dict[str, Any], *, shown: int = SHOWN) -> list[str]:
    """Run both sides, and say where they differ: one example of each kind of difference."""
    with tempfile.TemporaryDirectory(prefix="beside") as name:
        folder = Path(name)
        (folder / "order.json").write_text(json.dumps(order))
        outs = [folder / "old.jsonl", folder / "new.jsonl"]
        sides = [start(s, folder / "order.json", o) for s, o in zip((old, new), outs, strict=True)]
        # both are waited for, whatever becomes of the first
        codes = [side.wait() for side in sides]
        if any(codes):
            raise SystemExit(f"a side has ended with the codes {codes}: see its traceback above")
        titles = [f"{one['sql']} {one['terms']}" for one in order["questions"]]
        titles += [f"mechanism {name} (seed {seed})" for name, seed in order["mechanisms"]]
        kinds: dict[tuple[str, ...], list[str]] = {}
        errors: Counter[str] = Counter()
        with outs[0].open() as before, outs[1].open() as after:
            for title, a, b in zip(titles, before, after, strict=True):
                was = json.loads(a)
                errors[was[-1].get("error", "answered")] += 1
                if a != b:
                    parts = differences(was, json.loads(b))
                    kinds.setdefault(_kind(parts), []).append("\n  ".join([title, *parts[:shown]]))
        before_them = ", ".join(f"{count} {name}" for name, count in errors.most_common())
        total = sum(map(len, kinds.values()))
        sys.stdout.write(f"{len(titles)} compared ({before_them} in the old one): {total} differ\n")
        return [f"{len(found)} like this: {found[0]}" for found in kinds.values()]


def _kind(parts: list[str]) -> tuple[str, ...]:
    """The paths at which two results differ, whatever their places in a list are: one example of each kind is
    shown."""
    return tuple(sorted({re.sub(r"/\d+", "/*", part.partition(":")[0]) for part in parts}))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the source folder of the commit before")
    parser.add_argument("new", type=Path, help="the source folder of now")
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--mechanisms", type=int, default=500)
    parser.add_argument("--seed", type=int, default=43)
    given = parser.parse_args(words)
    order = orders(given.questions, given.mechanisms, given.seed)
    lines = compare(given.old, given.new, order)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
