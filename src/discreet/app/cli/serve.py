"""`discreet serve`: serves datasets over HTTP and in the browser.

A steward administers the datasets and the people of a server; analysts may only ask questions.

Sets up the demonstration: the RAND health insurance table, a steward, two analysts and an auditor.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import shutil
import socket
import ssl
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from ..._errors import InvalidInput, LedgerError, MissingExtra
from ..._public import Public, Unit
from ..._system import MOVES_OPEN_FILES
from ...curator import Budget, Ledger
from ...curator.backups import back_up
from ...tables import dump
from ...tables.bundled import SCHEMA
from ..requests import create_session
from ..web.server_store import ANY_STEWARD, Dataset, Role, ServerStore
from ..web.settings import Settings
from .options import CERTIFICATE, KEY

STATE = typer.Option(
    Path("discreet-server"),
    "--state",
    help="The folder in which the server stores people, tokens and jobs. Back up its key.",
)
ROOT = typer.Option([], "--root", help="A folder whose files may be served. Can be repeated.")
LEDGER = typer.Option(
    None,
    "--ledger",
    help="A PostgreSQL database for the ledgers of datasets that are added, where many machines serve: "
    "postgresql://user@host/database. By default each is a file beside its data.",
)
NAME = typer.Option([], "--name", help="A host name under which browsers reach it, as behind a proxy.")
TICK = typer.Option(
    None,
    "--tick",
    help="Answers are sent at multiples of so many seconds. By default only at the time limit; a finer "
    "tick tells more about the data.",
)
DEMO = typer.Option(
    False, "--demo", help="A public table, a steward and two analysts, in a temporary folder."
)


def serve(
    state: Path = STATE,
    root: list[Path] = ROOT,
    ledger: str = LEDGER,
    host: str = typer.Option("127.0.0.1", "--host", help="The address to listen at."),
    port: int = typer.Option(8000, "--port", min=0, max=65535, help="The port to listen at."),
    name: list[str] = NAME,
    seconds: float = typer.Option(5.0, "--seconds", help="The public time limit of a question."),
    tick: float = TICK,
    hide_stored: bool = typer.Option(
        False,
        "--hide-stored",
        help="Let stored answers wait as long as new ones, so that nobody sees which were asked before.",
    ),
    workers: int = typer.Option(2, "--workers", min=1, help="Processes that read data."),
    certificate: Path = CERTIFICATE,
    key: Path = KEY,
    behind_tls: bool = typer.Option(
        False, "--behind-tls", help="A proxy in front speaks TLS; cookies are sent over TLS only."
    ),
    trust_header: str = typer.Option(
        None, "--trust-header", help="The header by which a proxy says who asks, such as X-Remote-User."
    ),
    trust_from: list[str] = typer.Option(
        [], "--from", help="The address or network of that proxy. Can be repeated."
    ),
    oidc: str = typer.Option(
        None, "--oidc", help="An OpenID provider by which people log in: its address (issuer), https://..."
    ),
    oidc_client: str = typer.Option(
        None, "--oidc-client", help="This server's name there; its secret is in DISCREET_OIDC_SECRET."
    ),
    oidc_claim: str = typer.Option(
        "email", "--oidc-claim", help="The claim that is the name of a person here."
    ),
    steward: str = typer.Option("steward", "--steward", help="The first steward's name, at the first start."),
    new_steward_token: bool = typer.Option(
        False, "--new-steward-token", help="Print a new token of the steward (--steward), and end."
    ),
    backup: Path = typer.Option(
        None,
        "--backup",
        help="Copy state, ledgers and keys to this new folder, also while others ask, and end.",
    ),
    restore: Path = typer.Option(None, "--restore", help="Put such a copy back, over nothing that is there."),
    demo: bool = DEMO,
) -> None:
    if new_steward_token:
        _new_steward_token(state, steward)
        return
    if backup or restore:
        _back_up(state, backup) if backup else _restore(state, restore)
        return
    check_tls(host, certificate, key, behind_tls)
    level = os.environ.get("DISCREET_LOG", "WARNING")
    if level not in logging.getLevelNamesMapping():
        raise InvalidInput(f"DISCREET_LOG is the name of a level, such as INFO, got {level!r}.")
    with _bind(host, port) as listening:
        options: dict[str, Any] = {
            "host": host, "port": port, "hosts": tuple({*name, "127.0.0.1", "localhost", "[::1]"}),
            "seconds": seconds, "tick": tick, "workers": workers, "hide_stored": hide_stored,
            "secure": bool(certificate or behind_tls), "ledger": ledger, "oidc_claim": oidc_claim,
            "trust_header": trust_header, "trust_from": tuple(trust_from), "oidc": oidc,
            "oidc_client": oidc_client, "oidc_secret": os.environ.get("DISCREET_OIDC_SECRET") or None,
        }  # fmt: skip
        settings = _demo(options) if demo else _dataset_settings(state, root, options, steward)
        logging.basicConfig(level=level)
        _run(settings, listening, certificate, key)


def check_tls(host: str, certificate: Path | None, key: Path | None, behind_tls: bool) -> None:
    """Refuse to send tokens in the clear."""
    if (certificate is None) != (key is None):
        raise InvalidInput("give --certificate and --key together.")
    if host not in ("127.0.0.1", "localhost", "::1") and not (certificate or behind_tls):
        raise InvalidInput(
            f"at {host} tokens would travel in the clear. Give --certificate and --key, or put a proxy in "
            "front that speaks TLS and say --behind-tls (docs/server.md)."
        )
    if certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        except OSError as error:
            reason = error.strerror or getattr(error, "reason", "")
            raise InvalidInput(
                f"{certificate} and {key} are no certificate with its key ({reason})."
            ) from None


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket at an address, before anything is made; refused if it cannot be had."""
    listening = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family)
        if MOVES_OPEN_FILES:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise InvalidInput(
            f"a server cannot listen at {host}, port {port} ({error.strerror}). Nothing was started."
        ) from None
    return listening


def _web() -> Any:
    """Import the modules of the server; if packages are missing, the error names the extra to install."""
    try:
        import uvicorn  # noqa: F401

        from ..web import server, settings
    except ImportError:
        raise MissingExtra.of("server", "a server needs FastAPI and uvicorn") from None
    return SimpleNamespace(build=server.build, Settings=settings.Settings)


def _demo(options: dict[str, Any]) -> Any:
    """Make the demonstration in a temporary folder, print its tokens, and return the server's settings."""
    # called for its error where packages are missing, before anything is made
    _web()
    from ...tables.files import PrivateFolder

    folder = PrivateFolder("discreet-demo-")
    atexit.register(folder.remove)
    settings = demo_settings(folder.path, options)
    for name, role, token in settings.demo_tokens:
        typer.echo(f"{role} {name}: {token}")
    typer.echo("Log in with one of these tokens in the browser, or use it in Python: dp.connect(url, token).")
    typer.echo(f"The dataset and its table are called {TABLE!r}. Starting ...")
    return settings


def _dataset_settings(state: Path, root: list[Path], options: dict[str, Any], steward: str) -> Any:
    """Return the settings of a server for the files below the folders `root`."""
    folders = tuple(folder.resolve() for folder in root)
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise InvalidInput(f"there is no folder {missing[0]!r}.")
    settings = _web().Settings(state=state, roots=folders, **options)
    _first_steward(settings, steward)
    return settings


def _run(settings: Any, listening: socket.socket, certificate: Path | None, key: Path | None) -> None:
    """Serve until the process is stopped; exit code 2 where it could not start."""
    import uvicorn

    from ..web.server import HeaderLimit

    # The application writes an access log of its own. Headers of a proxy are not read, since any client can
    # send them. The time limits are in seconds; they, and 64 KiB for a request's header, are chosen by hand.
    config = uvicorn.Config(
        _web().build(settings),
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=64 << 10,
        http=HeaderLimit,
        limit_concurrency=settings.connections,
    )

    class Announced(uvicorn.Server):
        """Prints its address once it listens, not before: earlier connections are refused."""

        async def startup(self, sockets: Any = None) -> None:
            """Start to listen, and print the address."""
            await super().startup(sockets)
            if self.started:
                port = listening.getsockname()[1]
                scheme = "http" if certificate is None else "https"
                typer.echo(f"discreet serves at {scheme}://{settings.host}:{port}")

    server = Announced(config)
    with suppress(KeyboardInterrupt):
        server.run([listening])
    if not server.started:
        raise typer.Exit(2)


def _back_up(state: Path, target: Path) -> None:
    """Copy a server's database and key, and each dataset's ledger with its vault and key, and print the
    anchors of the copies. Each copy is one state of its ledger; the database has no budgets."""
    store = _existing_store(state)
    try:
        target.mkdir(mode=0o700)
    except OSError as error:
        raise InvalidInput(
            f"{str(target)!r} cannot be made as a new folder ({error.strerror}). Nothing was copied."
        ) from None
    store.copy_to(target)
    for dataset in store.datasets(ANY_STEWARD):
        copied = target / f"{dataset.name}.ledger"
        try:
            back_up(Ledger(Path(dataset.ledger)), copied)
            typer.echo(f"{dataset.name}: {Ledger(copied).anchor}")
        except LedgerError as error:
            typer.echo(f"{dataset.name}: NOT copied. {error}")
    store.close()


def _restore(state: Path, source: Path) -> None:
    """Put a copy of `_back_up` back: the state into a new folder, each ledger where it was."""
    copied = _existing_store(source)
    # The ledger, its key, and its vault: what was copied of them.
    moves = [(source / name, state / name) for name in ("server.db", "server.key")]
    for dataset in copied.datasets(ANY_STEWARD):
        for suffix in ("", ".key", "-vault"):
            part = source / f"{dataset.name}.ledger{suffix}"
            moves += [(part, Path(dataset.ledger + suffix))] if part.exists() else []
    copied.close()
    if there := [str(target) for _, target in moves if os.path.lexists(target)]:
        raise InvalidInput(f"{there[0]!r} exists. Nothing was put back. Move away what is there first.")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    for part, target in moves:
        shutil.copytree(part, target) if part.is_dir() else shutil.copy2(part, target)
        typer.echo(str(target))


def _existing_store(state: Path) -> ServerStore:
    """Return the store in a folder, which must have one."""
    if not (state / "server.db").exists():
        raise InvalidInput(f"there is no server in the folder {str(state)!r} (--state). Nothing was done.")
    return ServerStore(state)


def _new_steward_token(state: Path, name: str) -> None:
    """Print a new token of a steward, who is added if nobody has the name: whoever can write to the folder of
    the state is the steward, also where all tokens are lost. The server may run meanwhile."""
    store = _existing_store(state)
    role = store.role_of(name)
    if role is None:
        store.add_person(name, Role.STEWARD)
    elif role is not Role.STEWARD:
        raise InvalidInput(f"{name!r} is no steward here, but {role}. No token was made.")
    token, public = store.issue_token(name, 90)
    store.record(name, f"issued token {public} to {name} on the server's machine")
    typer.echo(token)
    store.close()


def _first_steward(settings: Any, name: str) -> None:
    """Make the first steward and print their token, if the server has no people yet."""
    from ..web import Role, ServerStore

    store = ServerStore(settings.state)
    if not store.people():
        store.add_person(name, Role.STEWARD)
        token, _ = store.issue_token(name, settings.token_days)
        typer.echo(
            f"the first steward is {name!r}. Log in with this token, which is shown only once:\n{token}"
        )
    store.close()


PEOPLE = (
    ("steward", Role.STEWARD),
    ("ann", Role.ANALYST),
    ("bob", Role.ANALYST),
    ("olga", Role.AUDITOR),
)
TABLE = "health"


def demo_settings(folder: Path, options: dict[str, Any], *, epsilon: float = 10.0) -> Settings:
    """Create the data and the state of a demonstration in a new folder; return the settings to serve it with.

    `options` are fields of `Settings`; one that is None keeps its default. The table is public, so that the
    time of an answer need not be hidden: answers leave at ticks of a quarter second by default.
    """
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    table = data / f"{TABLE}.parquet"
    table.write_bytes(resources.files("discreet").joinpath("data/rand_hie.parquet").read_bytes())
    schema, ledger = Path(f"{table}.schema.toml"), Path(f"{table}.ledger")
    public = Public(schema=SCHEMA, unit=Unit("person", rows=5), table=TABLE, version="1")
    schema.write_text(dump(public), encoding="utf-8")
    # Each analyst may spend four tenths of the whole.
    budgets = {
        "ann": Budget(epsilon=epsilon * 0.4, delta=4e-7),
        "bob": Budget(epsilon=epsilon * 0.4, delta=4e-7),
    }
    budget = Budget(epsilon=epsilon, delta=1e-6)
    fields = {"tick": 0.25} | {name: value for name, value in options.items() if value is not None}
    settings = Settings(state=folder / "state", roots=(data,), demo=True, **fields)
    create_session(
        table,
        schema=schema,
        ledger=ledger,
        budget=budget,
        analysts=budgets,
        books=settings.books(TABLE),
        # the data of the demo is public, and tests ask it at any price
        large_epsilon=True,
    )
    store = ServerStore(folder / "state")
    tokens = []
    for name, role in PEOPLE:
        store.add_person(name, role)
        # A token for one day; its public id, the second item, is not shown.
        tokens.append((name, str(role), store.issue_token(name, 1)[0]))
    store.add_dataset(Dataset(TABLE, str(table), str(schema), str(ledger)))
    store.set_grants(TABLE, list(budgets))
    store.close()
    return dataclasses.replace(settings, demo_tokens=tuple(tokens))
