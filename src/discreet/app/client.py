"""`dp.connect`: opens a session whose curator is on a server (`remote.RemoteCurator`).

    people = dp.connect("https://data.example.org", token=...)["health"]
    people.preview("SELECT COUNT(*) AS n FROM health", epsilon=0.1)
    people.sql("SELECT COUNT(*) AS n FROM health", epsilon=0.1)

Everything that has a JSON description (`_registry`) can be sent. Callables and torch modules cannot: they run
only in the process of the steward, who holds the data. No reply is unpickled: answers are JSON descriptions,
models are JSON.
"""

from __future__ import annotations

import functools
import json
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from .. import _errors, _require
from .._errors import DiscreetError, InvalidInput, MissingExtra

if TYPE_CHECKING:
    from ..session import Session

# The host names of this machine, to which the token may be sent without TLS.
_LOCAL = ("127.0.0.1", "localhost", "::1")
# The largest reply that is read, in bytes (512 MiB, chosen by hand): the tables of a synthetic copy are the
# largest replies.
LARGEST = 1 << 29


class ServerError(DiscreetError, RuntimeError):
    """Raised where the server itself refuses (token, rate limit, time limit), cannot be reached, or sends a
    reply that cannot be read."""

    settled = True


@_require.check_options
def connect(url: str, token: str, *, dataset: str | None = None, timeout: float = 120.0) -> Any:
    """Connect to a server, and return the session of `dataset`; without `dataset` that of the only dataset
    granted to the token, or the `Server` if there are several.

    The token travels with every request. So an address without TLS is refused, unless it is this machine's,
    to which no request goes through a proxy; requests to others heed HTTPS_PROXY, inside of TLS.
    `timeout` is in seconds, for each request.
    """
    server = Server(url, token, timeout)
    if dataset is not None:
        return server[dataset]
    names = server.datasets
    return server[names[0]] if len(names) == 1 else server


class Server:
    """A server, as the holder of one token sees it: `server["health"]` is the session of a dataset."""

    def __init__(self, url: str, token: str, timeout: float = 120.0) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingExtra.of("server", "dp.connect needs httpx") from None
        _require.text(url=url)
        _require.finite(timeout=timeout)
        _require.positive(timeout=timeout)
        if not isinstance(token, str) or not token or not (token.isascii() and token.isprintable()):
            # The token is a secret: the message does not repeat it.
            raise InvalidInput(
                "the token must be the text that the server printed, dsc_... Nothing was sent."
            )
        _check_address(url)
        try:
            self._http = httpx.Client(
                base_url=f"{url.rstrip('/')}/api/v1",
                headers={"Authorization": f"Bearer {token}"},
                timeout=timeout,
                follow_redirects=False,
                # Without TLS a proxy of the environment would read the token, and this machine needs none.
                mounts={f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")},
            )
        except (httpx.InvalidURL, ValueError):
            raise _not_an_address(url) from None
        # Connections are closed when the last session that uses this server is garbage-collected.
        weakref.finalize(self, self._http.close)

    def __repr__(self) -> str:
        return f"<Server at {self._http.base_url.host}>"

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets that are granted to the token."""
        names: list[str] = self.call("GET", "/datasets")["datasets"]
        return names

    def __getitem__(self, dataset: str) -> Session:
        from .remote import open_session

        return open_session(self, dataset)

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request, and return the reply.

        `path` begins after /api/v1. An error in the reply is raised as the exception that a local session
        would raise; a `QueryError`, which needs the text of the query, as its base class `InvalidInput`.
        """
        import httpx

        try:
            status, answer = self._exchange(method, path, body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerError(
                f"there is no connection to {self._http.base_url.host}:{self._http.base_url.port or ''} "
                f"({type(error).__name__}): nothing was asked, and nothing was charged. Is the server "
                f'running there? It says "discreet serves at ..." once it listens.'
            ) from None
        except (httpx.InvalidURL, UnicodeError):
            raise _not_an_address(str(self._http.base_url.host)) from None
        except httpx.HTTPError as error:
            raise ServerError(
                f"the server did not answer ({type(error).__name__}). What was charged stays charged. Ask "
                f"again: if the server has answered the question, the same answer is free."
            ) from None
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict) and status >= 400:
            raise _told(answer["error"])
        if not isinstance(answer, dict) or not 200 <= status < 300:
            raise ServerError(f"the server answered with status {status}.")
        return Reply(answer)

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the HTTP status and the decoded JSON of the reply; one of more than `LARGEST` bytes is
        refused."""
        try:
            content = None if body is None else json.dumps(body, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(
                f"the request cannot be written as JSON ({error}). Nothing was sent or charged. Give finite "
                f"numbers and texts."
            ) from None
        headers = {} if content is None else {"Content-Type": "application/json"}
        with self._http.stream(method, path, content=content, headers=headers) as reply:
            chunks, total = [], 0
            for chunk in reply.iter_bytes():
                chunks.append(chunk)
                total += len(chunk)
                if total > LARGEST:
                    raise ServerError(
                        f"the server's answer has more than {LARGEST:,} bytes. It was not read to its end."
                    )
        try:
            return reply.status_code, json.loads(b"".join(chunks))
        except (ValueError, RecursionError):
            raise ServerError(f"the server's answer is not JSON (status {reply.status_code}).") from None


def _check_address(url: str) -> None:
    """Refuse an address that is not one of a server, holds a password, or would send the token without
    TLS."""
    try:
        address = urlsplit(url)
    except ValueError:
        raise _not_an_address(url) from None
    if address.username is not None or address.password is not None:
        # The message repeats neither the user name nor the password.
        raise InvalidInput(
            "the address of the server has a user name or password in it. Nothing was sent. Leave it out: "
            "the token says who you are."
        )
    if address.scheme not in ("http", "https") or not address.hostname:
        raise _not_an_address(url)
    if address.scheme == "http" and address.hostname not in _LOCAL:
        raise InvalidInput(
            f"{url!r} is without TLS: the token could be read on the way. Nothing was sent. Use https."
        )


def _not_an_address(url: str) -> InvalidInput:
    return InvalidInput(
        f"{url!r} is not the address of a server, such as https://data.example.org. Nothing was sent."
    )


def dataset_path(name: str) -> str:
    """Return the path of a dataset on a server; a name with a slash or a question mark stays one segment."""
    _require.text(dataset=name)
    # "." and ".." are resolved by HTTP clients even when quoted, and name no dataset.
    if name in ("", ".", ".."):
        raise InvalidInput(f"{name!r} is not the name of a dataset. Nothing was sent.")
    return f"/datasets/{quote(name, safe='', errors='replace')}"


class Reply(dict[str, Any]):
    """The JSON object that a server sent; to read a key that is missing raises a `ServerError`, as the server
    is at fault."""

    def __missing__(self, key: str) -> Any:
        raise ServerError(f"the server's answer has no {key!r}: is it a discreet server of this version?")


_Result = TypeVar("_Result")


def reads_reply(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorate a function that decodes a server's reply: an exception that a malformed reply causes becomes a
    `ServerError`; this package's own errors are raised as they are."""

    @functools.wraps(function)
    def reading(*arguments: Any, **options: Any) -> _Result:
        try:
            return function(*arguments, **options)
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
                f"the server's answer cannot be read ({type(error).__name__}): is it a discreet server "
                f"of this version?"
            ) from None

    return reading


def _printable(text: str) -> str:
    """Return the first 4000 characters of a server's message; control characters, which a terminal would
    obey, are replaced."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\ufffd" for character in text[:4000]
    )


def _error_of(error: Mapping[str, Any]) -> DiscreetError:
    """Return the exception that a reply describes by the name of its class ("kind") and its fields; a
    `ServerError` where there is no such class. A "QueryError" becomes an `InvalidInput` (see
    `Server.call`)."""
    kind = getattr(_errors, str(error.get("kind")), None)
    if error.get("kind") == "QueryError":
        kind = InvalidInput
    what = _printable(str(error.get("what", error.get("message"))))
    if not (isinstance(kind, type) and issubclass(kind, DiscreetError)):
        kind, what = ServerError, f"{_printable(str(error.get('kind')))}: {what}"
    option = error.get("option")
    made = kind(
        what,
        remedy=_printable(str(error.get("remedy") or "")),
        option=None if option is None else _printable(str(option)),
    )
    made.charged = error.get("charged") if isinstance(error.get("charged"), bool) else None
    return made


def _told(error: Mapping[str, Any]) -> DiscreetError:
    """Return the exception that a reply describes; the server has said whether anything was charged."""
    told = _error_of(error)
    told.settled = True
    return told


@dataclass(frozen=True, slots=True)
class Job:
    """Work that runs on the server in the background, such as fitting a model."""

    server: Server
    id: str

    @property
    def state(self) -> dict[str, Any]:
        """The job as the server describes it now: "state" (such as "waiting", "running" or "done"), "result"
        once it has ended, and its progress."""
        return self.server.call("GET", f"/jobs/{self.id}")

    def cancel(self) -> bool:
        """Cancel the job, and return whether it was still waiting or running; what it was charged stays
        charged."""
        return bool(self.server.call("DELETE", f"/jobs/{self.id}")["cancelled"])

    def wait(self, progress: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
        """Wait until the job is done, and return its result; raise an error if it has failed, or was
        cancelled or interrupted. `progress` is called about once per second with the job's `state`."""
        while True:
            facts = self.state
            if facts["state"] == "done":
                result: dict[str, Any] = facts["result"]
                return result
            if facts["state"] == "failed":
                raise _told(facts["result"] if isinstance(facts["result"], dict) else {})
            if facts["state"] not in ("waiting", "running"):
                raise ServerError(f"the job was {facts['state']}. What it was charged stays charged.")
            if progress is not None:
                progress(facts)
            time.sleep(1)
