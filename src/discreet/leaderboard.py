"""A leaderboard on a curator (which holds the protected labels and the ledger): its price is paid once, and
its state is in the ledger, from which it continues after a restart.

    ladder = ShakyLadder(public=curator.source.public, target="label", id="row", epsilon=1, delta=1e-6)
    board = Leaderboard.open(curator, ladder)
    board.submit("team blue", {1: "cat", 2: "dog", ...})      # returns a Standing
    Leaderboard.find(curator).standings()                     # later, from another process
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _registry, _require
from .adaptive.leaderboard import ShakyLadder, SparseVectorBoard, Standing, Submission
from .curator import STEWARD, Curator, InteractiveHandle, books, values

Board = ShakyLadder | SparseVectorBoard

__all__ = ["Leaderboard"]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Runs a started board. Everything that the board releases is in the ledger, with the name and the digest
    of each submission."""

    live: InteractiveHandle

    @classmethod
    def open(cls, curator: Curator, board: Board, *, analyst: str = STEWARD) -> Leaderboard:
        """Charge `analyst` the whole price of a board, and start it."""
        _require.that(
            isinstance(board, ShakyLadder | SparseVectorBoard),
            "a leaderboard on protected labels is a ShakyLadder or a SparseVectorBoard, not "
            f"{type(board).__name__}.",
        )
        return cls(curator.start(board, analyst=analyst))

    @classmethod
    def find(cls, curator: Curator, number: int | None = None) -> Leaderboard:
        """Return a board that was started before: the one whose charge is entry `number` of the ledger, or
        without a number the newest."""
        entries = [
            entry.seq for entry in curator.ledger.entries(kind=books.SPENDING) if _is_board(entry.body)
        ]
        _require.that(
            number is not None or entries,
            "no leaderboard was started on this ledger. Start one: discreet leaderboard init",
        )
        chosen = entries[-1] if number is None else number
        _require.that(
            chosen in entries,
            f"entry {number} of the ledger is not the start of a leaderboard; these are: {entries}.",
        )
        board = _registry.from_json(curator.ledger.entry(chosen).body["mechanism"])
        return cls(curator.resume(board, chosen))

    @property
    def number(self) -> int:
        """Return the number of the ledger's entry that charged this board."""
        return self.live.number

    @property
    def board(self) -> Board:
        return self.live.mechanism  # type: ignore[return-value]

    def submit(self, name: str, predictions: Mapping[Any, Any]) -> Standing:
        """Submit predicted labels by id. Raises `Halted` once the board's number of improvements, or of
        declared submissions, is used up."""
        standing: Standing = self.live.answer(Submission.of(name, predictions)).value
        return standing

    def standings(self) -> list[tuple[str, Standing]]:
        """Return everything the board has released, in order: the name of each submission, and the standing
        that was released for it.

        It is read from the ledger and costs nothing.
        """
        entries = self.live.ledger.entries(kind="state")
        answered = [
            entry.body for entry in entries if entry.body["charge"] == self.number and "value" in entry.body
        ]
        return [(body["question"]["name"], values.decode(self.live.ledger.value(body))) for body in answered]


def _is_board(body: dict[str, Any]) -> bool:
    described = body.get("mechanism")
    return isinstance(described, dict) and _registry.class_of(described.get("type")) in (
        ShakyLadder,
        SparseVectorBoard,
    )
