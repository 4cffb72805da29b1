"""Every example and notebook that opens a session, with `dp.connect` in the place of `dp.open`: the same script, the
routes and the JSON of a server, and the verbs of its workers, in this process."""

from __future__ import annotations

import asyncio
import doctest
import json
import os
import re
import runpy
import threading
import time
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import discreet as dp
from discreet import session as sessions
from discreet.app.web import Settings, build, front_desk
from discreet.app.web.server_store import Dataset
from discreet.app.web.sessions import Desk, Folders
from discreet.app.web.verbs import reply_to
from discreet.app.web.workers import packed, unpacked
from discreet.session.base import SessionBase

from .running import free_port

ROOT = Path(__file__).parents[2]
TRAINS = "trains torch modules"
# What needs the steward's own process, and why.
STEWARDS = {
    "docs/mechanisms.md": "asks a mechanism of the reader's own",
    "docs/sql.md": "prints what is spent of delta, which a server does not say",
    "engineer": "saves checkpoints",
    "fine_tune_lora": TRAINS,
    "fine_tune_transformers": TRAINS,
    "leaderboard": "its boards have no guarantee that is proved",
    "mnist_dp_sgd": TRAINS,
    "mnist_pate": "trains teachers",
    "pate_labels": "trains teachers",
    "reusable_holdout": "asks about a statistic that is Python",
    "train_and_resume": "saves checkpoints",
}


def named(path: Path) -> str:
    """A name that is a story's alone."""
    return path.stem if path.suffix != ".md" else str(path.relative_to(ROOT))


TUTORIALS = (
    "tour.md",
    "sql.md",
    "workloads.md",
    "streaming.md",
    "synthetic.md",
    "mechanisms.md",
    "choosing.md",
)
STORIES = sorted(
    path
    for path in [
        *(ROOT / "examples").glob("*.py"),
        *(ROOT / "docs" / "notebooks").glob("*.ipynb"),
        *(ROOT / "docs" / "course").glob("*.md"),
        *(ROOT / "docs" / name for name in TUTORIALS),
    ]
    if "dp.open(" in path.read_text()
)


class Inside:
    """A lane of workers in this process: requests and replies are JSON, as in a pipe."""

    ready_workers = 8
    desk: Desk

    def __init__(self, **_: Any) -> None:
        """Take the options of a lane; none is needed."""

    def start(self) -> None:
        """There is nothing to start."""

    start_once = stop = end = start

    async def ready(self) -> None:
        """It always is."""

    async def call(self, request: dict[str, Any], deadline: float, who: str) -> dict[str, Any]:
        return unpacked(await asyncio.to_thread(reply_to, Inside.desk, packed(request)))


class Network:
    """Serves each session that a script opens, and gives it one that is connected."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        settings = Settings(state=folder / "state", seconds=600.0, tick=0.01, rate=1e6, burst=10**6)
        Inside.desk = Desk(True, 600.0, Folders((), folder / "state"), rows=100_000)
        self.app, self.numbers, self.open = build(settings), count(1), sessions.open
        self.app.state.store.add_person("root", "steward")
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        served = uvicorn.Server(uvicorn.Config(self.app, host="127.0.0.1", port=port, log_level="warning"))
        thread = threading.Thread(target=served.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(setattr, served, "should_exit", True)
        while not served.started:
            time.sleep(0.01)

    def connected(self, *arguments: Any, **options: Any) -> Any:
        """Open a table as `dp.open` does, serve it, and connect to it as its steward."""
        local = self.open(*arguments, **options)
        path, name, store = str(local.ledger.path), f"data{next(self.numbers)}", self.app.state.store
        Inside.desk._sessions[path] = local
        store.add_dataset(Dataset(name, name, name, path))
        analysts = [analyst for analyst, _ in local.curator.policy.analysts]
        for analyst in analysts:
            if store.role_of(analyst) is None:
                store.add_person(analyst, "analyst")
        store.set_grants(name, analysts)
        return self.session("root", name)

    def session(self, who: str, name: str) -> Any:
        return dp.connect(self.url, self.app.state.store.issue_token(who, 1)[0], dataset=name, timeout=600)

    def as_analyst(self) -> Any:
        """Return a method that connects with the token of somebody else, which is how one becomes another over
        the network."""
        local = SessionBase.as_analyst

        def connected(session: Any, name: str) -> Any:
            return self.session(name, session.curator.name) if session.curator.away else local(session, name)

        return connected


def script_of(path: Path, folder: Path) -> Path:
    """A script, or the code of a notebook as one, without lines that are not Python."""
    if path.suffix == ".py":
        return path
    cells = json.loads(path.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = [line for code in codes for line in [*code.splitlines(), ""] if line[:1] not in ("%", "!")]
    script = folder / f"{path.stem}.py"
    script.write_text("\n".join(lines))
    return script


def read_page(path: Path) -> None:
    """Run the doctests of a page, and its other blocks of Python in order."""
    with redirect_stdout(StringIO()) as told:
        result = doctest.testfile(str(path), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0, told.getvalue()
    space: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.S):
        if ">>>" not in block:
            exec(compile(block, path.name, "exec"), space)


@pytest.mark.slow
@pytest.mark.parametrize("path", STORIES, ids=lambda path: named(path))
def test_a_story_is_the_same_over_the_network(path, tmp_path, monkeypatch):
    if named(path) in STEWARDS:
        pytest.skip(STEWARDS[named(path)])
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.setattr(front_desk, "Lane", Inside)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [path.stem])
    with ExitStack() as stack:
        network = Network(tmp_path, stack)
        monkeypatch.setattr(dp, "open", network.connected)
        monkeypatch.setattr(sessions, "open", network.connected)
        monkeypatch.setattr(SessionBase, "as_analyst", network.as_analyst())
        # Times are not what is tested: a release is listed at once.
        monkeypatch.setattr(front_desk.PublicTimes, "horizon", lambda *_: {"horizon": time.time() + 60})
        if path.suffix == ".md":
            read_page(path)
        else:
            runpy.run_path(str(script_of(path, tmp_path)), {"display": print}, run_name="__main__")
    assert os.getcwd() == str(tmp_path)


def test_what_is_left_to_the_steward_is_there():
    assert STEWARDS.keys() <= {named(path) for path in STORIES}
    assert len(STORIES) - len(STEWARDS) > 10
