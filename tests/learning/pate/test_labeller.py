"""Teachers, the live labeller, and what may not leak from them."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import discreet as dp
from discreet import learning, sampling
from discreet._errors import BudgetExceeded, DiscreetError, Halted, LedgerError
from discreet.learning.pate import PrivateTeachers, PublicInputs, TorchLearner
from discreet.learning.pate import teachers as ensemble
from discreet.mechanisms.votes import GNMax, SampledVotes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
ASKED = RNG.normal(size=(40, 3)).astype(np.float32)
TRUTH = (ASKED[:, 0] + ASKED[:, 1] > 0).astype(int)
TERMS: dict[str, Any] = {"teachers": 20, "classes": 2, "queries": 60, "delta": 1e-5, "workers": 1}


def opened(path: Path, x: Any = X, y: Any = Y, epsilon: float = 8) -> dp.Session:
    public = dp.Public(table="t")
    return dp.open(
        learning.Examples(x, y, public),
        budget=dp.Budget(epsilon=epsilon, delta=1e-5),
        ledger=path / "l.ledger",
        large_epsilon=True,
    )


def teachers(learner: Any, number: int = 6, variance: int = 1, **more: Any) -> PrivateTeachers:
    return PrivateTeachers(
        public=dp.Public(table="t"),
        learner=learner,
        aggregator=GNMax(variance=variance, queries=100),
        teachers=number,
        classes=2,
        shape=(3,),
        size=4000,
        **more,
    )


class Panic(BaseException):
    """Stands for the PanicException of libraries written in Rust, which is no Exception."""


class Counting:
    """Predicts the number of rows it saw, modulo two; knows how to fail."""

    def __init__(self, fail: str | None = None) -> None:
        self.fail, self.rows = fail, 0

    def fit(self, x: Any, y: Any) -> Counting:
        self.rows = len(x)
        # Made-up rows, of the rehearsal, are in [0, 1].
        if (x < 0).any():
            if self.fail == "raise":
                raise ValueError(f"secret {x[0]}")
            if self.fail == "exit":
                sys.exit(3)
            if self.fail == "panic":
                raise Panic(f"secret {x[0]}")
            if self.fail == "large":
                self.weights = np.zeros(10**6)
        return self

    def predict(self, x: Any) -> Any:
        if self.fail == "predict" and (x < 0).any():
            raise RuntimeError("secret")
        if self.fail == "predict panic" and (x < 0).any():
            raise Panic("secret")
        if self.fail == "class" and (x < 0).any():
            return np.full(len(x), 17)
        return np.full(len(x), self.rows % 2)


def test_a_labeller_answers_for_its_price_and_refuses_beyond_its_quota(tmp_path: Path) -> None:
    people = opened(tmp_path)
    steps: list[tuple[int, int]] = []
    labeller = people.teach(
        LogisticRegression(), epsilon=8, progress=lambda done, of: steps.append((done, of)), **TERMS
    )
    assert steps[-1] == (20, 20)
    assert 7.5 < people.spent <= 8
    spent = people.spent
    labels = labeller.label(ASKED)
    assert np.mean(np.array(labels) == TRUTH) > 0.8
    assert people.spent == spent
    report = labeller.report()
    assert (report.asked, report.answered, report.refused, report.left) == (40, 40, 0, 20)
    assert report.epsilon <= 8
    assert report.agreement is not None
    assert 0.5 < report.agreement <= 1
    assert "data-independent" in str(report)
    with pytest.raises(Halted, match="40 inputs were asked, and"):
        labeller.label(ASKED)
    assert len(labeller.label(ASKED[:20])) == 20
    with pytest.raises(Halted, match="what was paid for is"):
        labeller.label(ASKED[:1])


def test_a_labeller_is_found_again_after_a_restart(tmp_path: Path) -> None:
    terms = {**TERMS, "epsilon": 8, "size": 4000}
    number = opened(tmp_path).teach(LogisticRegression(), **terms).number
    again = opened(tmp_path).teach(LogisticRegression(), number=number, **terms)
    assert len(again.label(ASKED)) == 40
    third = opened(tmp_path).teach(LogisticRegression(), number=number, **terms)
    report = third.report()
    assert (report.asked, report.answered, report.left) == (40, 40, 20)
    assert report == again.report()
    assert report.agreement is not None
    for other in ({"queries": 61}, {"teachers": 21}, {"size": 4001}):
        with pytest.raises(DiscreetError, match="other parameters"):
            opened(tmp_path).teach(LogisticRegression(), number=number, **{**terms, **other})
    assert len(again.label(ASKED[:20])) == 20


def test_a_second_labeller_does_not_fit_the_budget(tmp_path: Path) -> None:
    people = opened(tmp_path, epsilon=2)
    people.teach(GaussianNB(), epsilon=2, **TERMS)
    with pytest.raises(BudgetExceeded, match="the dataset"):
        people.teach(GaussianNB(), epsilon=2, **TERMS)


def test_a_blob_that_was_changed_is_not_loaded(tmp_path: Path) -> None:
    """Models are pickles: only what was sealed under the ledger's key is ever unpickled."""
    labeller = opened(tmp_path).teach(GaussianNB(), epsilon=8, **TERMS)
    (blob,) = [p for p in (tmp_path / "l.ledger-vault").iterdir() if p.is_file() and p.stat().st_size > 1000]
    raw = bytearray(blob.read_bytes())
    raw[-1] ^= 1
    blob.write_bytes(bytes(raw))
    with pytest.raises(LedgerError, match="the file of the blob"):
        labeller.label(ASKED)


def test_all_files_have_sizes_that_say_nothing_of_the_data(tmp_path: Path) -> None:
    sizes = []
    for name, y in (("a", Y), ("b", np.zeros_like(Y))):
        folder = tmp_path / name
        folder.mkdir()
        opened(folder, y=y).teach(LogisticRegression(), epsilon=8, **{**TERMS, "size": 4000})
        sizes.append(sorted(p.stat().st_size for p in (folder / "l.ledger-vault").iterdir()))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("fail", ["raise", "exit", "panic", "large", "predict", "predict panic", "class"])
def test_a_teacher_that_fails_casts_a_default_vote_and_says_nothing(
    fail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mechanism, source = teachers(Counting(fail)), learning.Examples(X, Y, dp.Public(table="t"))
    mechanism.rehearse(source)
    state = mechanism.start(source, entropy=sampling.SeededEntropy(1))
    _, release = mechanism.answer(state, source, PublicInputs(ASKED - 9), entropy=sampling.SeededEntropy(2))
    # three of six for each class, whatever the data
    assert abs(np.mean(release.value.counts) - 3.5) < 1
    assert capsys.readouterr() == ("", "")


def test_a_teacher_that_sees_one_class_or_nothing_casts_a_default_vote() -> None:
    for x, y in ((X, np.zeros(600, int)), (X[:0], Y[:0])):
        models = ensemble.train(Counting(), [(x, y)] * 4, 2, 4000, range(4), workers=1)
        assert models == [b""] * 4
        assert (ensemble.votes(models, ASKED, 2) == 2).all()


def test_one_person_moves_one_vote_whatever_they_hold() -> None:
    """Exactly: with the same dealing, at most one teacher's vote differs for every question."""
    people = RNG.integers(0, 50, len(X))
    public = dp.Public(table="t", unit=dp.Unit("who"))
    kept = people != 7
    mechanism = PrivateTeachers(
        public=public,
        learner=LogisticRegression(),
        aggregator=GNMax(variance=1, queries=100),
        teachers=10,
        classes=2,
        shape=(3,),
        size=4000,
    )
    hostile = np.where(kept[:, None], X, np.float32(1e30))
    counts = []
    for x, y, who in (
        (X, Y, people),
        (hostile, np.where(kept, Y, 1 - Y), people),
        (X[kept], Y[kept], people[kept]),
    ):
        source = learning.Examples(x, y, public, people=who)
        parts = mechanism._partition(source, sampling.SeededEntropy(5))
        ordered = [_sorted(part) for part in parts]
        models = ensemble.train(LogisticRegression(), ordered, 2, 4000, range(10), workers=1)
        counts.append(ensemble.votes(models, ASKED, 2))
    for other in counts[1:]:
        assert (np.abs(counts[0] - other).sum(1) <= 2).all()
    assert sum(len(p[0]) for p in parts) == kept.sum()


def _sorted(part: Any) -> Any:
    """The order within a part is random: here, so that two runs can be compared, it is that of values."""
    x, y = part
    order = np.lexsort(x.T)
    return x[order], y[order]


def test_people_are_dealt_by_a_hash_of_their_name_and_not_by_their_place() -> None:
    names = [f"person {i}" for i in range(500)]
    whole, without, shuffled, other_key = (
        ensemble.deal(len(given), given, 7, sampling.SeededEntropy(seed))[:, 0]
        for given, seed in ((names, 3), (names[1:], 3), (names[::-1], 3), (names, 4))
    )
    assert (whole[1:] == without).all()
    assert (whole == shuffled[::-1]).all()
    assert (whole != other_key).any()
    assert np.bincount(whole, minlength=7).min() > 30


@pytest.mark.parametrize("names", [None, [f"person {i}" for i in range(3000)]])
def test_overlapping_parts_give_every_unit_to_as_many_teachers_as_are_paid_for(names: Any) -> None:
    """Uniform subsets: of the 10 pairs of 5 teachers each has 300 +- 5 deviations of 16.4 (false alarm 1e-5 a
    pair, with fixed entropy)."""
    dealt = ensemble.deal(3000, names, 5, sampling.SeededEntropy(3), overlap=2)
    assert (dealt[:, 0] != dealt[:, 1]).all()
    low, high = dealt.min(1), dealt.max(1)
    pairs = np.bincount(low * 5 + high, minlength=25)
    assert (np.abs(pairs[pairs > 0] - 300) < 82).all()
    assert (pairs > 0).sum() == 10
    if names is not None:
        without = ensemble.deal(2999, names[1:], 5, sampling.SeededEntropy(3), overlap=2)
        assert (dealt[1:] == without).all()


def test_with_samples_that_overlap_one_person_moves_as_many_votes_as_are_paid_for() -> None:
    people = RNG.integers(0, 50, len(X))
    public = dp.Public(table="t", unit=dp.Unit("who"))
    kept = people != 7
    mechanism = PrivateTeachers(
        public=public,
        learner=Counting(),
        aggregator=SampledVotes(scale=1, failure=1e-6, queries=10, overlap=3),
        teachers=12,
        classes=2,
        shape=(3,),
        size=4000,
    )
    parts = [
        mechanism._partition(
            learning.Examples(X[k], Y[k], public, people=people[k]), sampling.SeededEntropy(5)
        )
        for k in (np.ones(len(X), bool), kept)
    ]
    assert sum(len(x) for x, _ in parts[1]) == 3 * kept.sum()
    differ = [len(a[0]) != len(b[0]) for a, b in zip(*parts, strict=True)]
    assert sum(differ) == 3


def test_a_labeller_is_priced_before_it_is_bought(tmp_path: Path) -> None:
    people = opened(tmp_path)
    shown = people.preview_teach(GaussianNB(), epsilon=4, **TERMS)
    assert people.spent == 0
    assert 3.9 < shown.epsilon <= 4
    assert (shown.admitted, shown.lead) == (True, shown.mechanism.error())
    assert shown.fits is not None
    assert shown.fits >= 2
    assert "60 questions" in str(shown)
    labeller = people.teach(GaussianNB(), epsilon=4, **TERMS)
    assert labeller.event == shown.mechanism.event
    assert labeller.report().epsilon == shown.epsilon
    assert not people.preview_teach(GaussianNB(), epsilon=9, **TERMS).admitted
    for terms in ({"epsilom": 1}, {"epsilon": 1, "number": 3}, {"epsilon": -1}):
        with pytest.raises(DiscreetError, match=r"epsilon must be above zero,|preview_teach has no option"):
            people.preview_teach(GaussianNB(), **{**TERMS, **terms})
    with pytest.raises(DiscreetError, match="teachers"):
        people.preview_teach(GaussianNB(), epsilon=1)


def test_one_teacher_does_not_change_the_chance_of_another() -> None:
    class Chancy(Counting):
        def fit(self, x: Any, y: Any) -> Chancy:
            draws = np.random.rand(len(x))  # noqa: NPY002
            self.rows = int(draws[-1] * 1000)
            return self

    before = np.random.get_state()[1][:5].tolist()  # noqa: NPY002
    first = ensemble.train(Chancy(), [(X[:9], Y[:9]), (X, Y)], 2, 4000, [1, 2], workers=1)
    second = ensemble.train(Chancy(), [(X[:500], Y[:500]), (X, Y)], 2, 4000, [1, 2], workers=1)
    assert first == [b"", b""] or first[1] == second[1]
    assert np.random.get_state()[1][:5].tolist() == before  # noqa: NPY002


def test_a_torch_model_teaches() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    mechanism = teachers(TorchLearner(model, epochs=8, lr=0.02), number=3)
    source = learning.Examples(X, Y, dp.Public(table="t"))
    mechanism.rehearse(source)
    state = mechanism.start(source, entropy=sampling.SeededEntropy(1))
    _, release = mechanism.answer(state, source, PublicInputs(ASKED), entropy=sampling.SeededEntropy(2))
    assert np.mean(np.array(release.value.labels) == TRUTH) > 0.8


def test_teachers_see_public_inputs_in_the_type_of_the_private_ones() -> None:
    model = torch.nn.Linear(3, 2)
    mechanism = teachers(TorchLearner(model, epochs=8, lr=0.05), number=3)
    for dtype in (np.float32, np.float64):
        source = learning.Examples(X.astype(dtype), Y, dp.Public(table="t"))
        mechanism.rehearse(source)
        state = mechanism.start(source, entropy=sampling.SeededEntropy(1))
        question = PublicInputs(ASKED.astype(np.float64))
        _, release = mechanism.answer(state, source, question, entropy=sampling.SeededEntropy(2))
        assert np.mean(np.array(release.value.labels) == TRUTH) > 0.8
    # A linear layer takes no bytes: that is known before the charge.
    images = learning.Examples((20 * X + 128).astype(np.uint8), Y, dp.Public(table="t"))
    with pytest.raises(DiscreetError, match="made-up examples"):
        mechanism.rehearse(images)
    state = teachers(GaussianNB(), number=3).start(images, entropy=sampling.SeededEntropy(1))
    with pytest.raises(DiscreetError, match="fitted to uint8"):
        teachers(GaussianNB(), number=3).answer(
            state, images, PublicInputs(ASKED), entropy=sampling.SeededEntropy(2)
        )


def test_a_table_is_taught_by_its_schema_and_answers_in_its_own_words(tmp_path: Path) -> None:
    rows = {"age": X[:, 0].tolist(), "pay": X[:, 1].tolist(), "city": ["rome" if v else "bern" for v in Y]}
    people = dp.open(
        rows,
        schema={"age": dp.Bounds(-3, 3), "pay": dp.Bounds(-3, 3), "city": dp.Categories(["bern", "rome"])},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=8, delta=1e-5),
        ledger=tmp_path / "l.ledger",
    )
    labeller = people.teach(
        LogisticRegression(), teachers=20, target="city", epsilon=8, delta=1e-5, queries=60, workers=1
    )
    labels = labeller.label({"age": ASKED[:, 0].tolist(), "pay": ASKED[:, 1].tolist()})
    assert set(labels) == {"bern", "rome"}
    assert np.mean([(label == "rome") == bool(t) for label, t in zip(labels, TRUTH, strict=True)]) > 0.75
    with pytest.raises(DiscreetError, match="these rows have no column"):
        labeller.label({"age": [1.0]})


def test_a_sanitized_cost_is_published_once_and_ends_the_labeller(tmp_path: Path) -> None:
    labeller = opened(tmp_path).teach(GaussianNB(), epsilon=4, sanitize=1.0, **TERMS)
    labeller.label(ASKED)
    figure = labeller.publish_cost()
    assert figure.epsilon >= 1
    assert "sanitized" in str(labeller.report())
    assert labeller.report().left == 0
    for again in (labeller.publish_cost, lambda: labeller.label(ASKED[:1])):
        with pytest.raises(Halted, match="the cost of this labeller"):
            again()


def test_it_must_have_been_paid_for(tmp_path: Path) -> None:
    labeller = opened(tmp_path).teach(GaussianNB(), epsilon=4, **TERMS)
    with pytest.raises(DiscreetError, match="not paid for"):
        labeller.publish_cost()


@pytest.mark.parametrize("aggregator", ["lnmax", "confident", "interactive", "stable", "sampled", "sparse"])
def test_every_aggregator_is_reached_by_its_name(tmp_path: Path, aggregator: str) -> None:
    people = opened(tmp_path, epsilon=50)
    labeller = people.teach(GaussianNB(), epsilon=40, aggregator=aggregator, **TERMS)
    chances = np.full((5, 2), 0.5) if aggregator == "interactive" else None
    labels = labeller.label(ASKED[:5], predictions=chances)
    assert len(labels) == 5
    assert set(labels) <= {0, 1, None}
    assert labeller.report().asked == 5


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"teachers": 0}, "teachers"),
        ({"classes": None}, "classes"),
        ({"classes": 1}, "classes"),
        ({"epsilon": None}, "epsilon"),
        ({"epsilon": 1, "sanitize": 1.0}, "epsilon"),
        ({"aggregator": "plurality"}, "aggregator"),
        ({"aggregator": "lnmax", "sanitize": 0.5}, "data-dependent"),
        ({"size": 10}, "bytes"),
        ({"queries": 0}, "queries"),
        ({"queries": 2.5}, "queries"),
        ({"teachers": "many"}, "teachers"),
        ({"classes": "two"}, "classes"),
        ({"epsilon": "1"}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": -1}, "epsilon"),
        ({"delta": 0}, "delta"),
        ({"delta": "tiny"}, "delta"),
        ({"sanitize": -0.5}, "sanitize"),
        ({"sanitize": "half"}, "sanitize"),
        ({"order": 20}, "sanitize"),
        ({"failures": 3}, "would ignore"),
        ({"threshold": 10}, "would ignore"),
        ({"overlap": 2}, "would ignore"),
        ({"aggregator": GNMax(variance=400, queries=60), "answers": 3}, "would ignore"),
        ({"aggregator": "sparse", "failures": 0}, "failures"),
        ({"aggregator": "confident", "answers": 0}, "answers"),
        ({"aggregator": "sampled", "overlap": 21}, "overlap"),
        ({"aggregator": "sampled", "overlap": 1.5}, "overlap"),
        ({"aggregator": None}, "aggregator"),
        ({"aggregator": 7}, "aggregator"),
        ({"workers": 0}, "workers"),
        ({"workers": "two"}, "workers"),
        ({"size": "large"}, "size"),
        ({"progress": 3}, "progress"),
        ({"number": -1}, "-1"),
        ({"number": "first"}, "first"),
        ({"target": "age"}, "target"),
        ({"features": ["age"]}, "features"),
    ],
)
def test_bad_terms_are_refused_before_anything_is_charged(
    tmp_path: Path, terms: dict[str, Any], words: str
) -> None:
    people = opened(tmp_path)
    with pytest.raises(DiscreetError, match=words):
        people.teach(GaussianNB(), **{**TERMS, "epsilon": 4, **terms})
    assert people.spent == 0


@pytest.mark.parametrize("learner", [object(), LogisticRegression, Counting("raise").predict])
def test_what_cannot_teach_is_refused(tmp_path: Path, learner: Any) -> None:
    people = opened(tmp_path)
    with pytest.raises(DiscreetError, match="the learner failed on made-up"):
        people.teach(learner, epsilon=4, **TERMS)
    assert people.spent == 0


@pytest.mark.parametrize("x", [ASKED[:, :2], ASKED[0], ASKED[:0], np.full((1, 3), np.nan), [["a", "b", "c"]]])
def test_inputs_that_are_none_are_refused_and_do_not_count(tmp_path: Path, x: Any) -> None:
    labeller = opened(tmp_path).teach(GaussianNB(), epsilon=4, **TERMS)
    with pytest.raises(DiscreetError, match=r"inputs have the shape|inputs must be finite real"):
        labeller.label(x)
    assert len(labeller.label(ASKED)) == 40


@pytest.mark.slow
def test_processes_give_the_same_teachers_as_this_one() -> None:
    parts = [(X[i::4], Y[i::4]) for i in range(4)]
    apart = ensemble.train(LogisticRegression(), parts, 2, 4000, range(4), workers=2)
    here = ensemble.train(LogisticRegression(), parts, 2, 4000, range(4), workers=1)
    assert (ensemble.votes(apart, ASKED, 2) == ensemble.votes(here, ASKED, 2)).all()


@pytest.mark.parametrize("dtype", [str, complex, object])
def test_inputs_that_are_no_real_numbers_are_refused_and_not_counted(tmp_path: Path, dtype: Any) -> None:
    labeller = opened(tmp_path).teach(LogisticRegression(), epsilon=8, **TERMS)
    with pytest.raises(dp.InvalidInput, match="finite real numbers"):
        labeller.label(ASKED.astype(dtype))
    assert (labeller.report().asked, labeller.report().left) == (0, 60)


@pytest.mark.parametrize(
    "rows",
    [None, 3, "rows", {"a": ["x"], "w": ["u"]}, {"a": [1, 2], "w": ["u"]}, {"a": [[1]], "w": ["u"]}],
)
def test_public_rows_that_are_none_are_refused_and_not_counted(rows: Any) -> None:
    table = dp.open(
        {"a": [0.2, 0.8] * 50, "w": ["u", "v"] * 50, "y": ["n", "p"] * 50},
        table="t",
        schema={"a": dp.Bounds(0, 1), "w": dp.Categories(["u", "v"]), "y": dp.Categories(["n", "p"])},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=8, delta=1e-5),
        ledger=":memory:",
    )
    terms = TERMS | {"teachers": 4, "classes": None}
    labeller = table.teach(LogisticRegression(), target="y", epsilon=8, **terms)
    with pytest.raises(dp.InvalidInput, match=r"column|rows must be a data|the columns of these rows"):
        labeller.label(rows)
    assert labeller.report().asked == 0


def test_no_more_processes_are_started_than_there_are_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def apart(jobs: Any, indices: Any, results: list[bytes | None], workers: int, progress: Any) -> None:
        started.append(workers)
        results[:] = [b""] * len(jobs)

    monkeypatch.setattr(ensemble, "_train_apart", apart)
    ensemble.train(Counting(), [(X[:5], Y[:5])] * 3, 2, 4000, [1, 2, 3], workers=10**6)
    assert started == [3]


@pytest.mark.parametrize("deadly", [None, 0, 2, 4])
def test_progress_is_the_same_whether_a_process_dies_or_not(
    monkeypatch: pytest.MonkeyPatch, deadly: int | None
) -> None:
    class Pool:
        """Runs teachers in this process; the deadly one breaks it, as the death of a process does."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.broken = False

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None: ...

        def submit(self, run: Any, *job: Any) -> Any:
            if self.broken:
                raise BrokenProcessPool
            future: Future[bytes] = Future()
            self.broken = job[-1] == deadly
            future.set_exception(BrokenProcessPool()) if self.broken else future.set_result(run(*job))
            return future

    monkeypatch.setattr(ensemble, "ProcessPoolExecutor", Pool)
    calls: list[tuple[int, int]] = []
    models = ensemble.train(
        Counting(), [(X[:5], [0, 1, 0, 1, 0])] * 5, 2, 4000, list(range(5)), workers=2,
        progress=lambda done, of: calls.append((done, of)),
    )  # fmt: skip
    assert calls == [(number, 5) for number in range(1, 6)]
    assert [not model for model in models] == [number == deadly for number in range(5)]


def test_more_questions_than_noise_is_found_for_are_refused(tmp_path: Path) -> None:
    people = opened(tmp_path)
    with pytest.raises(dp.InvalidInput, match="queries must be at most 10,000,000"):
        people.teach(LogisticRegression(), epsilon=8, **TERMS | {"queries": 10**9})
    assert people.spent == 0
