"""`dp.connect`: a session over HTTP, with the verbs of a local one.

    people = dp.connect("https://data.example.org", token=...)["health"]
    people.preview("SELECT COUNT(*) AS n FROM health", epsilon=0.1)
    people.sql("SELECT COUNT(*) AS n FROM health", epsilon=0.1)

Everything that has a JSON description can be sent. Callables and modules cannot: they run only in the
steward's own process. Nothing that comes back is unpickled: answers are descriptions, models JSON or
safetensors.
"""

from __future__ import annotations

import base64
import json
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .. import _errors, _registry
from .._errors import DescriptionError, DiscreetError, InvalidInput, MissingExtra
from .._public import Public
from ..accounting.filters import FilterPreview as Cost
from ..curator import Budget, values
from ..mechanisms.protocols import Release
from ..query import Answer, cut_off_sql
from ..query import Preview as QuestionPreview
from ..session import QueryPreview

_LOCAL = ("127.0.0.1", "localhost", "::1")


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
        place = urlsplit(url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise InvalidInput(f"{url!r} is not the address of a server, such as https://data.example.org.")
        if place.scheme == "http" and place.hostname not in _LOCAL:
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
        return RemoteSession(self, dataset)

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request; an error comes back as the one that a local session would raise."""
        import httpx

        try:
            reply = self._http.request(method, path, json=body)
            answer = reply.json()
        except httpx.HTTPError as error:
            raise ServerError(
                f"the server did not answer ({type(error).__name__}). What was charged stays charged; the "
                f"same question again is free once it was answered."
            ) from None
        except ValueError:
            raise ServerError(f"the server's answer is no JSON (status {reply.status_code}).") from None
        if isinstance(answer, dict) and "error" in answer and reply.status_code >= 400:
            raise _raised(answer["error"])
        if not isinstance(answer, dict) or reply.status_code >= 400:
            raise ServerError(f"the server answered with status {reply.status_code}.")
        return answer


def _raised(error: Mapping[str, Any]) -> DiscreetError:
    kind = getattr(_errors, str(error.get("kind")), None)
    message = str(error.get("message"))
    if error.get("kind") == "QueryError":
        kind = InvalidInput
    if isinstance(kind, type) and issubclass(kind, DiscreetError):
        return kind(message)
    return ServerError(f"{error.get('kind')}: {message}")


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
class RemoteSession:
    """One dataset on a server, as who holds the token sees it: the verbs of `Session`."""

    server: Server
    name: str
    periods: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RemoteSession of {self.name!r}>"

    def _call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        if method == "GET":
            return self.server.call("GET", f"/datasets/{self.name}{path}")
        sent = {key: value for key, value in body.items() if value is not None}
        if self.periods:
            sent["periods"] = list(self.periods)
        return self.server.call(method, f"/datasets/{self.name}{path}", sent)

    @property
    def public(self) -> Public:
        """What everybody may know about the table."""
        public: Public = _registry.from_json(self._call("GET", "")["public"])
        return public

    @property
    def budget(self) -> Budget:
        budget: Budget = _registry.from_json(self._call("GET", "/budget")["budget"])
        return budget

    @property
    def spent(self) -> float:
        return float(self._call("GET", "/budget")["used"])

    @property
    def remaining(self) -> float:
        return float(self._call("GET", "/budget")["remaining"])

    @property
    def accounts(self) -> list[dict[str, Any]]:
        accounts: list[dict[str, Any]] = self._call("GET", "/budget")["accounts"]
        return accounts

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The entries that the token's holder may see."""
        entries: list[dict[str, Any]] = self._call("GET", "/ledger?last=1000")["entries"]
        return entries

    def during(self, *periods: str) -> RemoteSession:
        """Return the rows of some periods only."""
        return RemoteSession(self.server, self.name, periods)

    def preview(self, text: str | Sequence[str], **options: Any) -> QueryPreview:
        """Price and error of a question, or of several together; free."""
        if isinstance(text, str):
            facts = self._call("POST", "/preview", sql=text, **_sent(options))
        else:
            facts = self._call("POST", "/workload/preview", queries=list(text), **_sent(options))
        return _preview(facts)

    def sql(self, text: str, **options: Any) -> Answer:
        """Return a private answer, for its price; options as in `Session.sql`."""
        return _answer(self._call("POST", "/query", sql=text, **_sent(options)))

    def workload(self, queries: Sequence[str], **options: Any) -> tuple[Answer, ...]:
        """Answers to several counting questions, for one price."""
        facts = self._call("POST", "/workload", queries=list(queries), **_sent(options))
        return tuple(_answer(one) for one in facts["answers"])

    def cut_off(
        self,
        *,
        rows: int | None = None,
        groups: int | None = None,
        by: str | None = None,
        where: str | None = None,
        **options: Any,
    ) -> Answer:
        """Whom a limit cuts off, as in `Session.cut_off`."""
        return self.sql(cut_off_sql(self.public, rows, groups, by, where), **options)

    def ask(self, mechanism: Any, *, fresh: bool = False) -> Release:
        """Run a mechanism that has a description, for its price."""
        return _release(self._call("POST", "/ask", mechanism=described(mechanism), fresh=fresh))

    def start(self, interactive: Any) -> RemoteHandle:
        """Pay for a live mechanism, and open it."""
        facts = self._call("POST", "/live", mechanism=described(interactive))
        return RemoteHandle(self, facts["number"], _registry.from_json(facts["mechanism"]))

    def watch(self, threshold: int, **options: Any) -> RemoteWatch:
        """Which of many counts are above a threshold; options as in `Session.watch`."""
        number = options.pop("number", None)
        if number is not None:
            return RemoteWatch(RemoteHandle(self, number, None))
        facts = self._call("POST", "/watches", threshold=threshold, **_sent(options))
        return RemoteWatch(RemoteHandle(self, facts["number"], _registry.from_json(facts["mechanism"])))

    def fit(
        self,
        estimator: Any,
        *,
        target: str,
        features: Sequence[str] | None = None,
        seconds: float | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> Any:
        """Fit a model on the server: a `learning.tabular` model that predicts, or tensors of safetensors.

        With `seconds` it is a job, whose model is there after that time and not before; `progress` is called
        with its public facts.
        """
        from .web.estimators import describe_estimator

        body: dict[str, Any] = {"estimator": describe_estimator(estimator), "target": target}
        body |= {} if features is None else {"features": list(features)}
        if seconds is None:
            return _model(self._call("POST", "/models", **body))
        if self.periods:
            body["periods"] = list(self.periods)
        job = self.server.call("POST", f"/datasets/{self.name}/jobs", {"seconds": seconds, "fit": body})["id"]
        return _model(Job(self.server, job).wait(progress))

    def train(self, trainer: Any, **_: Any) -> Any:
        """Refused: a trainer holds a torch module, which has no description."""
        return described(trainer)

    def releases(self) -> list[dict[str, Any]]:
        """Return the stored releases of the token's holder."""
        listed: list[dict[str, Any]] = self._call("GET", "/releases?last=1000")["releases"]
        return listed

    def release(self, number: int) -> Any:
        """Return the value of a stored release."""
        return values.decode(self._call("GET", f"/releases/{int(number)}")["value"])


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
                raise _raised(facts["result"])
            if facts["state"] not in ("waiting", "running"):
                raise ServerError(f"the job was {facts['state']}. What it was charged stays charged.")
            if progress is not None:
                progress(facts)
            time.sleep(1)


@dataclass(frozen=True, slots=True)
class RemoteHandle:
    """A live mechanism on the server; `number` finds it again."""

    session: RemoteSession
    number: int
    mechanism: Any

    def answer(self, question: Any) -> Release:
        """Ask it: a description, or a condition in SQL."""
        sent = question if isinstance(question, str) else described(question)
        return _release(self.session._call("POST", f"/live/{self.number}/answers", question=sent))


@dataclass(frozen=True, slots=True)
class RemoteWatch:
    """A watch on counts on the server."""

    live: RemoteHandle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> Any:
        return self.live.answer(question).value


def _sent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON; fractions stay exact."""
    return {
        name: {key: described(part) for key, part in value.items()}
        if isinstance(value, Mapping)
        else described(value)
        for name, value in options.items()
        if value is not None
    }


def _answer(facts: Mapping[str, Any]) -> Answer:
    answer = _registry.from_json(facts["answer"])
    if not isinstance(answer, Answer):
        raise ServerError("the server sent something else than an answer.")
    return answer


def _preview(facts: dict[str, Any]) -> QueryPreview:
    from ..query import WorkloadPreview

    cost = Cost(**facts.pop("budget"))
    facts.pop("admitted"), facts.pop("fits")
    event = _registry.from_json(facts.pop("event"))
    kind: Any = QuestionPreview if "keys" in facts else WorkloadPreview
    held = {name: _tuples(value) for name, value in facts.items()}
    return QueryPreview(kind(event=event, **held), cost)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _release(facts: Mapping[str, Any]) -> Release:
    error = values.recalled(facts["errors"])
    event = _registry.from_json(facts["event"])
    return Release(
        value=values.decode(facts["value"]), event=event, scored=bool(facts.get("scored")), _error=error
    )


def _model(facts: Mapping[str, Any]) -> Any:
    """Return a model that predicts, or named tensors: nothing that could run."""
    if "safetensors" in facts:
        from safetensors.numpy import load

        return load(base64.b64decode(facts["safetensors"]))
    from ..learning.tabular.cards import loads

    return loads(json.dumps(facts["model"]))
