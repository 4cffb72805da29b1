"""docs/server.md does what it shows: its Python, its curl and its survey, against a server that runs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from discreet.app.web.settings import Settings
from discreet.app.web.survey import build_survey

from .running import Server

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
HERE = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_its_python_runs_in_order(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCREET_TOKEN", server.tokens["ann"])
    codes = blocks("python")
    assert sum(HERE in code for code in codes) == 1
    space: dict[str, object] = {"__name__": "page"}
    with contextlib.redirect_stdout(io.StringIO()) as told:
        for code in codes:
            exec(compile(code.replace(HERE, server.url), "server.md", "exec"), space)
    assert "price: epsilon 0.1" in told.getvalue()
    assert "±" in told.getvalue()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_its_curl_asks_and_pays(server: Server, tmp_path: Path) -> None:
    (script,) = [block for block in blocks("sh") if "curl" in block]
    assert HERE in script
    done = subprocess.run(
        ["bash", "-ec", script.replace(HERE, server.url)],
        cwd=tmp_path,
        env=os.environ | {"DISCREET_TOKEN": server.tokens["bob"], "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "token.header").stat().st_mode & 0o777 == 0o600
    decoder, answers, text = json.JSONDecoder(), [], done.stdout.lstrip()
    while text:
        answer, end = decoder.raw_decode(text)
        answers.append(answer)
        text = text[end:].lstrip()
    datasets, preview, answer, budget = answers
    assert "health" in str(datasets)
    assert preview["admitted"]
    assert answer["columns"] == ["health", "n"]
    assert budget["used"] >= 0.1


def test_its_survey_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "survey.toml").write_text(text)
    assert build_survey(tmp_path / "survey.toml").state.results


def test_its_limits_are_those_of_the_program(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    table = PAGE.split("\n## Limits\n")[1].split("\n\nData ")[0]
    for words in (
        f"{settings.request_bytes >> 20} MiB, {settings.upload_bytes >> 20} MiB",
        f"{settings.answer_rows:,} declared groups",
        f"{settings.rate:g} a second, after a burst of {settings.burst}",
        f"{settings.slots_per_person} of one person, {settings.slots} of all",
        f"{settings.jobs} at a time, an hour each",
        f"{settings.logins} a minute per address",
        f"{settings.connections:,}; the header",
    ):
        assert words in table
    assert settings.job_seconds == 3600
