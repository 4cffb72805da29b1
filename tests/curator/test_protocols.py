"""The protocols that the curator runs: one place for all of them, and an optional rehearsal before the
charge."""

import pytest

from discreet import Bounds, Categories, InvalidInput, LedgerError, Public, ReleaseFailed
from discreet import mechanisms as mech
from discreet.accounting import PureDP
from discreet.curator import Budget, Curator, Policy, segments
from discreet.mechanisms import SparseVector, Stepped
from discreet.mechanisms.protocols import rehearse, release
from discreet.mechanisms.sample_aggregate import PartMode
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people")


class Rehearsing(SparseVector):
    """A sparse vector that tries itself first, and fails."""

    def rehearse(self, source):
        raise InvalidInput("the rehearsal failed.")


def test_an_interactive_mechanism_has_no_steps():
    assert not isinstance(SparseVector(public=PUBLIC, threshold=1, epsilon=1), Stepped)


class InSteps(Stepped):
    """Two steps, and a release that fails where `broken`."""

    public, event, length, period = PUBLIC, PureDP(epsilon=0.25), 2, 1

    def __init__(self, broken=False):
        self.broken, self.steps_taken, self.progress, self._entropy = broken, 0, None, None

    def start(self, source, *, entropy):
        self.steps_taken, self._entropy = 0, entropy
        return self

    def restore(self, source, raw, steps_taken, *, entropy):
        self.steps_taken, self._entropy = steps_taken, entropy
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def step(self):
        self.steps_taken += 1

    def dump(self):
        return b"state"

    def release(self):
        if self.broken:
            raise ArithmeticError("row 17 says 42")
        return release(self.steps_taken, event=self.event, entropy=self._entropy)


@pytest.fixture
def stepping(tmp_path):
    people, policy = Memory({"age": [1, 2]}, PUBLIC), Policy(budget=Budget(epsilon=1), analysts={"bob": None})
    return Curator.create(tmp_path / "people.ledger", people, policy)


def test_a_run_whose_release_fails_has_failed_and_why_is_withheld(stepping):
    with pytest.raises(ReleaseFailed, match="nothing was released") as raised:
        stepping.run(InSteps(broken=True), analyst="bob")
    assert raised.value.__cause__ is None
    assert [entry.kind for entry in stepping.ledger.entries()][-2:] == ["segment", "failed"]
    assert stepping.run(InSteps(), analyst="bob").value == 2


def test_a_run_whose_first_checkpoint_fails_has_failed_and_why_is_withheld(stepping, tmp_path, monkeypatch):
    def fail(self):
        raise ArithmeticError("row 17 says 42")

    monkeypatch.setattr(InSteps, "dump", fail)
    with pytest.raises(ReleaseFailed, match="nothing was released") as raised:
        stepping.run(InSteps(), checkpoint=tmp_path / "run", analyst="bob")
    assert raised.value.__cause__ is None
    assert [entry.kind for entry in stepping.ledger.entries()][-2:] == ["segment", "failed"]


def test_a_checkpoint_that_does_not_fit_the_disk_says_what_becomes_of_the_run(
    stepping, tmp_path, monkeypatch
):
    def full(path, data):
        path.write_bytes(data[:10])
        if stepping.ledger.last("segment") is not None:
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    run = tmp_path / "run"
    with monkeypatch.context() as disk:
        disk.setattr("discreet.curator.segments._write", full)
        with pytest.raises(LedgerError, match=r"No space left on device.*count as taken"):
            stepping.run(InSteps(), checkpoint=run, every=1)
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run"]
    assert segments.resume(stepping, InSteps(), run).value == 2
    assert [e.body["to"] for e in stepping.ledger.entries(kind="segment")] == [1, 2]
    assert stepping.used == 0.25


def test_what_fails_in_its_rehearsal_is_not_charged(tmp_path):
    people = Memory({"age": [1, 2]}, PUBLIC)
    curator = Curator.create(tmp_path / "people.ledger", people, Policy(budget=Budget(epsilon=1)))
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="the rehearsal failed"):
        curator.start(Rehearsing(public=PUBLIC, threshold=1, epsilon=1))
    assert curator.ledger.anchor == before
    # Nothing is demanded of a mechanism that has no rehearsal.
    rehearse(SparseVector(public=PUBLIC, threshold=1, epsilon=1), people)
    curator.start(SparseVector(public=PUBLIC, threshold=1, epsilon=1))
    assert curator.used == 1


def _finder(column: str, public: Public = PUBLIC) -> mech.HistogramBounds:
    return mech.HistogramBounds(public=public, column=column, epsilon=0.1, smallest=1, levels=5)


def _noisy(statistic: mech.Statistic) -> mech.AddNoise:
    return mech.AddNoise(public=PUBLIC, statistic=statistic, noise=mech.IntegerLaplace(scale=10))


def _sampled(column: str) -> mech.SampleAndAggregate:
    function = mech.PartMean(column=column)
    return mech.SampleAndAggregate(
        public=PUBLIC, columns=(column,), function=function, parts=2, bounds=Bounds(0, 1), epsilon=0.1
    )


def _stable(column: str) -> mech.SubsampleAggregateStable:
    function = PartMode(column=column)
    return mech.SubsampleAggregateStable(
        public=PUBLIC,
        columns=(column,),
        function=function,
        epsilon=0.1,
        delta=1e-7,
        rate=0.3,
        subsamples=300,
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda: _finder("agee"),
        lambda: _finder("name"),
        lambda: mech.MeanWithFoundBounds(public=PUBLIC, column="name", finder=_finder("name"), epsilon=0.1),
        lambda: _noisy(mech.CountNonNull(column="agee")),
        lambda: mech.Sequential(mechanisms=(_noisy(mech.Count()), _finder("agee"))),
        lambda: mech.PostProcessed(
            mechanism=_noisy(mech.CountNonNull(column="agee")), function=mech.Clamp(lower=0)
        ),
        lambda: mech.GroupPrivate(mechanism=_finder("name"), size=2),
        lambda: _sampled("agee"),
        lambda: _stable("agee"),
    ],
)
def test_columns_that_nobody_declares_are_looked_for_before_the_charge(tmp_path, build):
    people = Memory({"age": [1, 2], "name": ["a", "b"]}, PUBLIC)
    curator = Curator.create(tmp_path / "people.ledger", people, Policy(budget=Budget(epsilon=1, delta=1e-6)))
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match="Nothing was charged"):
        curator.ask(build())
    assert curator.ledger.anchor == before


def test_parts_of_a_parallel_mechanism_are_rehearsed(tmp_path):
    public = Public(schema={"town": Categories(["a", "b"])}, table="people")
    people = Memory({"town": ["a", "b"]}, public)
    curator = Curator.create(tmp_path / "people.ledger", people, Policy(budget=Budget(epsilon=1)))
    parts = tuple((c, _finder("agee", mech.part_public(public, "town", c))) for c in ("a", "b"))
    with pytest.raises(InvalidInput, match="no column 'agee'"):
        curator.ask(mech.Parallel(public=public, column="town", parts=parts))
    assert curator.used == 0


def test_a_question_about_a_column_that_is_not_there_does_not_count_as_asked(tmp_path):
    people = Memory({"age": [1, 2]}, PUBLIC)
    curator = Curator.create(tmp_path / "people.ledger", people, Policy(budget=Budget(epsilon=1)))
    vector = curator.start(SparseVector(public=PUBLIC, threshold=10**6, epsilon=1, questions=1))
    with pytest.raises(InvalidInput, match="no column 'agee'"):
        vector.answer(mech.CountNonNull(column="agee"))
    assert vector.answer(mech.CountNonNull(column="age")).value.above is False


def test_a_described_function_of_a_column_that_its_parts_lack_is_refused():
    with pytest.raises(InvalidInput, match="of a column that its parts have: age"):
        mech.SampleAndAggregate(
            public=PUBLIC,
            columns=("age",),
            function=mech.PartMean(column="name"),
            parts=2,
            bounds=Bounds(0, 1),
            epsilon=0.1,
        )
