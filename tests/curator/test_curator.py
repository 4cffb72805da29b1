"""The curator: nothing out without a charge, nothing beyond the budget, nothing paid twice."""

import json
import multiprocessing
import random
import time

import numpy as np
import pytest

from discreet import Bounds, Categories, InvalidInput, NotPrivate, Public, PublicMismatch
from discreet import accounting as acc
from discreet._errors import BudgetExceeded, DescriptionError, LedgerError, ReleaseFailed
from discreet.curator import Budget, Curator, Key, Ledger, Policy, values
from discreet.curator.entries import Anchor
from discreet.curator.ledger import canonical
from discreet.curator.store import Store
from discreet.mechanisms import (
    AddNoise,
    Count,
    DistanceToInstability,
    Histogram,
    IntegerLaplace,
    Mean,
    Parallel,
    Select,
    Sensitivity,
    Sequential,
    SparseVector,
    StableMedian,
    StableMode,
    TopK,
    Trusted,
    noisy_count,
    noisy_sum,
    part_public,
)
from discreet.mechanisms.protocols import Mechanism, release
from discreet.mechanisms.votes import SanitizedFigure
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..victim import Victim
from .tamper import tamper

PUBLIC = Public(schema={"age": Bounds(0, 100)}, table="people", version="1")


@pytest.fixture
def people():
    return Memory({"age": np.arange(100) % 90}, PUBLIC)


@pytest.fixture
def curator(people, tmp_path):
    policy = Policy(budget=Budget(epsilon=3, delta=1e-6), analysts={"ann": Budget(epsilon=1), "bob": None})
    return Curator.create(tmp_path / "people.ledger", people, policy)


def kinds(curator):
    return [entry.kind for entry in curator.ledger.entries()]


def test_a_charge_comes_before_its_release_and_both_are_kept(curator):
    made = curator.ask(noisy_count(PUBLIC, epsilon=0.5), analyst="ann", text="SELECT COUNT(*) FROM people")
    assert kinds(curator) == ["open", "charge", "release"]
    charge, released = list(curator.ledger.entries())[1:]
    assert charge.body["text"] == "SELECT COUNT(*) FROM people"
    assert acc.from_json(charge.body["event"]) == made.event
    assert released.body["value"] == made.value
    assert made.private
    assert curator.used == 0.5
    assert curator.verify() == []


def test_three_pure_releases_of_one_fit_a_budget_of_three_and_a_fourth_does_not(curator):
    for _ in range(3):
        curator.ask(noisy_count(PUBLIC, epsilon=1), fresh=True)
    before = curator.ledger.anchor
    with pytest.raises(
        BudgetExceeded, match=r"from 3 to 4, above the limit 3 \(delta=1e-06\)\. .*Nothing was charged"
    ):
        curator.ask(noisy_count(PUBLIC, epsilon=1), fresh=True)
    assert curator.ledger.anchor == before
    assert curator.remaining < 1e-9


def test_the_same_question_is_answered_from_the_store_for_nothing(curator):
    mechanism = noisy_sum(PUBLIC, "age", epsilon=0.25)
    first = curator.ask(mechanism)
    again = curator.ask(mechanism)
    assert again.value == first.value
    assert again.error(0.9) == first.error(0.9)
    assert again.event == first.event
    assert curator.used == 0.25
    fresh = [curator.ask(mechanism, fresh=True).value for _ in range(4)]
    assert len({first.value, *fresh}) > 1
    assert curator.used == 1.25
    curator.ask(noisy_sum(PUBLIC, "age", epsilon=0.5))
    assert curator.used == 1.75


def test_another_analysts_release_counts_against_the_askers_own_budget_only(curator):
    mechanism = noisy_count(PUBLIC, epsilon=0.75)
    value = curator.ask(mechanism, analyst="bob").value
    assert curator.ask(mechanism, analyst="ann").value == value
    assert curator.ask(mechanism, analyst="ann").value == value  # once is enough
    assert curator.used == 0.75
    with pytest.raises(BudgetExceeded, match="ann's own budget"):
        curator.ask(noisy_sum(PUBLIC, "age", epsilon=0.5), analyst="ann")
    assert curator.used == 0.75


def test_an_analyst_stops_at_their_own_budget_and_all_together_at_the_datasets(curator):
    for _ in range(4):
        curator.ask(noisy_count(PUBLIC, epsilon=0.25), analyst="ann", fresh=True)
    with pytest.raises(BudgetExceeded, match="above the limit 1"):
        curator.ask(noisy_count(PUBLIC, epsilon=0.25), analyst="ann", fresh=True)
    curator.ask(noisy_count(PUBLIC, epsilon=2), analyst="bob")
    with pytest.raises(BudgetExceeded, match="above the limit 3"):
        curator.ask(noisy_count(PUBLIC, epsilon=0.5), analyst="bob")
    with pytest.raises(NotPrivate, match="'eve' is not an analyst"):
        curator.ask(noisy_count(PUBLIC, epsilon=0.1), analyst="eve")


def test_preview_touches_nothing_and_takes_the_tighter_budget(curator):
    before = curator.ledger.anchor
    event = noisy_count(PUBLIC, epsilon=0.25).event
    assert curator.preview(event, analyst="ann").fits == 4
    assert curator.preview(event, analyst="bob").fits >= 12
    assert curator.ledger.anchor == before


def test_what_has_no_guarantee_is_refused(curator):
    class Careless(Mechanism):
        public, event = PUBLIC, acc.NonPrivate()

        def __call__(self, source, /, *, entropy):
            raise AssertionError("data was read")

    with pytest.raises(NotPrivate, match="NonPrivate"):
        curator.ask(Careless())
    with pytest.raises(InvalidInput, match="no price"):
        curator.ask(Count())
    assert kinds(curator) == ["open"]


def test_a_mechanism_priced_for_other_facts_is_refused_before_it_is_charged(curator):
    with pytest.raises(PublicMismatch, match="schema"):
        curator.ask(noisy_count(Public(schema={"age": Bounds(0, 10)}, table="people"), epsilon=1))
    assert kinds(curator) == ["open"]


def test_a_failure_after_the_charge_keeps_it_and_says_so(curator):
    def broken(source):
        raise RuntimeError("row 17 says 42")

    noise = IntegerLaplace.for_epsilon(1)
    mechanism = AddNoise(
        public=PUBLIC, statistic=Trusted(function=broken, claimed=Sensitivity(linf=1)), noise=noise
    )
    with pytest.raises(ReleaseFailed, match="The charge stays") as raised:
        curator.ask(mechanism, analyst="bob")
    assert "42" not in str(raised.value)
    assert raised.value.__cause__ is None  # an analyst does not see what the code says
    assert kinds(curator) == ["open", "charge", "failed"]
    assert curator.used == 1


def test_trusted_code_is_charged_every_time_and_never_served(curator):
    noise = IntegerLaplace.for_epsilon(0.5)
    mechanism = AddNoise(
        public=PUBLIC, statistic=Trusted(function=lambda s: 3, claimed=Sensitivity(linf=1)), noise=noise
    )
    curator.ask(mechanism)
    curator.ask(mechanism)
    assert curator.used == 1
    assert all(entry.body["trusted"] for entry in curator.ledger.entries(kind="charge"))


def test_releases_made_elsewhere_count(curator):
    curator.enter(acc.PureDP(epsilon=2.5), "the 2023 report, table 4")
    assert curator.used == 2.5
    with pytest.raises(BudgetExceeded, match="above the limit 3"):
        curator.ask(noisy_count(PUBLIC, epsilon=1))


def test_reopened_it_goes_on_where_it_was(curator, people):
    value = curator.ask(noisy_count(PUBLIC, epsilon=1)).value
    again = Curator.open(curator.ledger.path, people)
    assert again.ask(noisy_count(PUBLIC, epsilon=1)).value == value
    assert again.used == 1
    with pytest.raises(LedgerError, match="belongs to table 'people'"):
        Curator.open(curator.ledger.path, Memory({"age": [1]}, Public(table="others")))


def test_all_versions_of_a_table_share_one_ledger(curator):
    curator.ask(noisy_count(PUBLIC, epsilon=2))
    newer = Public(schema={"age": Bounds(0, 100)}, table="people", version="2")
    later = Curator.open(curator.ledger.path, Memory({"age": [1, 2, 3]}, newer))
    assert later.used == 2
    later.ask(noisy_count(newer, epsilon=1))  # another version is another question
    assert later.used == 3


def test_a_changed_policy_counts_what_was_spent_before(curator):
    curator.ask(noisy_count(PUBLIC, epsilon=2))
    with pytest.raises(BudgetExceeded, match="above the limit 1"):
        curator.change_policy(Policy(budget=Budget(epsilon=1)))
    curator.change_policy(Policy(budget=Budget(rho=2.25)))
    assert curator.used == 2.0  # epsilon²/2
    with pytest.raises(BudgetExceeded, match="rho"):
        curator.ask(noisy_count(PUBLIC, epsilon=1))
    assert curator.verify() == []


def test_a_policy_replaces_the_one_it_was_made_for_and_no_other(curator):
    seen = curator.policy
    first = Policy(budget=Budget(epsilon=2.5))
    curator.change_policy(first, replacing=seen)
    with pytest.raises(InvalidInput, match="changed by somebody else"):
        curator.change_policy(Policy(budget=Budget(epsilon=100)), replacing=seen, large_epsilon=True)
    assert curator.policy == first


def test_many_small_gaussians_cost_less_than_their_sum(curator):
    from discreet.mechanisms import gaussian

    mechanism = gaussian(PUBLIC, Count(), rho=0.0005)
    for _ in range(40):
        curator.ask(mechanism, fresh=True)
    assert curator.used < 3
    assert curator.filter.preview(curator.spent, mechanism.event).fits > 100


@pytest.mark.parametrize(
    ("bad", "fact"),
    [
        (lambda: Budget(), "a budget is given as epsilon or as"),
        (lambda: Budget(epsilon=1, rho=1), "a budget is given as epsilon or as"),
        (lambda: Budget(epsilon=0), "epsilon must be above zero"),
        (lambda: Budget(epsilon=-1), "epsilon must be above zero"),
        (lambda: Budget(epsilon=float("nan")), "epsilon must be a number"),
        (lambda: Budget(epsilon=float("inf")), "epsilon must be finite"),
        (lambda: Budget(rho=1, delta=1), "delta must be below 1; sensible values are far below one over"),
        (
            lambda: Policy(budget=Budget(epsilon=1), analysts={"steward": None}),
            "analysts need printable names that differ from each",
        ),
        (
            lambda: Policy(budget=Budget(epsilon=1), analysts=(("a", None), ("a", None))),
            "analysts need printable names that differ from each",
        ),
    ],
)
def test_bad_budgets_are_refused(bad, fact):
    with pytest.raises(InvalidInput, match=fact):
        bad()


def _spend_all(path, results):
    curator = Curator.open(path, Memory({"age": np.arange(100) % 90}, PUBLIC))
    paid = 0
    while True:
        try:
            curator.ask(noisy_count(PUBLIC, epsilon=0.125), fresh=True)
        except BudgetExceeded:
            break
        paid += 1
    results.put(paid)


def test_sixteen_processes_at_once_never_overspend_by_one(people, tmp_path):
    path = tmp_path / "crowd.ledger"
    Curator.create(path, people, Policy(budget=Budget(epsilon=4)))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_spend_all, args=(path, results)) for _ in range(16)]
    for worker in workers:
        worker.start()
    paid = sum(results.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    curator = Curator.open(path, people)
    assert paid == 32
    assert curator.used == 4
    assert curator.verify() == []


def _releases(path, people):
    curator = Curator.open(path, people)
    yield "ready"
    while True:
        yield curator.ask(noisy_count(people.public, epsilon=0.001), fresh=True).value


def _killed_at_random_points(people, path, times):
    Curator.create(path, people, Policy(budget=Budget(epsilon=1000)), large_epsilon=True)
    shown = 0
    for turn in range(times):
        victim = Victim(_releases(path, people))
        assert victim.readline() == "ready\n"
        time.sleep(random.Random(turn).uniform(0, 0.02))
        shown += len(victim.kill())
        check_after_crash(people, path, shown)


def check_after_crash(people, path, shown):
    curator = Curator.open(path, people)
    assert curator.verify() == []
    charged = {entry.seq for entry in curator.ledger.entries(kind="charge")}
    released = [entry.body["charge"] for entry in curator.ledger.entries(kind="release")]
    assert set(released) <= charged
    assert len(set(released)) == len(released)
    assert shown <= len(released)  # nobody saw an answer that is not on record


def test_killed_at_random_points_nothing_is_released_without_a_charge(people, tmp_path):
    _killed_at_random_points(people, tmp_path / "crash.ledger", 5)


@pytest.mark.slow
def test_killed_at_hundreds_of_random_points(people, tmp_path):
    _killed_at_random_points(people, tmp_path / "crash.ledger", 300)


def test_an_anchor_kept_elsewhere_finds_a_restored_copy(curator, people):
    copy = curator.ledger.path.read_bytes()
    curator.ask(noisy_count(PUBLIC, epsilon=1))
    anchor = str(curator.ledger.anchor)
    path = curator.ledger.path
    curator.ledger.close()
    for name in (path.name + "-wal", path.name + "-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.write_bytes(copy)
    restored = Curator.open(path, people)
    assert any("rolled back" in line for line in restored.verify(Anchor.parse(anchor)))


class Own(Mechanism):
    """The steward's own mechanism, as wrong as it likes to be."""

    public, event = PUBLIC, acc.PureDP(epsilon=0.1)

    def __init__(self, run):
        self.run = run

    def __call__(self, source, /, *, entropy):
        return self.run(entropy)


def test_what_is_no_release_or_was_made_with_seeded_noise_does_not_leave(curator):
    seeded = Own(lambda entropy: release(5, event=Own.event, entropy=SeededEntropy(1)))
    for bad in (Own(lambda entropy: 5), seeded):
        with pytest.raises(ReleaseFailed, match="nothing was released"):
            curator.ask(bad)
    assert kinds(curator) == ["open", "charge", "failed", "charge", "failed"]


def test_what_cannot_be_stored_is_released_once_and_what_fails_to_be_stored_is_a_failure(curator):
    wide = Own(lambda entropy: release(np.longdouble(0.5), event=Own.event, entropy=entropy))
    assert curator.ask(wide, analyst="bob").value == 0.5

    def error(confidence):
        raise ArithmeticError("row 17 says 42")

    failing = Own(lambda entropy: release(5, event=Own.event, entropy=entropy, error=error))
    with pytest.raises(ReleaseFailed, match="nothing was released") as raised:
        curator.ask(failing, analyst="bob")
    assert raised.value.__cause__ is None
    assert kinds(curator) == ["open", "charge", "release", "charge", "failed"]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        {"a": 1, 2: np.array([1.5])},
        np.float32(0.5),
        (1, float("inf"), None),
        SanitizedFigure(order=2.0, rdp=0.5, epsilon=1.0, delta=1e-6),
    ],
)
def test_every_kind_of_value_comes_back_from_the_store_as_it_was(value):
    stored = values.decode(json.loads(canonical(values.encode(value))))
    assert repr(stored) == repr(value.item() if isinstance(value, np.generic) else value)


def test_a_stored_release_has_the_value_type_and_error_it_had_when_it_was_made(tmp_path):
    public = Public(schema={"x": Bounds(0, 1000), "c": Categories(["a", "b"])})
    source = Memory({"x": np.arange(2000) % 1000, "c": ["a", "b"] * 1000}, public)
    keeper = Curator.create(
        tmp_path / "x.ledger",
        source,
        Policy(budget=Budget(epsilon=200, delta=0.1)),
        large_delta=True,
        large_epsilon=True,
    )
    parts = tuple((c, noisy_count(part_public(public, "c", c), epsilon=1)) for c in ("a", "b"))
    mean = Mean(public=public, column="x", epsilon=1, step=1)
    for mechanism in (
        mean,
        Parallel(public=public, column="c", parts=parts),
        Sequential(mechanisms=(mean, noisy_count(public, epsilon=1))),
        Select(
            public=public,
            scores=Histogram(column="c"),
            candidates=("a", "b"),
            chooser=TopK(epsilon=1, k=2),
        ),
        DistanceToInstability(public=public, function=StableMode(column="c"), epsilon=50, delta=0.01),
        DistanceToInstability(public=public, function=StableMedian(column="x"), epsilon=50, delta=0.01),
    ):
        first, spent = keeper.ask(mechanism), keeper.used
        again = keeper.ask(mechanism)
        assert keeper.used == spent
        assert (again.value, type(again.value), again.error_in_scores) == (
            first.value,
            type(first.value),
            first.error_in_scores,
        )
        assert (again._error is None) == (first._error is None)
        if first._error is not None:
            assert again.error(0.95) == first.error(0.95)
            assert np.all(
                np.greater_equal(
                    *(
                        list(e.values()) if isinstance(e, dict) else e
                        for e in (again.error(0.93), first.error(0.93))
                    )
                )
            )


def test_a_budget_below_what_an_analyst_has_spent_is_refused(curator):
    curator.ask(noisy_count(PUBLIC, epsilon=0.75), analyst="ann")
    with pytest.raises(BudgetExceeded, match="this would raise epsilon from 0 to 0"):
        curator.change_policy(
            Policy(budget=Budget(epsilon=3, delta=1e-6), analysts={"ann": Budget(epsilon=0.5)})
        )
    curator.change_policy(
        Policy(budget=Budget(epsilon=3, delta=1e-6), analysts={"ann": Budget(epsilon=0.75)})
    )
    assert curator.verify() == []


@pytest.mark.parametrize("name", ["", " ", "ann\n", "an\x1bn", "\ud800", "steward"])
def test_names_that_could_deceive_a_reader_of_the_ledger_are_refused(name):
    with pytest.raises(InvalidInput, match="printable names"):
        Policy(budget=Budget(epsilon=1), analysts={name: None})


@pytest.mark.parametrize(
    ("bad", "fact"),
    [
        ({"budget": 3}, r"budget must be a Budget, such as Budget\(epsilon=1\)"),
        ({"analysts": {"ann": 1}}, "must be a Budget, such as"),
        ({"analysts": ["ann"]}, r"analysts must be pairs of a name and a Budget \(or None\)"),
        ({"analysts": "ann"}, "analysts must be a list"),
        ({"analysts": 3}, "analysts must be a list"),
    ],
)
def test_a_policy_is_made_of_budgets(bad, fact):
    with pytest.raises(InvalidInput, match=fact):
        Policy(**{"budget": Budget(epsilon=1), **bad})


def test_what_is_no_mechanism_event_policy_or_entry_is_refused_in_words(curator):
    for bad in (AddNoise, IntegerLaplace(scale=1), None, "SELECT 1", Own):
        with pytest.raises(InvalidInput, match="not a mechanism"):
            curator.ask(bad)
    with pytest.raises(InvalidInput, match=r"Curator\.start"):
        curator.ask(SparseVector(public=PUBLIC, threshold=1, epsilon=1))
    with pytest.raises(InvalidInput, match="asked with `ask`"):
        curator.start(noisy_count(PUBLIC, epsilon=1))
    with pytest.raises(InvalidInput, match="event"):
        curator.enter("a survey", "made elsewhere")
    with pytest.raises(InvalidInput, match="policy"):
        curator.change_policy(None)
    with pytest.raises(InvalidInput, match="number"):
        curator.resume(SparseVector(public=PUBLIC, threshold=1, epsilon=1), "2")
    with pytest.raises(LedgerError, match="anchor"):
        Anchor.parse(3)
    assert kinds(curator) == ["open"]


def test_no_key_is_left_behind_where_no_ledger_can_be_made(people, tmp_path):
    policy = Policy(budget=Budget(epsilon=1))
    with pytest.raises(LedgerError, match="cannot be made: No such file"):
        Curator.create(tmp_path / "missing" / "people.ledger", people, policy)
    (tmp_path / "people.ledger-journal").mkdir()
    with pytest.raises(LedgerError, match="no ledger can be made"):
        Curator.create(tmp_path / "people.ledger", people, policy)
    assert not (tmp_path / "people.ledger.key").exists()


def test_a_ledger_whose_making_was_interrupted_is_said_to_hold_no_entry(people, tmp_path):
    Key.create(tmp_path / "people.ledger.key")
    Store(tmp_path / "people.ledger").create()
    with pytest.raises(LedgerError, match=r"holds no entry.*take it and its key away"):
        Curator.open(tmp_path / "people.ledger", people)


def test_an_analyst_called_dataset_is_told_of_their_own_budget(people, tmp_path):
    policy = Policy(budget=Budget(epsilon=2), analysts={"dataset": Budget(epsilon=0.5)})
    curator = Curator.create(tmp_path / "people.ledger", people, policy)
    with pytest.raises(BudgetExceeded, match=r"^dataset's own budget"):
        curator.ask(noisy_count(PUBLIC, epsilon=1), analyst="dataset")


def test_a_disk_that_is_full_before_the_key_is_written_leaves_no_half_of_it(people, tmp_path, monkeypatch):
    policy = Policy(budget=Budget(epsilon=1))
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(LedgerError, match="cannot be made: No space left"):
            Curator.create(tmp_path / "people.ledger", people, policy)
    assert list(tmp_path.iterdir()) == []
    assert Curator.create(tmp_path / "people.ledger", people, policy).used == 0


def test_a_mechanism_that_asks_in_the_middle_of_an_answer_is_told_so(curator):
    live = curator.start(SparseVector(public=PUBLIC, threshold=1, epsilon=0.5, positives=2))
    asking = Trusted(
        function=lambda source: curator.ask(noisy_count(PUBLIC, epsilon=0.1)).value,
        claimed=Sensitivity(linf=1),
    )
    with pytest.raises(LedgerError, match="this very thread"):
        live.answer(asking)
    failing = Trusted(function=lambda source: 1 / 0, claimed=Sensitivity(linf=1))
    with pytest.raises(ReleaseFailed, match="withheld") as failed:
        live.answer(failing)
    assert failed.value.__suppress_context__
    assert live.answer(Count()).value.above


def test_a_total_or_a_policy_that_was_tampered_with_is_not_relied_on(curator, people):
    curator.ask(noisy_count(PUBLIC, epsilon=2))
    curator.change_policy(Policy(budget=Budget(epsilon=2.5)))
    tamper(
        curator.ledger.path, """UPDATE entry SET body = REPLACE(body, '2.5', '250') WHERE kind = 'policy'"""
    )
    with pytest.raises(LedgerError, match="not as it was signed"):
        curator.ask(noisy_sum(PUBLIC, "age", epsilon=1))
    with pytest.raises(LedgerError, match="not as it was signed"):
        Curator.open(curator.ledger.path, people)


def test_a_first_policy_that_was_tampered_with_is_not_relied_on(curator, people):
    statement = """UPDATE entry SET body = REPLACE(body, '"epsilon":3', '"epsilon":300') WHERE seq = 1"""
    tamper(curator.ledger.path, statement)
    with pytest.raises(LedgerError, match="not as it was signed"):
        curator.ask(noisy_count(PUBLIC, epsilon=1))
    with pytest.raises(LedgerError, match="not as it was signed"):
        Curator.open(curator.ledger.path, people)
    assert [entry.kind for entry in Ledger(curator.ledger.path).entries()] == ["open"]


@pytest.mark.parametrize(
    "value",
    [
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0],
        np.datetime64("2020-01-01T00:00:00.5", "ns"),
        np.timedelta64(5, "ns"),
    ],
)
def test_a_value_that_would_not_come_back_as_it_was_is_not_stored(value):
    """What is stored as another value would be another answer to who asks again."""
    with pytest.raises(DescriptionError, match="no JSON description"):
        values.encode(value)
