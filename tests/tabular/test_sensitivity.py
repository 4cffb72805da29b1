"""Every bound that a price rests on, on neighbors chosen to attain it, and a mutant for each that must
fail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import integrate, optimize

from discreet import ADD_REMOVE, REPLACE, Bounds, Categories, InvalidInput, Public, WrongRelation, tabular
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory
from discreet.tabular import LogisticRegression, erm
from discreet.tabular import perturbation as inside
from discreet.tabular.erm import power_of_two
from discreet.tabular.losses import minimize, minimize_damped
from discreet.tabular.perturbation import gaussian_objective_delta

DESIGN = tabular.Design(features=("a", "b"), target="y", intercept=False, clip="never")
LOSSES = [
    tabular.Logistic(),
    tabular.losses.HuberHinge(width=0.3),
    tabular.Huber(threshold=0.7),
    tabular.Squared(),
    tabular.Squared(reach=1.7),
]


def facts(neighbors: Any = ADD_REMOVE, size: int = 3, classes: int = 2, numbers: bool = False) -> Public:
    target = Bounds(-1, 1) if numbers else Categories([f"c{i}" for i in range(classes)])
    return Public(
        schema={"a": Bounds(-1, 1), "b": Bounds(-1, 1), "y": target}, neighbors=neighbors, size=size
    )


def source(rows: list[tuple[float, float, Any]], public: Public) -> Memory:
    return Memory({name: [row[i] for row in rows] for i, name in enumerate("aby")}, public)


def learner(kind: Any, loss: Any = None, **more: Any) -> Any:
    loss = tabular.Logistic() if loss is None else loss
    public = more.pop("public", facts(numbers=not loss.classifies))
    return kind(public=public, design=DESIGN, loss=loss, **{"epsilon": 1.0, "regularization": 0.5, **more})


def solution(mechanism: Any, rows: list[Any]) -> np.ndarray:
    x, y = mechanism.design.read(source(rows, mechanism.public), SeededEntropy(1))
    (problem,) = mechanism._problems(x, y)
    point, certified = minimize(problem, mechanism.tolerance)
    assert certified
    return np.asarray(point / mechanism.cell)


def label(loss: Any, positive: bool) -> Any:
    return ("c1" if positive else "c0") if loss.classifies else (1.0 if positive else -1.0)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("weights", [(), (1, 3)])
def test_one_row_moves_the_minimizer_by_no_more_than_is_claimed(loss: Any, weights: tuple[int, ...]) -> None:
    if weights and not loss.classifies:
        pytest.skip("a regression has no classes")
    # strong regularization keeps weights near 0, where one row's gradient is as long as it gets: the bound is
    # attained to within 2x
    mechanism = learner(tabular.OutputPerturbation, loss, class_weights=weights, regularization=20.0)
    rest = [(0.3, -0.2, label(loss, False)), (-0.1, 0.9, label(loss, True))]
    worst = 0.0
    for row in [(1.0, 1.0), (-1.0, 1.0), (0.4, 0.1)]:
        for positive in (False, True):
            moved = solution(mechanism, [*rest, (*row, label(loss, positive))]) - solution(mechanism, rest)
            worst = max(worst, float(moved @ moved))
            assert np.abs(moved).sum() <= mechanism.sensitivity.l1
    assert worst <= mechanism.sensitivity.l2_squared
    # the mutants: a third of the sensitivity, or class weights that were forgotten
    assert worst > mechanism.sensitivity.l2_squared / 9


def test_a_mutant_that_forgets_class_weights_or_the_second_row_is_caught() -> None:
    loss = tabular.Logistic()
    weighted = learner(tabular.OutputPerturbation, loss, class_weights=(1, 4), regularization=20.0)
    forgetful = learner(tabular.OutputPerturbation, loss, regularization=20.0)
    rest, row = [(0.3, -0.2, "c0")], (1.0, 1.0, "c1")
    moved = (solution(weighted, [*rest, row]) - solution(weighted, rest)) * weighted.cell / forgetful.cell
    assert moved @ moved > forgetful.sensitivity.l2_squared
    replaced = learner(tabular.OutputPerturbation, loss, public=facts(REPLACE, size=2), regularization=20.0)
    added = learner(tabular.OutputPerturbation, loss, regularization=20.0)
    opposite = (-1.0, -1.0, "c1")
    moved = solution(replaced, [*rest, row]) - solution(replaced, [*rest, opposite])
    assert moved @ moved <= replaced.sensitivity.l2_squared
    moved = moved * replaced.cell / added.cell
    # at weights near 0 a row's slope is 1/2: two opposite rows together reach what one may move, and with a
    # weight of 2 pass it
    heavy = learner(
        tabular.OutputPerturbation,
        loss,
        public=facts(REPLACE, size=2),
        class_weights=(1, 4),
        regularization=20.0,
    )
    moved = solution(heavy, [*rest, row]) - solution(heavy, [*rest, opposite])
    assert moved @ moved > heavy.sensitivity.l2_squared / 5
    assert moved @ moved <= heavy.sensitivity.l2_squared


def densities(mechanism: Any, rows: list[Any], grid: np.ndarray) -> np.ndarray:
    """The density of the exact minimizer of the perturbed objective, in one dimension: p(b(t)) J''(t)."""
    x, y = mechanism.design.read(source(rows, mechanism.public), SeededEntropy(1))
    (problem,) = mechanism._problems(x, y)
    law, scale = mechanism.noise_distribution
    result = []
    for t in grid.tolist():
        gradient, scores = problem.gradient(np.array([t]))
        result.append((-float(gradient[0]), float(problem.hessian(scores)[0, 0])))
    b, curvature = np.array(result).T
    laplace = np.exp(-np.abs(b) / scale) / (2 * scale)
    return curvature * (
        laplace if law == "laplace" else np.exp(-((b / scale) ** 2) / 2) / (scale * math.sqrt(2 * math.pi))
    )


ONE = tabular.Design(features=("a",), target="y", intercept=False, clip="never")


@pytest.mark.parametrize(
    "loss", [tabular.Logistic(), tabular.losses.HuberHinge(width=0.3)], ids=lambda loss: type(loss).__name__
)
def test_the_objectives_loss_is_at_most_what_is_claimed_and_close_to_it(loss: Any) -> None:
    """In one dimension the density is known: the largest log ratio over all t, for a row added, against
    epsilon_1."""
    mechanism = tabular.ObjectivePerturbation(
        public=facts(), design=ONE, loss=loss, epsilon=1.0, regularization=2.0
    )
    grid = np.linspace(-8, 8, 801)
    rest = [(0.0, 0.0, "c0")]
    ratios = np.log(densities(mechanism, [*rest, (1.0, 0.0, "c1")], grid) / densities(mechanism, rest, grid))
    claimed = mechanism._objective_epsilon
    assert np.abs(ratios).max() <= claimed
    # a mutant with 2/3 of epsilon, which is what forgetting the determinant or half of the noise amounts to
    assert np.abs(ratios).max() > claimed * 0.6
    total = integrate.trapezoid(densities(mechanism, rest, np.linspace(-30, 30, 6001)), dx=0.01)
    assert total == pytest.approx(1, abs=2e-3), "the change of variables is right"


def test_the_gaussian_objectives_delta_is_at_most_what_is_claimed() -> None:
    """The hockey-stick divergence of the two densities of the exact minimizer, by quadrature, in both
    directions."""
    mechanism = tabular.ObjectivePerturbation(
        public=facts(), design=ONE, epsilon=1.0, delta=0.25, regularization=2.0
    )
    assert mechanism.noise_distribution[0] == "gaussian"
    grid = np.linspace(-12, 12, 2001)
    rest = [(0.0, 0.0, "c0")]
    p, q = (densities(mechanism, rows, grid) for rows in ([*rest, (1.0, 0.0, "c1")], rest))
    factor = math.exp(mechanism._objective_epsilon)
    deltas = [
        float(np.clip(a - factor * b, 0, None).sum() * (grid[1] - grid[0])) for a, b in ((p, q), (q, p))
    ]
    assert max(deltas) <= mechanism.delta
    assert max(deltas) > 0
    narrow = replace(mechanism, epsilon=6.0, delta=0.7)
    p, q = (densities(narrow, rows, grid) for rows in ([*rest, (1.0, 0.0, "c1")], rest))
    mutant = [
        float(np.clip(a - factor * b, 0, None).sum() * (grid[1] - grid[0])) for a, b in ((p, q), (q, p))
    ]
    assert max(mutant) > mechanism.delta, "a sixth of the noise would be caught"


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1.0, 3.0), (0.1, 45.0), (5.0, 0.9), (0.01, 500.0)])
def test_delta_of_the_gaussian_objective_against_quadrature(epsilon: float, multiplier: float) -> None:
    with mpmath.workdps(40):
        u = mpmath.mpf(1) / multiplier
        e = mpmath.mpf(epsilon) - u * u / 2
        exact = mpmath.quad(
            lambda z: (1 - mpmath.exp(e - u * z)) * mpmath.npdf(z), [e / u, e / u + 5, e / u + 20, mpmath.inf]
        )
    for sides in (1, 2):
        assert (
            sides * exact
            <= gaussian_objective_delta(epsilon, multiplier, sides)
            <= sides * exact * (1 + 1e-6)
        )


def test_slopes_of_labels_have_one_sign_and_those_of_numbers_two() -> None:
    score = np.linspace(-9, 9, 1001)
    for loss in LOSSES:
        # a number may be anywhere between the ends, where all losses of numbers have slopes of both signs
        y = 1.0 if loss.classifies else 0.2
        signs = {v: {float(s) for s in np.sign(loss.slope(score, np.full(1001, v)))} for v in (-y, y)}
        assert (signs[y] <= {-1.0, 0.0} and signs[-y] <= {1.0, 0.0}) == loss.classifies


def test_noise_inside_is_a_rounded_ideal_draw() -> None:
    """Quantiles: the law is right (DKW at 1e-9), and ndtri is as exact as is assumed."""
    n = 20_000
    slack = math.sqrt(math.log(2 / 1e-9) / (2 * n))
    from scipy import stats

    for draws, law in [
        (inside.laplace(3.0, n, SeededEntropy(1)), stats.laplace(scale=3)),
        (inside.gaussian(3.0, n, SeededEntropy(2)), stats.norm(scale=3)),
    ]:
        gaps = np.abs(law.cdf(np.sort(draws)) - np.arange(1, n + 1) / n)
        assert gaps.max() <= slack + 1 / n
        wrong = np.abs(law.cdf(np.sort(draws * 1.2)) - np.arange(1, n + 1) / n)
        assert wrong.max() > slack + 1 / n
    from scipy.special import ndtri

    with mpmath.workdps(60):
        for v in [0.4999, 0.25, 0.01, 1e-6, 1e-30, 1e-58]:
            exact = mpmath.findroot(
                lambda z, v=v: mpmath.log(mpmath.ncdf(z)) - mpmath.log(mpmath.mpf(v)), float(ndtri(v))
            )
            assert abs(float(exact - mpmath.mpf(float(ndtri(v))))) <= 2.0**-38


def test_gaussian_draws_that_are_far_from_ideal_ones_are_part_of_delta() -> None:
    for epsilon in (0.1, 1, 100):
        mechanism = learner(tabular.ObjectivePerturbation, epsilon=epsilon, delta=1e-6, regularization=None)
        failure = mechanism.facts.width * 2.0**-190 * (1 + math.exp(mechanism._model_epsilon))
        deviation = mechanism._deviation(mechanism.strength) / mechanism.facts.gradient_l2
        sides = mechanism.facts.sides if mechanism.loss.classifies else 2
        charged = gaussian_objective_delta(mechanism._remaining_epsilon(mechanism.strength), deviation, sides)
        assert charged + failure <= mechanism._model_delta
    # The failures of both tables, times exp(epsilon), would be more than delta: no Gaussian noise then.
    mechanism = learner(tabular.ObjectivePerturbation, epsilon=150, delta=1e-6)
    assert mechanism._deviation(mechanism.strength) == math.inf
    assert mechanism.noise_distribution[0] == "laplace"


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_derivatives_are_those_of_the_loss_and_stay_within_their_bounds(loss: Any) -> None:
    score = np.linspace(-5, 5, 2001)
    for y in (np.full(2001, -1.0), np.full(2001, 1.0), np.full(2001, 0.3)):
        if loss.classifies and abs(y[0]) != 1:
            continue
        slope, h = loss.slope(score, y), 1e-6
        np.testing.assert_allclose(
            (loss.value(score + h, y) - loss.value(score - h, y)) / (2 * h), slope, atol=1e-5
        )
        assert np.abs(slope).max() <= loss.lipschitz
        assert loss.curvature(score, y).max() <= loss.smoothness
        assert (np.diff(slope) <= loss.smoothness * np.diff(score) + 1e-12).all()
        assert abs(y[0]) < 1 or np.abs(slope).max() > 0.9 * loss.lipschitz


def test_the_solver_certifies_what_an_exact_gradient_confirms() -> None:
    rng = np.random.default_rng(3)
    public = facts(size=3000)
    rows = [(a, b, "c1" if a + 0.3 * c > 0 else "c0") for a, b, c in rng.uniform(-1, 1, (3000, 3)).tolist()]
    mechanism = learner(tabular.OutputPerturbation, public=public)
    x, y = DESIGN.read(source(rows, public), SeededEntropy(1))
    (problem,) = mechanism._problems(x, y)
    point, certified = minimize(problem, mechanism.tolerance)
    assert certified
    with mpmath.workdps(30):
        exact = [mechanism.strength * mpmath.mpf(w) for w in point.tolist()]
        for row, sign in zip(x.tolist(), problem.y.tolist(), strict=True):
            margin = sign * mpmath.fdot(row, point.tolist())
            for j in range(2):
                exact[j] -= sign * row[j] / (1 + mpmath.exp(margin))
        true = np.array([float(value) for value in exact])
    assert np.linalg.norm(true) <= mechanism.tolerance
    assert np.linalg.norm(true - problem.gradient(point)[0]) <= problem.rounding(point)
    stopped_early = problem.gradient(point + 1e-3)[0]
    assert np.linalg.norm(stopped_early) > mechanism.tolerance, "a solver that stops early is not certified"


@pytest.mark.parametrize(
    ("kind", "classes", "times"),
    [("OutputPerturbation", 2, 2), ("ObjectivePerturbation", 2, 1), ("OutputPerturbation", 3, 1)],
)
def test_rounding_leaves_room_for_a_certificate_at_the_longest_weights_that_any_table_has(
    kind: str, classes: int, times: int
) -> None:
    """One tiny gap separates the classes, which makes weights as long as lambda allows (about 4,000, where
    uniform rows have 0.06). The tolerance was for short ones: such tables ended uncertified, with the declared
    number of rows, and the proof rests on the certificate."""
    features, size = tuple(f"x{i}" for i in range(30)), 50_000
    target = Categories([f"c{i}" for i in range(classes)])
    public = Public(schema={**{name: Bounds(-1, 1) for name in features}, "y": target}, size=size)
    mechanism = getattr(tabular, kind)(
        public=public,
        design=tabular.Design(features=features, target="y", clip="never"),
        loss=tabular.Logistic() if classes == 2 else tabular.losses.Softmax(),
        epsilon=40,
        regularization=5e-4,
    )
    targets = np.arange(times * size) % classes
    x = np.zeros((times * size, 31), np.float32)
    x[:, 0], x[:, 1], x[:, -1] = 1e-4 * (2.0 * (targets > 0) - 1), 1e-4 * (targets == 2), 1
    (problem,) = mechanism._problems(x, targets.astype(np.float64))
    point, certified = minimize_damped(problem, mechanism.tolerance)
    assert certified
    assert np.linalg.norm(point) > 2000
    assert problem.rounding(point) <= mechanism.tolerance - mechanism.facts.gradient_l2 * 2.0**-20


def test_the_solver_certifies_tables_of_ten_times_the_declared_rows() -> None:
    """The tolerance left room for twice the declared rows only, and this table ended uncertified."""
    features, size = tuple(f"x{i}" for i in range(30)), 2000
    public = Public(
        schema={**{name: Bounds(-1, 1) for name in features}, "y": Categories(["n", "y"])}, size=size
    )
    mechanism = tabular.OutputPerturbation(
        public=public,
        design=tabular.Design(features=features, target="y", clip="never"),
        epsilon=40,
        regularization=1e-5,
    )
    targets = np.arange(10 * size) % 2
    x = np.zeros((10 * size, 31), np.float32)
    x[:, 0], x[:, -1] = 1e-4 * (2.0 * targets - 1), 1
    (problem,) = mechanism._problems(x, targets.astype(np.float64))
    point, certified = minimize_damped(problem, mechanism.tolerance)
    assert certified
    assert problem.rounding(point) > mechanism._tolerance_for(1e-5, 2 * size), "twice the rows are not enough"
    assert mechanism.certified_rows == 64 * size
    assert mechanism.tolerance < mechanism.facts.gradient_l2 * 2.0**-10


@pytest.mark.parametrize("kind", ["OutputPerturbation", "ObjectivePerturbation"])
def test_room_for_more_rows_adds_next_to_no_noise(kind: str) -> None:
    for width, size, epsilon in ((5, 1000, 1), (100, 10**6, 1), (100, 10**7, 1), (1000, 10**5, 10)):
        features = tuple(f"x{i}" for i in range(width))
        public = Public(
            schema={**{name: Bounds(-1, 1) for name in features}, "y": Categories(["n", "y"])}, size=size
        )
        mechanism = getattr(tabular, kind)(
            public=public, design=tabular.Design(features=features, target="y"), epsilon=epsilon
        )
        assert 2 * size <= mechanism.certified_rows <= 64 * size
        assert mechanism._tolerance_for(mechanism.strength, mechanism.certified_rows) <= mechanism.tolerance
        least = mechanism._tolerance_for(mechanism.strength, 2 * size)
        if kind == "OutputPerturbation":
            assert mechanism.tolerance <= max(least, mechanism.facts.gradient_l2 / 1024)
        elif mechanism.tolerance > least:
            output = math.sqrt(mechanism.facts.width) * mechanism.output_noise.standard_deviation
            inside = mechanism._expected_noise(mechanism.strength) / mechanism.strength
            assert output * mechanism.cell < inside / 16


def test_rows_never_exceed_their_norms_and_the_intercept_counts() -> None:
    public = Public(
        schema={
            "a": Bounds(-1e300, 1e300),
            "k": Categories(["u", "v"]),
            "t": Bounds(0, 1),
            "y": Categories(["n", "y"]),
        },
        size=4,
    )
    hostile = {
        "a": [1e300, -math.inf, math.nan, 3.0],
        "k": ["u", "zzz", None, "v"],
        "t": [1.0, 9.0, None, -1.0],
        "y": ["y", "n", None, "?"],
    }
    for clip in ("typical", "never"):
        design = tabular.Design(features=("a", "k", "t"), target="y", clip=clip)
        x, y = design.read(Memory(hostile, public), Entropy())
        l1, l2 = design.norms(public)
        assert x.shape == (4, 5)
        assert np.isfinite(x).all()
        assert y.tolist() == [1, 0, 0, 0]
        assert (np.abs(x).sum(axis=1) <= l1).all()
        assert (np.sqrt((x**2).sum(axis=1)) <= l2).all()
        assert np.sqrt((x**2).sum(axis=1)).max() > 0.95 * l2
    without = replace(design, intercept=False).norms(public)
    assert l2**2 == pytest.approx(without[1] ** 2 + 1)


def test_of_a_unit_with_many_rows_one_counts() -> None:
    from discreet import Unit

    public = Public(schema={"a": Bounds(-1, 1), "y": Categories(["n", "y"])}, unit=Unit("who"), size=2)
    table = {"a": [0.1, 0.2, 0.3, 0.4, 0.5], "y": ["y"] * 5, "who": ["p", "p", "p", "q", None]}
    design = tabular.Design(features=("a",), target="y", intercept=False, clip="never")
    seen = set()
    entropy = SeededEntropy(5)
    for _ in range(60):
        x, _ = design.read(Memory(table, public), entropy)
        assert len(x) == 2
        seen.add(tuple(round(float(value), 6) for value in x[:, 0]))
    assert seen == {(0.1, 0.4), (0.2, 0.4), (0.3, 0.4)}


def test_integer_gradients_have_the_sensitivity_that_is_claimed() -> None:
    mechanism = learner(tabular.GradientPerturbation, delta=1e-5)
    x, y = DESIGN.read(source([(1.0, 1.0, "c1")], mechanism.public), SeededEntropy(1))
    (problem,) = mechanism._problems(x, y)
    far = mechanism._integer_gradient(problem, np.array([-50.0, -50.0]))
    squared = int(far @ far)
    assert mechanism.sensitivity.l2_squared / 1.02 < squared <= mechanism.sensitivity.l2_squared


def test_a_cell_is_never_above_the_number_it_is_made_of() -> None:
    for value in (1.0, 8.0, 0.3, 5e-324, np.nextafter(8.0, 0.0), np.nextafter(2.0**-60, 0.0)):
        assert power_of_two(value) <= value < 2 * power_of_two(value)


def test_moments_without_a_count_have_no_means() -> None:
    for design in (replace(DESIGN, target=None), replace(DESIGN, intercept=True)):
        entries = (4 if design.intercept else 2) * (5 if design.intercept else 3) // 2
        moments = tabular.Moments(
            design=design, public=facts(numbers=True), upper=(1.0,) * entries, deviation=1.0
        )
        for read in (lambda m: m.mean, lambda m: m.covariance, lambda m: m.components(1)):
            with pytest.raises(InvalidInput, match="need moments with an intercept"):
                read(moments)


@pytest.mark.parametrize("method", ["output", "objective"])
def test_every_model_states_the_certificate_that_it_assumes_and_none_tells_whether_it_was_there(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark on models without a certificate would be a function of private rows, which nobody pays for."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (200, 2)), np.array([0, 1] * 100)
    model = LogisticRegression(1.0, method=method, classes=[0, 1], n=200, lower=-1, upper=1)
    model.fit(X, y)
    facts = tabular.card(model).facts
    rows = model.mechanism_.certified_rows
    assert f"at most {rows:,} rows" in model.assumes_
    assert "the privacy guarantee does not hold" in model.assumes_
    assert model.assumes_ in tabular.card(model).markdown()
    # The solver ends without a certificate, at the point where it began.
    uncertified = lambda problem, *_: (np.zeros(problem.size), False)  # noqa: E731
    for name in ("minimize", "minimize_damped"):
        monkeypatch.setattr(erm, name, uncertified)
    model.fit(X, y)
    assert tabular.card(model).facts == facts
    assert model.coef_.shape == (1, 2)


def test_gradient_perturbation_assumes_no_certificate() -> None:
    X, y = np.zeros((20, 2)), np.array([0, 1] * 10)
    model = LogisticRegression(1.0, delta=1e-6, method="gradient", classes=[0, 1], n=20, lower=-1, upper=1)
    assert model.fit(X, y).assumes_ is None


# --- input perturbation -------------------------------------------------------------------------------------


class Recorded:
    """The noise of a learner, which it passes on and keeps: what it was added to, and what it was."""

    def __init__(self, noise: Any) -> None:
        self.noise, self.cells, self.drawn = noise, np.zeros(0), np.zeros(0)
        self.event, self.mean_squared_error, self.error = noise.event, noise.mean_squared_error, noise.error

    def __call__(self, cells: np.ndarray, *, entropy: Entropy) -> Any:
        self.cells = cells
        noisy = self.noise(cells, entropy=entropy)
        self.drawn = noisy - cells
        return noisy


def perturbed(rows: list[Any], **more: Any) -> tuple[Any, Recorded, np.ndarray]:
    """An input perturbation of a table of three, its noise, and the weights that it released."""
    mechanism = learner(tabular.RowPerturbation, **{"public": facts(REPLACE), **more})
    recorded = Recorded(mechanism.noise)
    mechanism.__dict__["noise"] = recorded
    released = mechanism(source(rows, mechanism.public), entropy=SeededEntropy(7)).value
    return mechanism, recorded, np.array(released.weights[0])


def test_one_row_moves_its_noisy_row_alone_and_by_no_more_than_is_claimed() -> None:
    rows = [(1.0, 1.0, "c1"), (0.5, -1.0, "c0"), (0.0, 0.25, "c1")]
    mechanism, before, _ = perturbed(rows)
    _, after, _ = perturbed([(1.0, 1.0, "c0"), *rows[1:]])
    moved = (after.cells - before.cells).reshape(3, 2)
    assert not moved[1:].any()
    claimed = mechanism.sensitivity
    assert np.abs(moved).sum() <= claimed.l1
    assert claimed.l2_squared / 1.1 < np.square(moved).sum() <= claimed.l2_squared  # so it is attained
    assert 4 * claimed.l2_squared / 9 < np.square(moved).sum(), "two thirds of it would be too little"
    assert mechanism.event == mechanism.noise.event


def test_there_is_one_noisy_row_per_unit_in_no_order_whatever_the_table_holds() -> None:
    rows = [(1.0, 1.0, "c1"), (0.5, -1.0, "c0"), (0.0, 0.25, "c1")]
    mechanism, recorded, _ = perturbed(rows)
    x, y = mechanism.design.read(source(rows, mechanism.public), SeededEntropy(1))
    for chosen in ([], [0], [0, 1, 2], [0, 1, 2, 1, 0]):
        recorded.drawn = recorded.cells = np.zeros(0)
        mechanism.fit_rows(x[chosen], y[chosen], SeededEntropy(1))
        assert recorded.cells.shape == recorded.drawn.shape == (6,)
        assert not recorded.cells[2 * len(chosen) :].any()
    (problem,) = mechanism._problems(x, y)
    silent: Any = Recorded(mechanism.noise.noise)
    silent.noise = lambda cells, entropy: cells
    mechanism.__dict__["noise"] = silent
    orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    weights = [
        mechanism._weights(replace(problem, x=problem.x[order], y=problem.y[order]), SeededEntropy(1))
        for order in orders
    ]
    assert weights[0].tolist() == weights[1].tolist() == weights[2].tolist()
    exact = minimize(problem, 1e-9)[0]
    assert weights[0] == pytest.approx(exact, abs=0.02)  # without noise the minimizer, up to the grid


@pytest.mark.parametrize("loss", [tabular.Logistic(), tabular.losses.HuberHinge(width=0.3)])
def test_the_error_of_input_perturbation_follows_from_the_noise_that_was_drawn(loss: Any) -> None:
    rows = [(1.0, 1.0, "c1"), (0.5, -1.0, "c0"), (0.0, 0.25, "c1")]
    mechanism, recorded, released = perturbed(rows, loss=loss, epsilon=50.0, regularization=3.0)
    x, y = mechanism.design.read(source(rows, mechanism.public), SeededEntropy(1))
    best = minimize(mechanism._problems(x, y)[0], 1e-9)[0]
    longest = np.linalg.norm((np.abs(recorded.drawn) + 0.5).reshape(3, 2), axis=1).max() * mechanism.cell
    slope = loss.lipschitz + loss.smoothness * math.sqrt(2) * np.linalg.norm(best)
    assert 0 < np.linalg.norm(released - best) <= 3 * longest * slope / 3.0 <= mechanism.error(0.95) * 2


def test_what_input_perturbation_cannot_protect_is_refused() -> None:
    for message, more in (
        ("replace and zero_out", {"public": facts(ADD_REMOVE)}),
        ("multi_class", {"loss": tabular.losses.Softmax(), "public": facts(REPLACE, classes=3)}),
        ("without class weights", {"class_weights": (1, 2)}),
        ("multiplied by a label", {"loss": tabular.Huber(), "public": facts(REPLACE, numbers=True)}),
    ):
        with pytest.raises((InvalidInput, WrongRelation), match=message):
            learner(tabular.RowPerturbation, **{"public": facts(REPLACE), **more})
    assert "input" not in LogisticRegression(1.0).__doc__.split("auto")[1]


# --- what privacy costs in accuracy -------------------------------------------------------------------------


def descended(rows: np.ndarray, steps: int, deviation: float, rng: np.random.Generator) -> float:
    """The excess mean loss of projected noisy descent on the mean of |w - x|, which is 1-Lipschitz, in the
    ball of diameter 1; from its edge, at the step size of the theorem."""
    size, width = rows.shape
    at, total = np.zeros(width), np.zeros(width)
    at[0] = 0.5
    step = 1 / math.sqrt(steps * (1 + width * (deviation / size) ** 2))
    for _ in range(steps):
        total += at
        away = at - rows
        slope = (away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-12)).sum(axis=0)
        at = at - step * (slope + rng.normal(scale=deviation, size=width)) / size
        at /= max(1.0, 2 * float(np.linalg.norm(at)))

    def loss(w: np.ndarray) -> float:
        return float(np.linalg.norm(w - rows, axis=1).mean())

    least = optimize.minimize(loss, rows.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-6}).fun
    return loss(total / steps) - float(least)


@pytest.mark.parametrize(("size", "width", "epsilon"), [(200, 2, 1.0), (400, 2, 0.25), (300, 4, 1.0)])
def test_the_excess_risk_of_noisy_descent_is_below_the_theorem(size: int, width: int, epsilon: float) -> None:
    rng, steps, delta = np.random.default_rng(3), 60, 1e-6
    rows = rng.normal(scale=0.1, size=(size, width)) + 0.1
    rho = _least_rho(epsilon, delta)
    measured = [descended(rows, steps, math.sqrt(steps / (2 * rho)), rng) for _ in range(20)]
    bound = tabular.excess_risk(size, width, epsilon=epsilon, delta=delta, steps=steps)
    assert 0 < np.mean(measured) + 3 * np.std(measured) / math.sqrt(20) < bound
    assert bound == pytest.approx(math.sqrt(1 / steps + width / (2 * rho * size**2)), rel=1e-5)


def _least_rho(epsilon: float, delta: float) -> float:
    """The rho whose tightest Rényi conversion (Canonne, Kamath & Steinke 2020) meets delta at epsilon."""

    def log_delta(rho: float) -> float:
        orders = 1 + np.geomspace(1e-3, 1e4, 20_000)
        log_each = (
            (orders - 1) * (orders * rho - epsilon) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
        )
        return float(log_each.min())

    return float(optimize.brentq(lambda rho: log_delta(rho) - math.log(delta), 1e-8, 10))


def test_the_limit_of_the_excess_risk_is_the_lectures_rate() -> None:
    """alpha ~ sqrt(d ln(1/delta)) / (epsilon n), with the constant sqrt(2) at most."""
    for size, width, epsilon in ((1000, 1, 0.1), (10**6, 50, 0.01), (500, 9, 0.5)):
        delta = 1e-9
        rate = math.sqrt(width * math.log(1 / delta)) / (epsilon * size)
        limit = tabular.excess_risk(size, width, epsilon=epsilon, delta=delta)
        assert 0.9 < limit / rate < math.sqrt(2)
        many = tabular.excess_risk(size, width, epsilon=epsilon, delta=delta, steps=10**15)
        assert limit < many == pytest.approx(limit, rel=1e-4)
        twice = tabular.excess_risk(
            size, width, epsilon=epsilon, delta=delta, lipschitz=3, diameter=2, neighbors=REPLACE
        )
        assert twice == pytest.approx(12 * limit)
    with pytest.raises(InvalidInput, match="rows must be"):
        tabular.excess_risk(0, 1, epsilon=1, delta=1e-6)
