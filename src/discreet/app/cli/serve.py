"""`discreet serve`: the curator as a service, over HTTP and in the browser."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import typer

from ..._errors import InvalidInput, MissingExtra


def serve(
    state: Path = typer.Option(
        Path("discreet-server"), "--state", help="The folder of people, tokens and jobs. Back its key up."
    ),
    root: list[Path] = typer.Option(
        [], "--root", help="A folder whose files may be served. Can be repeated."
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="The address to listen at."),
    port: int = typer.Option(8000, "--port", min=0, max=65535, help="The port to listen at."),
    name: list[str] = typer.Option(
        [], "--name", help="A host name under which browsers reach it, as behind a proxy."
    ),
    ledgers: str = typer.Option(
        None,
        "--ledgers",
        help="A PostgreSQL database that keeps the ledgers of datasets added from now on.",
    ),
    seconds: float = typer.Option(5.0, "--seconds", help="The public time limit of a question."),
    tick: float = typer.Option(
        None,
        "--tick",
        help="Answers leave at multiples of this. By default only at the time limit; finer leaks more.",
    ),
    hide_stored: bool = typer.Option(
        False, "--hide-stored", help="Let answers from the store wait like new ones."
    ),
    workers: int = typer.Option(2, "--workers", min=1, help="Processes that read data."),
    certificate: Path = typer.Option(None, "--certificate", help="A TLS certificate (PEM), with --key."),
    key: Path = typer.Option(None, "--key", help="The certificate's key (PEM)."),
    behind_tls: bool = typer.Option(False, "--behind-tls", help="A proxy speaks TLS: cookies over TLS only."),
    steward: str = typer.Option("steward", "--steward", help="The first steward's name, at the first start."),
    demo: bool = typer.Option(
        False, "--demo", help="A public table, a steward and two analysts, in a folder that is thrown away."
    ),
) -> None:
    """Serve datasets over HTTP and in the browser: the data stays inside, every answer is charged."""
    try:
        import uvicorn

        from ..web import Settings, build
    except ImportError:
        raise MissingExtra.of("server", "a server needs FastAPI and uvicorn") from None
    if (certificate is None) != (key is None):
        raise InvalidInput("give --certificate and --key together. Nothing was started.")
    if host not in ("127.0.0.1", "localhost", "::1") and not (certificate or behind_tls):
        raise InvalidInput(
            f"at {host} tokens would travel in the clear. Nothing was started. Give --certificate and "
            f"--key, or "
            f"put a proxy in front that speaks TLS and say --behind-tls (docs/server.md)."
        )
    names = tuple({*name, "127.0.0.1", "localhost", "[::1]"})
    options: dict[str, Any] = {
        "host": host, "port": port, "hosts": names, "seconds": seconds, "tick": tick, "workers": workers,
        "hide_stored": hide_stored, "ledgers": ledgers, "secure": bool(certificate or behind_tls),
    }  # fmt: skip
    if demo:
        from ..web.demo import demo_settings

        folder = Path(tempfile.mkdtemp(prefix="discreet-demo-"))
        settings = demo_settings(folder, options)
        for who, role, token in settings.demo_tokens:
            typer.echo(f"{role} {who}: {token}")
    else:
        folders = tuple(folder.resolve() for folder in root)
        if missing := [str(folder) for folder in folders if not folder.is_dir()]:
            raise InvalidInput(f"there is no folder {missing[0]!r}. Nothing was started.")
        settings = Settings(state=state, roots=folders, **options)
        _first_steward(settings, steward)
    typer.echo(f"discreet serves at http{'s' if certificate else ''}://{host}:{port}")
    logging.basicConfig(level=os.environ.get("DISCREET_LOG", "WARNING"))
    uvicorn.run(
        build(settings),
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=64 << 10,
    )


def _first_steward(settings: Any, name: str) -> None:
    """Make the first steward and show their token, if nobody is there yet."""
    from ..web import Role, ServerStore

    store = ServerStore(settings.state)
    if not store.people():
        store.add_person(name, Role.STEWARD)
        token, _ = store.issue_token(name, settings.token_days)
        typer.echo(
            f"the first steward is {name!r}. Log in with this token, which is shown this once:\n{token}"
        )
    store.close()
