"""What methods cost, that they cost no more, and that a run can be cut."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import Categories, Public, accounting
from discreet.mechanisms import ExponentialMechanism, IntegerGaussian
from discreet.sampling import SeededEntropy
from discreet.synthetic import AIM, MST, MWEM, Domain, Independent
from discreet.synthetic.copy import METHODS, SyntheticCopy, method_for
from discreet.synthetic.counting import MarginalCounts
from discreet.synthetic.synthesizer import GRID, Synthesizer, grid_distance
from discreet.tables import Memory

from ..loops import for_each

PUBLIC = Public(schema={n: Categories(["a", "b", "c"]) for n in ("p", "q", "r", "s")})
DOMAIN = Domain.of(PUBLIC, missing=dict.fromkeys("pqrs", False))


def correlated(rows: int = 3000) -> Memory:
    """q is p, s is r turned around; the two halves have nothing to do with each other."""
    random = np.random.default_rng(0)
    p, r = random.integers(0, 3, rows), random.choice(3, rows, p=[0.6, 0.3, 0.1])
    letters = np.array(["a", "b", "c"])
    return Memory({"p": letters[p], "q": letters[p], "r": letters[r], "s": letters[2 - r]}, PUBLIC)


class Spy:
    """Adds up the zCDP of all noise that is drawn and all choices that are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rho, self.tables, self.choices = Fraction(0), 0, 0
        add, pick = IntegerGaussian.__call__, ExponentialMechanism.pick

        def noise(this: Any, values: Any, /, *, entropy: Any) -> Any:
            self.rho += Fraction(this.l2_squared) / (2 * this.variance)
            self.tables += 1
            return add(this, values, entropy=entropy)

        def choose(this: Any, scores: Any, entropy: Any) -> Any:
            self.rho += Fraction(this.epsilon) ** 2 / 8
            self.choices += 1
            return pick(this, scores, entropy)

        monkeypatch.setattr(IntegerGaussian, "__call__", noise)
        monkeypatch.setattr(ExponentialMechanism, "pick", choose)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("level", [0, 3])
def test_what_is_drawn_costs_no_more_than_rho_and_most_of_it_is_used(
    method: Any, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    rho = Fraction(1, 50) * 4**level
    mechanism = method(public=PUBLIC, domain=DOMAIN, rho=rho)
    mechanism(correlated(), entropy=SeededEntropy(level))
    assert rho * Fraction(99, 100) <= spy.rho <= rho
    drawn, extra = accounting.zcdp(mechanism.event)
    assert extra == 0
    assert float(spy.rho) <= drawn * (1 + 1e-12)
    assert spy.tables >= 4


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_price_asked_for_is_met_and_nearly_used(method: Any) -> None:
    mechanism = method.for_privacy(PUBLIC, DOMAIN, epsilon=2, delta=1e-6)
    assert 1.943 <= accounting.epsilon(mechanism.event, delta=1e-6) <= 2
    assert mechanism.asked == (2, 1e-6)


def test_scores_move_by_no_more_than_the_chooser_is_priced_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score of every choice, on a table and on it without a row: the true choice is fixed, so that both
    runs ask the same."""
    for method in (MST, AIM, MWEM):
        recorded: list[list[Any]] = [[], []]
        for k, rows in enumerate((300, 299)):
            noise = np.random.default_rng(3)

            def pick(
                this: Any, scores: Any, entropy: Any, records: Any = recorded[k], noise: Any = noise
            ) -> int:
                records.append((np.array(scores), this.sensitivity))
                return int(noise.integers(len(scores)))

            monkeypatch.setattr(ExponentialMechanism, "pick", pick)
            # What is released is the same for both: the noise makes up for the row.
            monkeypatch.setattr(
                IntegerGaussian, "__call__", lambda this, values, /, *, entropy: np.full(len(values), 40)
            )
            table = correlated(300)._table.slice(0, rows)
            mechanism = method(public=PUBLIC, domain=DOMAIN, rho=1)
            mechanism(Memory(table, PUBLIC), entropy=SeededEntropy(1))
        assert recorded[0]
        assert len(recorded[0]) == len(recorded[1])
        moves = [np.abs(a - b).max() / bound for (a, bound), (b, _) in zip(*recorded, strict=True)]
        assert max(moves) <= 1
        # The bound is not idle: half the sensitivity would be caught.
        assert max(moves) > 0.5


@pytest.mark.parametrize("name", ["aim", "mst", "mwem"])
def test_strong_dependence_is_found(name: str) -> None:
    method = method_for(name, PUBLIC, DOMAIN, epsilon=2, delta=1e-6)
    released = method(correlated(), entropy=SeededEntropy(4))
    copy = SyntheticCopy.of(released.value, released.event, rows=2000, seed=1)
    p, q, r, s = copy.codes
    assert (p == q).mean() > 0.9
    assert (r + s == 2).mean() > 0.9
    assert abs((p == 0).mean() - 1 / 3) < 0.05
    assert abs(copy.total - 3000) < 150


def test_independent_columns_are_independent() -> None:
    method = Independent.for_privacy(PUBLIC, DOMAIN, epsilon=2, delta=1e-6)
    released = method(correlated(), entropy=SeededEntropy(4))
    copy = SyntheticCopy.of(released.value, released.event, rows=3000, seed=1)
    assert abs((copy.codes[0] == copy.codes[1]).mean() - 1 / 3) < 0.05


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_run_that_is_cut_after_every_step_ends_as_it_should(method: Any) -> None:
    mechanism = method(public=PUBLIC, domain=DOMAIN, rho=Fraction(1, 10))
    source, raw, taken = correlated(), None, 0
    while taken < mechanism.length:
        entropy = SeededEntropy(taken)
        run = (
            mechanism.start(source, entropy=entropy)
            if raw is None
            else mechanism.restore(source, raw, taken, entropy=entropy)
        )
        for _ in range(min(7, mechanism.length - taken)):
            run.step()
        raw, taken = run.dump(), run.steps_taken
    assert run.progress["step"] == mechanism.length
    tables = run.release().value.tables
    assert {a for t in tables for a in t.clique} == {0, 1, 2, 3}


@pytest.mark.parametrize("lost", [1, 2, 30])
def test_steps_of_aim_that_a_crash_took_are_counted_at_the_most_they_can_have_cost(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rho = Fraction(1, 10)
    mechanism = AIM(public=PUBLIC, domain=DOMAIN, rho=rho)
    source = correlated()
    spy = Spy(monkeypatch)
    run = mechanism.start(source, entropy=SeededEntropy(1))
    for _ in range(3):
        run.step()
    raw = run.dump()
    for _ in range(lost):
        run.step()
    again = mechanism.restore(source, raw, 3 + lost, entropy=SeededEntropy(2))
    while again.steps_taken < mechanism.length:
        again.step()
    assert spy.rho <= rho


def test_aim_counts_its_first_step_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = AIM(public=PUBLIC, domain=DOMAIN, rho=1)
    run = mechanism.start(correlated(50), entropy=SeededEntropy(1))
    measure = AIM.measure

    def interrupted(this: Any, state: Any, *rest: Any) -> Any:
        measure(this, state, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(AIM, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.step()
    assert Fraction(run.state.facts["used"]) == Fraction(1, 6)


@pytest.mark.parametrize("lost", [1, 2, 10**6])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_whose_first_steps_a_crash_took_still_ends_in_a_copy(name: str, lost: int) -> None:
    """Even if nothing was released: it was paid for, and must not fail."""
    mechanism = METHODS[name](public=PUBLIC, domain=DOMAIN, rho=1)
    source = correlated(50)
    raw = mechanism.start(source, entropy=SeededEntropy(1)).dump()
    run = mechanism.restore(source, raw, min(lost, mechanism.length), entropy=SeededEntropy(2))
    while run.steps_taken < mechanism.length:
        run.step()
    fitted = run.release().value
    copy = SyntheticCopy.of(fitted, mechanism.event, rows=30, seed=1)
    assert copy.sample(3, given={"p": "a"}).num_rows == 3
    assert len(copy.report().tables) == len({table.clique for table in fitted.tables})
    if lost > mechanism.length:
        assert copy.total == 1
        assert sorted(np.bincount(copy.codes[0])) == [10, 10, 10]


def variance_ratio(method: Any) -> float:
    """The variance of what released counts are off the true ones, over what the price says it is."""
    source, off = correlated(50), []
    exact = [MarginalCounts(domain=DOMAIN, columns=(name,))(source) for name in DOMAIN.names]
    for seed in range(60):
        for table in method(source, entropy=SeededEntropy(seed)).value.tables:
            off += (np.array(table.values) - exact[table.clique[0]]).tolist()
    variance = method.count_sensitivity.l2_squared / (2 * float(method.rho) / 4)
    return float(np.var(off)) / variance


def test_released_counts_carry_the_noise_that_the_price_says_and_half_of_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 720 draws: the ratio has a deviation of 0.053, so that 0.33 is a false alarm in a billion.
    method = Independent(public=PUBLIC, domain=DOMAIN, rho=Fraction(1, 100))
    assert method.noise(method.exact_rho / 4).event.repeated(4) == method.event
    assert 0.67 < variance_ratio(method) < 1.33
    honest = Synthesizer.noise
    monkeypatch.setattr(Synthesizer, "noise", lambda this, rho: honest(this, 4 * rho))
    assert variance_ratio(method) < 0.67


def test_the_relation_decides_the_noise() -> None:
    method = Independent(public=PUBLIC, domain=DOMAIN, rho=Fraction(1, 100))
    replaced = Public(schema=PUBLIC.schema, neighbors="replace", size=10)  # type: ignore[arg-type]
    other = Independent(public=replaced, domain=DOMAIN, rho=Fraction(1, 100))
    assert other.noise(Fraction(1)).variance == 2 * method.noise(Fraction(1)).variance


@for_each(
    ("options", "words"),
    [
        ({"method": "gan"}, "method"),
        ({"delta": 0.0}, "delta must be"),
        ({"epsilon": 0}, "epsilon"),
        ({"degrees": 2}, "option"),
        ({"degree": 0}, "degree"),
        ({"constraints": ("p >= q",)}, "two numbers"),
        ({"constraints": ("p is q",)}, "two columns compared"),
        ({"constraints": ("p >= z",)}, "no column of the copy"),
        ({"rows_per_unit": 3}, "rows_per_unit is 1"),
    ],
)
def test_bad_terms_are_refused(options: dict[str, Any], words: str) -> None:
    terms: dict[str, Any] = {"method": "aim", "epsilon": 1, "delta": 1e-6} | options
    with pytest.raises(dp.DiscreetError, match=words):
        method_for(terms.pop("method"), PUBLIC, DOMAIN, **terms)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_an_empty_table_and_a_single_row_have_copies_too(name: str, rows: int) -> None:
    source = Memory(correlated(5)._table.slice(0, rows), PUBLIC)
    method = method_for(name, PUBLIC, DOMAIN, epsilon=2, delta=1e-6)
    released = method(source, entropy=SeededEntropy(2))
    copy = SyntheticCopy.of(released.value, released.event, rows=10, seed=1)
    assert copy.to_arrow().num_rows == 10


@pytest.mark.parametrize("name", METHODS)
def test_a_table_with_one_column_has_a_copy(name: str) -> None:
    domain = Domain.of(PUBLIC, ["r"], missing={"r": False})
    method = method_for(name, PUBLIC, domain, epsilon=1, delta=1e-6)
    released = method(correlated(), entropy=SeededEntropy(2))
    copy = SyntheticCopy.of(released.value, released.event, seed=1)
    assert abs((copy.codes[0] == 0).mean() - 0.6) < 0.1


@pytest.mark.parametrize(
    ("name", "rho"),
    [
        pytest.param(name, rho, marks=[pytest.mark.slow] * (name == "aim" and rho == 10**9))
        for name in METHODS
        for rho in (Fraction(1, 10**30), 10**9)
    ],
)
def test_no_budget_is_too_small_or_too_large_for_the_arithmetic(name: str, rho: Any) -> None:
    """Noise of 10**15 in every cell must neither wrap around nor stop a run after its charge."""
    released = METHODS[name](public=PUBLIC, domain=DOMAIN, rho=rho)(correlated(40), entropy=SeededEntropy(1))
    copy = SyntheticCopy.of(released.value, released.event, rows=20, seed=1)
    assert copy.to_arrow().num_rows == 20
    assert 1 <= copy.total <= 2**36


def test_a_checkpoint_of_other_options_is_refused() -> None:
    source = correlated(50)
    first = MWEM(public=PUBLIC, domain=DOMAIN, rho=1)
    raw = first.start(source, entropy=SeededEntropy(1)).dump()
    other = MWEM(public=PUBLIC, domain=Domain.of(PUBLIC), rho=1)
    assert other.event == first.event
    with pytest.raises(dp.InvalidInput, match="other options"):
        other.restore(source, raw, 0, entropy=SeededEntropy(1))


def test_no_step_is_run_twice_or_beyond_those_that_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    source, mechanism = correlated(50), MST(public=PUBLIC, domain=DOMAIN, rho=1)
    spy = Spy(monkeypatch)
    run = mechanism.start(source, entropy=SeededEntropy(1))
    run.step()
    raw = run.dump()
    measure = MST.measure

    def interrupted(this: Any, state: Any, *rest: Any) -> Any:
        measure(this, state, *rest)
        raise KeyboardInterrupt

    run.step()
    monkeypatch.setattr(MST, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.step()
    monkeypatch.setattr(MST, "measure", measure)
    with pytest.raises(dp.Halted, match="all 3 steps are taken"):
        run.step()
    assert spy.rho <= 1
    with pytest.raises(dp.InvalidInput, match="holds 1 steps, but steps_taken is 0"):
        mechanism.restore(source, raw, 0, entropy=SeededEntropy(1))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_aim_measures_what_depends_on_each_other_and_comes_near_to_it(seed: int) -> None:
    """A column that copies another, and one that is the parity of two others, which no pair shows."""
    random = np.random.default_rng(seed)
    columns = {n: random.integers(0, 2, 20_000) for n in "acd"}
    columns |= {"b": columns["a"], "e": columns["c"] ^ columns["d"]}
    public = Public(schema={n: Categories(["0", "1"]) for n in "abcde"})
    domain = Domain.of(public, missing=dict.fromkeys("abcde", False))
    source = Memory({n: columns[n].astype(str) for n in "abcde"}, public)
    released = AIM.for_privacy(public, domain, epsilon=1, delta=1e-9)(source, entropy=SeededEntropy(seed))
    measured = [set(clique) for clique in released.value.choices]
    assert any({0, 1} <= clique for clique in measured)
    assert {2, 3, 4} in measured
    copy = SyntheticCopy.of(released.value, released.event, rows=20_000, seed=seed)
    for clique in itertools.combinations(range(5), 3):
        truth, drawn = (
            np.bincount(np.ravel_multi_index([codes[a] for a in clique], (2, 2, 2)), minlength=8)
            for codes in ([columns[n] for n in "abcde"], copy.codes)
        )
        # Eight cells with noise of one or two hundred rows at most, and those of drawing 20,000 rows.
        assert np.abs(truth - drawn).sum() / 40_000 < 0.04


@for_each("cells", [1, 2, 3, 400])
@for_each("expected", [0.3, 5e17, 2.0**63, -1e25, 1e300, math.inf, -math.inf, math.nan])
def test_one_row_moves_a_distance_by_one_however_far_off_a_noisy_model_is(
    cells: int, expected: float
) -> None:
    """A model of a budget of 1e-40 expects counts beyond 64 bits. (Of an odd number of such cells, the distance
    wrapped around: one row moved it by 2^64.)"""
    counts = np.zeros(cells, np.int64)
    far = np.full(cells, expected) * GRID
    before = grid_distance(counts, far)
    for rows in range(1, 4):
        counts[0] = rows
        after = grid_distance(counts, far)
        assert abs(after - before) <= GRID
        assert 0 <= after <= 1 << 48
        before = after
