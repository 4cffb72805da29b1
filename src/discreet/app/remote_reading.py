"""Defines the read-only half of a session over HTTP: public facts, budgets, and the ledger entries, releases
and synthetic copies of the token's holder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _registry, _require
from .._public import Public
from .._require import NearestNames
from .._round import LowerAmount, UpperAmount
from ..curator import Budget, values
from .client import Server, dataset_path, reads_reply
from .replies import copy_of

if TYPE_CHECKING:
    from ..synthetic import SyntheticCopy
    from ..tables import Memory

# Decoders of a server's reply; where one fails, the error says that the server is at fault.
from_description, value_of = reads_reply(_registry.from_json), reads_reply(values.decode)
number_of = reads_reply(float)
# How many lines of a list are asked for at a time: the most that a server sends.
_PAGE = 1000


@reads_reply
def page_of(facts: Mapping[str, Any], name: str, first: int) -> list[dict[str, Any]]:
    """Return the lines of one page of a list; refuse a reply that does not begin at line `first`, as that of
    a server that does not know pages, which would be asked for ever."""
    if facts["first"] != first:
        raise ValueError("another page than was asked for")
    lines: list[dict[str, Any]] = facts[name]
    if not isinstance(lines, list) or len(lines) > _PAGE:
        raise TypeError("no list of lines")
    return lines


@dataclass(frozen=True, slots=True)
class RemoteReader(NearestNames):
    """Reads one dataset on a server as the token's holder sees it; nothing here costs or changes anything.

    `name` is that of the dataset; `periods`, if any, restrict requests to the rows of these periods.
    """

    server: Server
    name: str
    periods: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name!r}>"

    def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Send a request about this dataset; fields of the body that are None are left out. A GET has no
        body."""
        full_path = dataset_path(self.name) + path
        if method == "GET":
            return self.server.call("GET", full_path)
        return self.server.call(method, full_path, self._body(body))

    def _all(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return all lines of a list that the server sends in pages."""
        lines: list[dict[str, Any]] = []
        while True:
            facts = self.call("GET", f"{path}?last={_PAGE}&first={len(lines)}")
            lines += page_of(facts, name, len(lines))
            if len(facts[name]) < _PAGE:
                return lines

    def _body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are not None, with the periods of this session."""
        present = {key: value for key, value in body.items() if value is not None}
        return present | ({"periods": list(self.periods)} if self.periods else {})

    @property
    def public(self) -> Public:
        """What everybody may know about the table."""
        public: Public = from_description(self.call("GET", "")["public"])
        return public

    @property
    def budget(self) -> Budget:
        """The budget that limits the token's holder: their own, or that of the dataset."""
        budget: Budget = from_description(self.call("GET", "/budget")["budget"])
        return budget

    @property
    def spent(self) -> float:
        """How much of `budget` is spent; printed rounded up."""
        return UpperAmount(number_of(self.call("GET", "/budget")["used"]))

    @property
    def remaining(self) -> float:
        """How much of `budget` is left; printed rounded down."""
        return LowerAmount(number_of(self.call("GET", "/budget")["remaining"]))

    @property
    def accounts(self) -> list[dict[str, Any]]:
        """The accounts of `budget`: one, or one per period."""
        accounts: list[dict[str, Any]] = self.call("GET", "/budget")["accounts"]
        return accounts

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """All entries that the token's holder may see."""
        return self._all("/ledger", "entries")

    @property
    def analyst(self) -> str:
        """The name of the token's holder."""
        return str(self.server.call("GET", "/me")["name"])

    def dummy(self, rows: int = 100, seed: int = 0) -> Memory:
        """Return a made-up table with the same schema, to write queries against. It says nothing about the
        data."""
        from ..tables import dummy

        return dummy(self.public, rows, seed)

    def copies(self) -> list[dict[str, Any]]:
        """Return all synthetic copies of the token's holder."""
        return self._all("/copies", "copies")

    def copy(self, number: int, rows: int | None = None, *, seed: int | None = None) -> SyntheticCopy:
        """Return a synthetic copy that was made before, by the number of its release; without `rows` and
        `seed`, the same rows as on the server, whose seed is that number."""
        _require.integer(number=number)
        facts = self.call("GET", f"/copies/{int(number)}")
        return copy_of(facts, rows, int(number) if seed is None else seed)

    def releases(self) -> list[dict[str, Any]]:
        """Return all stored releases of the token's holder."""
        return self._all("/releases", "releases")

    def release(self, number: int) -> Any:
        """Return the value of a stored release, by its number in `releases()`."""
        _require.integer(number=number)
        return value_of(self.call("GET", f"/releases/{int(number)}")["value"])
