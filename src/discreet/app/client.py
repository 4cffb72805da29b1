"""`dp.connect`: a session over HTTP, with the verbs of a local one.

    people = dp.connect("https://data.example.org", token=...)["health"]
    people.preview("SELECT COUNT(*) AS n FROM health", epsilon=0.1)
    people.sql("SELECT COUNT(*) AS n FROM health", epsilon=0.1)

Everything that has a JSON description can be sent. Callables and modules cannot: they run only in the
steward's own process. Nothing that comes back is unpickled: answers are descriptions, models JSON or
safetensors.
"""

from __future__ import annotations

import functools
import json
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from .. import _errors, _registry, _require
from .._errors import DescriptionError, DiscreetError, InvalidInput, MissingExtra

if TYPE_CHECKING:
    from .remote import RemoteSession

_LOCAL = ("127.0.0.1", "localhost", "::1")
# bytes of one answer: a synthetic copy's tables are the largest
LARGEST = 1 << 29


class ServerError(DiscreetError, RuntimeError):
    """The server refused for a reason of its own: a token, a rate, a time limit."""


def connect(url: str, token: str, *, dataset: str | None = None, timeout: float = 120.0) -> Any:
    """Connect to a server: with `dataset` (or if there is one only) its session, else the server.

    The token travels with every request, so that an address without TLS is refused unless it is this machine.
    """
    server = Server(url, token, timeout)
    if dataset is not None:
        return server[dataset]
    names = server.datasets
    return server[names[0]] if len(names) == 1 else server


class Server:
    """A server, as one token sees it: `server["health"]` is the session of a dataset."""

    def __init__(self, url: str, token: str, timeout: float = 120.0) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingExtra.of("server", "dp.connect needs httpx") from None
        _require.text(url=url)
        if not isinstance(token, str) or not token or not (token.isascii() and token.isprintable()):
            # the token itself is a secret, and is not repeated
            raise InvalidInput(
                "the token must be the text that the server printed, dsc_... Nothing was sent."
            )
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise InvalidInput(f"{url!r} is not the address of a server, such as https://data.example.org.")
        if address.scheme == "http" and address.hostname not in _LOCAL:
            raise InvalidInput(
                f"{url!r} is without TLS: the token could be read on the way. Nothing was sent. Use https."
            )
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout,
            follow_redirects=False,
        )
        # connections end with the last session that uses them
        weakref.finalize(self, self._http.close)

    def __repr__(self) -> str:
        return f"<Server at {self._http.base_url.host}>"

    @property
    def datasets(self) -> list[str]:
        """The datasets that were granted."""
        names: list[str] = self.call("GET", "/datasets")["datasets"]
        return names

    def __getitem__(self, dataset: str) -> RemoteSession:
        from .remote import RemoteSession

        return RemoteSession(self, dataset)

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request; an error comes back as the one that a local session would raise, but a `QueryError`
        as the `InvalidInput` that it is."""
        import httpx

        try:
            status, answer = self._exchange(method, path, body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerError(
                f"there is no connection to {self._http.base_url.host}:{self._http.base_url.port or ''} "
                f"({type(error).__name__}): nothing was asked, and nothing was charged. Is the server "
                f'running there? It says "discreet serves at ..." once it listens.'
            ) from None
        except httpx.HTTPError as error:
            raise ServerError(
                f"the server did not answer ({type(error).__name__}). What was charged stays charged; the "
                f"same question again is free once it was answered."
            ) from None
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict) and status >= 400:
            raise _error_of(answer["error"])
        if not isinstance(answer, dict) or not 200 <= status < 300:
            raise ServerError(f"the server answered with status {status}.")
        return Reply(answer)

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the JSON of an answer that is not too large."""
        with self._http.stream(method, path, json=body) as reply:
            parts, total = [], 0
            for part in reply.iter_bytes():
                parts.append(part)
                total += len(part)
                if total > LARGEST:
                    raise ServerError(
                        f"the server's answer has more than {LARGEST:,} bytes. It was not read to its end."
                    )
        try:
            return reply.status_code, json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            raise ServerError(f"the server's answer is no JSON (status {reply.status_code}).") from None


class Reply(dict[str, Any]):
    """What a server sent: where a part is missing, a `ServerError` says that the server is at fault."""

    def __missing__(self, key: str) -> Any:
        raise ServerError(f"the server's answer has no {key!r}: is it a discreet server of this version?")


_Result = TypeVar("_Result")


def reads_reply(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorate a function that reads what a server sent: whatever it cannot read becomes a `ServerError`."""

    @functools.wraps(function)
    def reading(*arguments: Any, **named: Any) -> _Result:
        try:
            return function(*arguments, **named)
        except DiscreetError:
            raise
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise ServerError(
                f"the server's answer cannot be made out ({type(error).__name__}): is it a discreet server "
                f"of this version?"
            ) from None

    return reading


def _printable(text: str) -> str:
    """Return a message without what a terminal would obey."""
    return "".join(mark if mark.isprintable() or mark == "\n" else "\ufffd" for mark in text[:4000])


def _error_of(error: Mapping[str, Any]) -> DiscreetError:
    kind = getattr(_errors, str(error.get("kind")), None)
    message = _printable(str(error.get("message")))
    if error.get("kind") == "QueryError":
        kind = InvalidInput
    if isinstance(kind, type) and issubclass(kind, DiscreetError):
        return kind(message)
    return ServerError(f"{_printable(str(error.get('kind')))}: {message}")


def described(thing: Any) -> Any:
    """Return the JSON description of what is sent; refused, with the way out, where it has none."""
    try:
        return _registry.to_json(thing)
    except DescriptionError:
        raise InvalidInput(
            f"{type(thing).__name__} has no JSON description, so it cannot be sent. Nothing was charged. "
            f"Callables, modules and objects of other packages run only in the steward's own process: ask "
            f"the steward to run it there, with dp.open(...)."
        ) from None


@dataclass(frozen=True, slots=True)
class Job:
    """Long work on the server."""

    server: Server
    id: str

    @property
    def state(self) -> dict[str, Any]:
        return self.server.call("GET", f"/jobs/{self.id}")

    def cancel(self) -> bool:
        """End it; what it was charged stays charged."""
        return bool(self.server.call("DELETE", f"/jobs/{self.id}")["cancelled"])

    def wait(self, progress: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
        """Wait for the result."""
        while True:
            facts = self.state
            if facts["state"] == "done":
                result: dict[str, Any] = facts["result"]
                return result
            if facts["state"] == "failed":
                raise _error_of(facts["result"] if isinstance(facts["result"], dict) else {})
            if facts["state"] not in ("waiting", "running"):
                raise ServerError(f"the job was {facts['state']}. What it was charged stays charged.")
            if progress is not None:
                progress(facts)
            time.sleep(1)
