"""The read-only half of a session over HTTP: public facts, budgets, its part of the ledger, releases,
copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _registry
from .._public import Public
from .._require import NearestNames
from .._round import LowerAmount, UpperAmount
from ..curator import Budget, values
from .client import Server, reads_reply
from .replies import copy_of

if TYPE_CHECKING:
    from ..synthetic import SyntheticCopy
    from ..tables import Memory

# Decoders of a server's reply; where one fails, the error says that the server is at fault.
described_of, value_of = reads_reply(_registry.from_json), reads_reply(values.decode)
number_of = reads_reply(float)


@dataclass(frozen=True, slots=True)
class RemoteReader(NearestNames):
    """Reads one dataset on a server as the token's holder sees it: what costs nothing and changes nothing."""

    server: Server
    name: str
    periods: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name!r}>"

    def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Send a request about this dataset; what is None is left out."""
        if method == "GET":
            return self.server.call("GET", f"/datasets/{self.name}{path}")
        return self.server.call(method, f"/datasets/{self.name}{path}", self._body(body))

    def _body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        present = {key: value for key, value in body.items() if value is not None}
        return present | ({"periods": list(self.periods)} if self.periods else {})

    @property
    def public(self) -> Public:
        """What everybody may know about the table."""
        public: Public = described_of(self.call("GET", "")["public"])
        return public

    @property
    def budget(self) -> Budget:
        budget: Budget = described_of(self.call("GET", "/budget")["budget"])
        return budget

    @property
    def spent(self) -> float:
        return UpperAmount(number_of(self.call("GET", "/budget")["used"]))

    @property
    def remaining(self) -> float:
        return LowerAmount(number_of(self.call("GET", "/budget")["remaining"]))

    @property
    def accounts(self) -> list[dict[str, Any]]:
        accounts: list[dict[str, Any]] = self.call("GET", "/budget")["accounts"]
        return accounts

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The last 1000 entries that the token's holder may see."""
        entries: list[dict[str, Any]] = self.call("GET", "/ledger?last=1000")["entries"]
        return entries

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
        """Return the last 1000 synthetic copies of the token's holder."""
        copies: list[dict[str, Any]] = self.call("GET", "/copies?last=1000")["copies"]
        return copies

    def copy(self, number: int, rows: int | None = None, *, seed: int | None = None) -> SyntheticCopy:
        """Return a synthetic copy that was made before; the same rows as on the server unless told
        otherwise."""
        facts = self.call("GET", f"/copies/{int(number)}")
        return copy_of(facts, rows, int(number) if seed is None else seed)

    def releases(self) -> list[dict[str, Any]]:
        """Return the last 1000 stored releases of the token's holder."""
        releases: list[dict[str, Any]] = self.call("GET", "/releases?last=1000")["releases"]
        return releases

    def release(self, number: int) -> Any:
        """Return the value of a stored release."""
        return value_of(self.call("GET", f"/releases/{int(number)}")["value"])
