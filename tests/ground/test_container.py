"""The container of the server, as far as it can be checked without Docker: its commands start the real server,
its health check asks a route that answers, its folders are volumes, and it does not run as root."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from discreet.app.cli import serve as module

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
STATE, DATA, PORT = "/srv/discreet", "/srv/data", 8000


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile in order: name and the rest of the line."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    logical = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in logical if line.strip()]


def last(name: str) -> str:
    """The instruction that is in force at the end; it is in the last stage."""
    stage = max(i for i, (one, _) in enumerate(instructions()) if one == "FROM")
    return [rest for one, rest in instructions()[stage:] if one == name][-1]


def filled_in(text: str, **variables: str) -> str:
    """A text of compose.yaml with its variables, or their defaults: ${NAME:-default}."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: variables.get(match[1], match[2]), text)


def composed(**variables: str) -> list[str]:
    return shlex.split(filled_in(COMPOSE["services"]["discreet"]["command"], **variables))


BOOKS = "postgresql://discreet@postgres/books"
COMMANDS = {
    "Dockerfile": json.loads(last("CMD")),
    "compose": composed(),
    "compose with a name": composed(DISCREET_NAME="data.example.org"),
    "compose with PostgreSQL": composed(DISCREET_OPTIONS=f"--ledger {BOOKS}"),
}


@pytest.fixture(params=COMMANDS)
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What the real command line reads from a command of the container, without running it."""
    app = typer.Typer()
    app.command()(module.serve)
    name, *arguments = COMMANDS[request.param]
    assert name == "serve"
    with typer.main.get_command(app).make_context(name, list(arguments)) as context:
        yield context.params


def test_the_commands_are_those_of_the_command_line(options: dict[str, Any]) -> None:
    assert (str(options["state"]), list(map(str, options["root"]))) == (STATE, [DATA])
    assert (options["host"], options["port"], options["behind_tls"]) == ("0.0.0.0", PORT, True)
    assert options["ledger"] in (None, BOOKS)
    # refuses what would send tokens in the clear
    module.check_tls(options["host"], options["certificate"], options["key"], options["behind_tls"])


def test_the_settings_of_a_command_are_accepted(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(module, "_run", lambda settings, *_: started.append(settings))
    module.serve(**options | {"state": tmp_path / "state", "root": [tmp_path]})
    (settings,) = started
    assert settings.secure
    assert {"127.0.0.1", *options["name"]} <= set(settings.hosts)


def test_the_name_that_caddy_serves_is_the_one_that_the_server_goes_by() -> None:
    caddy = COMPOSE["services"]["caddy"]["environment"]["DISCREET_NAME"]
    for variables in ({}, {"DISCREET_NAME": "data.example.org"}):
        arguments = composed(**variables)
        assert arguments[arguments.index("--name") + 1] == filled_in(caddy, **variables)
    caddyfile = (ROOT / "Caddyfile").read_text()
    assert "{$DISCREET_NAME} {" in caddyfile
    assert f"reverse_proxy discreet:{PORT}" in caddyfile


def test_caddy_lets_through_what_the_server_takes() -> None:
    from discreet.app.web import Settings

    (size,) = re.findall(r"max_size (\d+)MiB", (ROOT / "Caddyfile").read_text())
    assert int(size) << 20 == Settings(state=Path("unused")).upload_bytes


def health() -> list[str]:
    """The command of the health check."""
    command: list[str] = json.loads(last("HEALTHCHECK").split("CMD ", 1)[1])
    return command


def test_the_health_check_tells_a_server_that_runs_from_one_that_does_not(tmp_path: Path) -> None:
    """The Dockerfile's own commands, with the port and the folders of this test."""
    name, code = health()[0], health()[2]
    assert name == "python"
    assert f"http://127.0.0.1:{PORT}/login" in code
    (tmp_path / "data").mkdir()
    places = {STATE: tmp_path / "state", DATA: tmp_path / "data", str(PORT): 0, "0.0.0.0": "127.0.0.1"}
    arguments = [str(places.get(word, word)) for word in COMMANDS["Dockerfile"]]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths}
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen([sys.executable, "-m", "discreet", *arguments], stdout=out, env=env)
    try:
        deadline = time.monotonic() + 180
        while (found := re.search(r"serves at http://127\.0\.0\.1:(\d+)", log.read_text())) is None:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.1)
        check = [sys.executable, "-c", code.replace(str(PORT), found[1])]
        assert subprocess.run(check).returncode == 0
    finally:
        server.terminate()
        server.wait(600)
    assert subprocess.run(check, capture_output=True).returncode != 0


def test_the_user_is_not_root_and_owns_the_folders() -> None:
    user = last("USER")
    assert user not in ("root", "0")
    (made,) = [rest for name, rest in instructions() if name == "RUN" and "useradd" in rest]
    assert re.search(rf"useradd --uid [1-9]\d+ .*{user} ", made)
    assert f"--owner {user} --group {user} --mode 700 {STATE} {DATA}" in made
    # a folder that is changed after VOLUME is as it was before
    order = instructions()
    assert order.index(("RUN", made)) < order.index(("USER", user)) < order.index(("VOLUME", last("VOLUME")))
    assert "user" not in COMPOSE["services"]["discreet"]


def test_folders_of_the_commands_are_volumes() -> None:
    assert json.loads(last("VOLUME")) == [STATE, DATA]
    mounted = dict(reversed(volume.split(":")) for volume in COMPOSE["services"]["discreet"]["volumes"])
    assert set(mounted) == {STATE, DATA}
    assert set(mounted.values()) <= set(COMPOSE["volumes"])


def test_the_server_is_reached_through_caddy_only() -> None:
    published = {name for name, service in COMPOSE["services"].items() if "ports" in service}
    assert published == {"caddy"}
    assert COMPOSE["services"]["discreet"]["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"] == {"internal": True}


def test_postgresql_is_there_only_if_asked_for() -> None:
    services = COMPOSE["services"]
    assert {name for name, service in services.items() if "profiles" in service} == {"postgres"}
    assert services["discreet"]["depends_on"]["postgres"]["required"] is False
    environment = services["postgres"]["environment"]
    assert f"postgresql://{environment['POSTGRES_USER']}@postgres/{environment['POSTGRES_DB']}" == BOOKS
    assert BOOKS in (ROOT / "compose.yaml").read_text().split("services:")[0], "the comment says how"
    # no password is written down
    assert (
        environment["POSTGRES_PASSWORD"]
        == services["discreet"]["environment"]["PGPASSWORD"]
        == "${PGPASSWORD:-}"
    )


def test_the_image_has_what_the_wheel_needs_and_nothing_of_the_working_folder() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = {
        word
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    }
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "constraints.txt", project["project"]["readme"], *wheel["shared-data"]}
    assert copied == needed | {"src", *project["project"]["license-files"]}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    (install,) = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert "-c constraints.txt" in install
    extras = re.search(r"'\.\[(.+)\]'", install)
    assert extras is not None
    assert (
        set(extras[1].split(","))
        == {"server", "postgres"}
        <= set(project["project"]["optional-dependencies"])
    )


def test_images_are_named_without_a_host_and_with_a_version() -> None:
    images = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    images += [service["image"] for name, service in COMPOSE["services"].items() if name != "discreet"]
    assert [image for image in images if not re.fullmatch(r"[a-z]+:[\w.-]+", image)] == []
