"""Two tables linked by the unit's key: what one unit moves, what it costs, and that keys match."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import discreet as dp
from discreet import Bounds, Categories, Public, accounting
from discreet._public import Neighbors, Related, Unit
from discreet._registry import from_json, to_json
from discreet.mechanisms import ExponentialMechanism, IntegerGaussian
from discreet.sampling import SeededEntropy
from discreet.synthetic import ChildTable, Domain, DomainColumn, LinkedSynthesis, SyntheticPair, open_copy
from discreet.synthetic import linked as room
from discreet.synthetic.counting import count_domain_cells
from discreet.synthetic.evidence import sample_conditional
from discreet.synthetic.linked import count_linked_cells
from discreet.synthetic.methods import METHODS
from discreet.synthetic.rows import condition
from discreet.tables import Engine, connect

VISITS = Related(
    name="visits",
    private=True,
    unit="who",
    schema={"kind": Categories(["er", "gp"]), "cost": Bounds(0, 9, nullable=False)},  # type: ignore[arg-type]
)
SCHEMA = {"sex": Categories(["f", "m"]), "age": Bounds(0, 99)}


def public_of(neighbors: Neighbors | str = "add_remove") -> Public:
    size = None if neighbors == "add_remove" else 10
    return Public(
        schema=SCHEMA,  # type: ignore[arg-type]
        unit=Unit("id"),
        table="people",
        tables=(VISITS,),
        neighbors=neighbors,  # type: ignore[arg-type]
        size=size,
    )


PUBLIC = public_of()
CHILD = ChildTable(name="visits", rows_per_unit=3)


def clinic_tables(units: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Women have two visits to the doctor that cost little, men one to the emergency room that costs much."""
    random = np.random.default_rng(seed)
    women = random.random(units) < 0.5
    numbers = np.where(women, 2, 1)
    who = np.repeat(np.arange(units), numbers)
    people = {"id": np.arange(units), "sex": np.where(women, "f", "m"), "age": random.integers(0, 100, units)}
    kind = np.where(women[who], "gp", "er")
    cost = np.where(women[who], random.integers(0, 3, len(who)), random.integers(7, 10, len(who)))
    return people, {"who": who, "kind": kind, "cost": cost}


def engine(people: dict[str, Any], visits: dict[str, Any], public: Public = PUBLIC) -> Engine:
    return connect(people, public, related={"visits": visits})


def build_method(method: str = "mst", rho: Any = 1, public: Public = PUBLIC) -> LinkedSynthesis:
    domains = room._flat_domains(public, CHILD, None, {"age": 4}, {})
    parts = [
        METHODS[method](public=facts, domain=domain, rho=rho, rows_per_unit=rows)
        for facts, domain, rows in (
            (room.parent_public(public, "visits", 3), domains[0], 1),
            (room.child_public(public, "visits"), domains[1], 3),
        )
    ]
    return LinkedSynthesis(public=public, child="visits", parents=parts[0], children=parts[1])


def hostile_tables(seed: int) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Units with many rows in either table, without a row in one, twice the same row, NULLs everywhere."""
    random = np.random.default_rng(seed)
    ids = [*random.integers(0, 6, 12).tolist(), None]
    who = [*random.integers(0, 8, 40).tolist(), None, None]
    people = {
        "id": ids,
        "sex": [["f", "m", None, "x"][i] for i in random.integers(0, 4, len(ids))],
        "age": [[5, 50, None, 1000][i] for i in random.integers(0, 4, len(ids))],
    }
    visits = {
        "who": who,
        "kind": [["er", "gp", None, "zz"][i] for i in random.integers(0, 4, len(who))],
        "cost": [[0, 5, None, -7][i] for i in random.integers(0, 4, len(who))],
    }
    return people, visits


def without_unit(table: dict[str, list[Any]], key: str, unit: int) -> dict[str, list[Any]]:
    rows_left = [i for i, one in enumerate(table[key]) if one != unit]
    return {name: [column[i] for i in rows_left] for name, column in table.items()}


def test_a_unit_of_one_type_of_numbers_is_not_two_units_of_another() -> None:
    """As doubles 2**53 and 2**53 + 1 are one number, and a visit would count for both people."""
    ids = pa.array([2**53, 2**53 + 1], pa.uint64())
    people = pa.table({"id": ids, "sex": ["f", "f"], "age": [30, 30]})
    visits = pa.table({"who": pa.array([float(2**53)]), "kind": ["gp"], "cost": [1]})
    parents, children = count_linked_cells(build_method(), engine(people, visits), SeededEntropy(1))  # type: ignore[arg-type]
    assert parents.table(range(len(parents.sizes))).sum() == 2
    assert children.table(range(len(children.sizes))).sum() <= 1
    exact = visits.set_column(0, "who", ids.slice(1, 1))
    children = count_linked_cells(build_method(), engine(people, exact), SeededEntropy(1))[1]  # type: ignore[arg-type]
    assert children.table(range(len(children.sizes))).sum() == 1


@pytest.mark.parametrize(
    ("ids", "who"),
    [
        (pa.array([0.0, 1.5]), pa.array([-0.0, 0.0, 1.5])),
        (
            pa.array(["7", "1.5"]).cast(pa.decimal128(12, 4)),
            pa.array(["7", "7.0", "1.50"]).cast(pa.decimal128(9, 2)),
        ),
    ],
    ids=["zeros", "scales"],
)
def test_equal_ids_are_one_unit_in_both_tables(ids: pa.Array, who: pa.Array) -> None:
    people = pa.table({"id": ids, "sex": ["f", "f"], "age": [30, 30]})
    visits = pa.table({"who": who, "kind": ["gp"] * 3, "cost": [1, 2, 3]})
    source = engine(people, visits)  # type: ignore[arg-type]
    build_method().rehearse(source)
    children = count_linked_cells(build_method(), source, SeededEntropy(1))[1]
    assert children.table(range(len(children.sizes))).sum() == 3


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_one_unit_moves_parents_by_one_row_and_children_by_no_more_than_the_bound(seed: int) -> None:
    """Every unit of a hostile pair of tables is taken out of both, under the same key."""
    method = build_method()
    people, visits = hostile_tables(seed)
    full = count_linked_cells(method, engine(people, visits), SeededEntropy(seed))
    largest = [0, 0]
    for unit in range(8):
        smaller = count_linked_cells(
            method,
            engine(without_unit(people, "id", unit), without_unit(visits, "who", unit)),
            SeededEntropy(seed),
        )
        for k, (a, b) in enumerate(zip(full, smaller, strict=True)):
            every = list(range(len(a.sizes)))
            change = int(np.abs(a.table(every) - b.table(every)).sum())
            assert change <= (1, 3)[k]
            largest[k] = max(largest[k], change)
    assert largest == [1, 3]


def test_each_method_is_priced_for_what_a_unit_moves_under_each_relation() -> None:
    for relation, factor in (("add_remove", 1), ("replace", 2)):
        method = build_method(public=public_of(relation))
        assert method.parents.count_sensitivity.l2_squared == factor
        assert method.children.count_sensitivity.l2_squared == 9 * factor
        assert method.event == accounting.compose([method.parents.event, method.children.event])


@pytest.mark.parametrize("name", METHODS)
def test_what_is_drawn_costs_no_more_than_the_composed_price(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[Fraction] = []
    add, pick = IntegerGaussian.__call__, ExponentialMechanism.pick

    def noise(this: Any, values: Any, /, *, entropy: Any) -> Any:
        spent.append(Fraction(this.l2_squared) / (2 * this.variance))
        return add(this, values, entropy=entropy)

    def choose(this: Any, scores: Any, entropy: Any) -> Any:
        spent.append(Fraction(this.epsilon) ** 2 / 8)
        return pick(this, scores, entropy)

    monkeypatch.setattr(IntegerGaussian, "__call__", noise)
    monkeypatch.setattr(ExponentialMechanism, "pick", choose)
    method = build_method(name, Fraction(1, 10))
    method(engine(*clinic_tables(200)), entropy=SeededEntropy(1))
    assert Fraction(19, 100) <= sum(spent) <= Fraction(2, 10)
    assert float(sum(spent)) <= accounting.zcdp(method.event)[0] * (1 + 1e-12)


@pytest.fixture(scope="module")
def people() -> Any:
    rows, visits = clinic_tables(3000)
    return dp.open(
        rows,
        schema=PUBLIC,
        related={"visits": visits},
        budget=dp.Budget(epsilon=5, delta=1e-6),
        ledger=":memory:",
    )


def test_a_session_copies_two_tables_whose_keys_match(people: Any, tmp_path: Path) -> None:
    terms: dict[str, Any] = {"epsilon": 3, "child": CHILD, "bins": {"age": 4}, "method": "mst"}
    pair = people.synthesize(1000, seed=1, **terms)
    spent = people.spent
    assert 2.9 < spent <= 3
    frames = pair.to_pandas()
    parents, children = frames["people"], frames["visits"]
    assert list(parents.columns) == ["id", "sex", "age"]
    assert list(children.columns) == ["who", "kind", "cost"]
    assert parents.id.is_unique
    assert set(children.who) <= set(parents.id)
    joined = children.merge(parents, left_on="who", right_on="id")
    numbers = children.groupby("who").size().reindex(parents.id, fill_value=0).to_numpy()
    assert numbers.max() <= 3
    # What made the data: two visits of women to the doctor, one of men to the emergency room.
    assert abs(numbers[parents.sex == "f"].mean() - 2) < 0.1
    assert abs(numbers[parents.sex == "m"].mean() - 1) < 0.1
    assert ((joined.sex == "f") == (joined.kind == "gp")).mean() > 0.9
    assert joined[joined.sex == "m"].cost.mean() - joined[joined.sex == "f"].cost.mean() > 5
    text = "SELECT sex, COUNT(*) AS n FROM people JOIN visits ON id = who GROUP BY sex ORDER BY sex"
    assert sum(pair.sql(text).to_arrow()["n"].to_pylist()) == len(children)
    again = people.synthesize(1000, seed=1, **terms)
    assert again.children == pair.children
    assert set(pair.report()) == {"people", "visits"}
    assert people.spent == spent
    pair.to_csv(tmp_path / "copies")
    pair.to_parquet(tmp_path / "copies")
    card = json.loads((tmp_path / "copies" / "card.json").read_text())
    assert card["child"]["keys"] == ["id", "who"]
    assert len((tmp_path / "copies" / "visits.csv").read_text().splitlines()) == len(children) + 1
    with pytest.raises(dp.InvalidInput, match="no ± of the truth"):
        pair.sql(text).interval()
    opened_again = open_copy(tmp_path / "copies")
    assert opened_again.card == card
    assert opened_again.sql(text).to_arrow() == pair.sql(text).to_arrow()
    (tmp_path / "copies" / "card.json").write_text("{}")
    with pytest.raises(dp.InvalidInput, match="no folder of a synthetic copy"):
        open_copy(tmp_path / "copies")


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_real_files_of_the_tables_names_are_not_written_over(people: Any, tmp_path: Path, end: str) -> None:
    pair = people.synthesize(50, epsilon=0.1, child="visits", rows_per_unit=1, method="independent", seed=1)
    write = pair.to_csv if end == "csv" else pair.to_parquet
    for name in (f"visits.{end}", f"people.{end}", "card.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("the only copy")
        with pytest.raises(dp.InvalidInput, match="exists already"):
            write(folder)
        assert [p.name for p in folder.iterdir()] == [name]
        assert (folder / name).read_text() == "the only copy"
        write(folder, overwrite=True)
        assert len(list(folder.iterdir())) == 3
        assert open_copy(folder).sql("SELECT COUNT(*) AS n FROM people").to_arrow()["n"].to_pylist() == [50]


def test_a_folder_does_not_mix_the_tables_of_one_copy_with_the_card_of_another(tmp_path: Path) -> None:
    released = build_method("independent")(engine(*clinic_tables(20)), entropy=SeededEntropy(1))
    first, second = (SyntheticPair.of(released.value, released.event, rows=n, seed=1) for n in (5, 6))
    first.to_parquet(tmp_path / "copy")
    first.to_csv(tmp_path / "copy")
    with pytest.raises(dp.InvalidInput, match="belongs to another copy"):
        second.to_csv(tmp_path / "copy", overwrite=True)
    assert open_copy(tmp_path / "copy").card["rows"] == 5


def test_the_default_number_of_units_is_a_noisy_total(people: Any) -> None:
    pair = people.synthesize(epsilon=1, child="visits", rows_per_unit=2, method="independent")
    assert abs(pair.rows - 3000) < 300


def test_a_run_of_two_tables_goes_on_after_a_stop_and_costs_no_more(tmp_path: Path) -> None:
    rows, visits = clinic_tables(200)
    budget = dp.Budget(epsilon=5, delta=1e-6)
    people = dp.open(
        rows, schema=PUBLIC, related={"visits": visits}, budget=budget, ledger=tmp_path / "l.ledger"
    )
    reported: list[Any] = []

    def stop(facts: Any) -> None:
        reported.append(facts)
        if len(reported) == 4:
            raise KeyError("the light went out")

    terms: dict[str, Any] = {"epsilon": 1, "child": CHILD, "method": "mst", "checkpoint": tmp_path / "run"}
    with pytest.raises(KeyError):
        people.synthesize(50, progress=stop, **terms)
    assert reported[-1]["steps"] == 6
    spent = people.spent
    assert isinstance(people.synthesize(50, resume=True, **terms), SyntheticPair)
    assert people.spent == spent


@pytest.mark.parametrize("done", [1, 20, 60, 70])
def test_lost_steps_are_counted_in_the_table_that_they_belong_to(
    done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build_method("aim", Fraction(1, 10))
    source = engine(*clinic_tables(60))
    run = method.start(source, entropy=SeededEntropy(1))
    run.state.steps = run.steps_taken = done
    raw = run.dump()
    lost: dict[str, int] = {}
    monkeypatch.setattr(
        METHODS["aim"], "forfeit", lambda self, state, steps: lost.__setitem__(self.public.table, steps)
    )
    method.restore(source, raw, done + 10, entropy=SeededEntropy(1))
    first = method.parents.length
    below = min(done + 10, first) - min(done, first)
    assert lost == {"people": below, "visits": 10 - below}


def test_descriptions_are_complete() -> None:
    method = build_method()
    assert from_json(json.loads(json.dumps(to_json(method)))) == method
    fitted = method(engine(*clinic_tables(50)), entropy=SeededEntropy(1)).value
    assert from_json(json.loads(json.dumps(to_json(fitted)))) == fitted


def test_methods_for_other_tables_or_more_rows_are_refused() -> None:
    method = build_method()
    number = DomainColumn(column="visits.rows", edges=(0, 2, 4), missing=False)
    coarse = Domain(columns=(*method.parents.domain.columns[:-1], number))
    for wrong in (
        {"parents": dataclasses.replace(method.parents, rows_per_unit=2)},
        {"children": method.parents},
        {"public": dataclasses.replace(PUBLIC, neighbors=Neighbors("replace"), size=9)},
        {"child": "people"},
        {"parents": None},
        {"parents": dataclasses.replace(method.parents, domain=coarse)},
    ):
        with pytest.raises(dp.DiscreetError):
            dataclasses.replace(method, **wrong)
    # A column of the parents' table that is among the children's own would be looked for in their table.
    sex, age, number = method.parents.domain.columns
    children = Domain(columns=(sex, age, *method.children.domain.columns[2:]))
    with pytest.raises(dp.InvalidInput, match="the children has column 'age' of the first table"):
        dataclasses.replace(
            method,
            parents=dataclasses.replace(method.parents, domain=Domain(columns=(sex, number))),
            children=dataclasses.replace(method.children, domain=children),
        )


def test_no_step_of_two_tables_is_run_beyond_those_that_are_paid_for() -> None:
    method = build_method("independent")
    run = method.start(engine(*clinic_tables(20)), entropy=SeededEntropy(1))
    run.step()
    raw = run.dump()
    run.step()
    with pytest.raises(dp.Halted, match="all 2 steps are taken"):
        run.step()
    with pytest.raises(dp.InvalidInput, match="holds 1 steps"):
        method.restore(run.source, raw, 0, entropy=SeededEntropy(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"child": "visit"}, "rows_per_unit"),
        ({"child": "visit", "rows_per_unit": 3}, "Did you mean 'visits'"),
        ({"child": CHILD, "rows_per_unit": 3}, "only"),
        ({"child": 3}, "ChildTable"),
        ({"child": ChildTable(name="visits", rows_per_unit=3, columns=[])}, "nothing to copy"),
        ({"child": ChildTable(name="visits", rows_per_unit=3, columns=["nobody"])}, "declared"),
        ({"child": ChildTable(name="visits", rows_per_unit=3, bins={"kind": 3})}, "takes no bins"),
        ({"child": ChildTable(name="visits", rows_per_unit=3, constraints=["cost > kind"])}, "two numbers"),
        ({"child": CHILD, "options": {"constraints": ()}}, "option of synthesize itself"),
    ],
)
def test_bad_terms_are_refused_and_nothing_is_charged(people: Any, options: Any, words: str) -> None:
    spent = people.spent
    with pytest.raises(dp.DiscreetError, match=words):
        people.synthesize(epsilon=1, **options)
    assert people.spent == spent


@pytest.mark.parametrize(
    "wrong", [{"name": 3}, {"rows_per_unit": 0}, {"rows_per_unit": 10**9}, {"share": 1}, {"constraints": 3}]
)
def test_bad_child_tables_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(dp.DiscreetError):
        ChildTable(**({"name": "visits", "rows_per_unit": 3} | wrong))


def test_keys_of_two_kinds_are_refused_before_the_charge() -> None:
    rows, visits = clinic_tables(20)
    visits["who"] = np.array([str(w) for w in visits["who"]])
    people = dp.open(
        rows,
        schema=PUBLIC,
        related={"visits": visits},
        budget=dp.Budget(epsilon=5, delta=1e-6),
        ledger=":memory:",
    )
    with pytest.raises(dp.InvalidInput, match="rows would not match"):
        people.synthesize(epsilon=1, child="visits", rows_per_unit=2, method="mst")
    assert people.spent == 0


def test_empty_tables_have_copies_too() -> None:
    rows, visits = clinic_tables(1)
    none = [{name: column[:0] for name, column in table.items()} for table in (rows, visits)]
    for source in (engine(*none), engine(rows, none[1]), engine(none[0], visits)):
        method = build_method("mst", Fraction(1, 2))
        pair = SyntheticPair.of(method(source, entropy=SeededEntropy(2)).value, method.event, rows=5, seed=1)
        assert pair.parents.num_rows == 5
        assert set(pair.children["who"].to_pylist()) <= set(range(1, 6))


def test_rows_drawn_given_codes_follow_the_conditional_law() -> None:
    """Against the model conditioned by the other route, for every combination of what is given: 4,000 draws each, so
    that 0.06 off is a false alarm in a million or less for each share (Hoeffding: 2 exp(-2 n t^2) = 6e-13)."""
    method = build_method("aim", 5)
    pair = SyntheticPair.of(
        method(engine(*clinic_tables(500)), entropy=SeededEntropy(3)).value, method.event, rows=5, seed=1
    )
    from discreet.synthetic.generation import fit_model

    model = fit_model(pair.fitted.children, iterations=200)
    for first in range(3):
        given = {0: first, 2: 1}
        truth = condition(model, given)
        columns = sample_conditional(
            model, {a: np.full(4000, code) for a, code in given.items()}, np.random.default_rng(first)
        )
        assert (columns[0] == first).all()
        for a in (1, 3):
            shares = np.bincount(columns[a], minlength=model.tree.sizes[a]) / 4000
            expected = truth.project([a]) / truth.total
            assert np.abs(shares - expected).max() < 0.06


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("coded", "chosen"),
        ("cells_chosen", "cells_coded"),
        ('a"b', "cells__child_chosen"),
        ("u", "k"),
        ("x", "X y"),
    ],
)
def test_no_name_of_a_table_or_column_is_taken_for_one_of_ours(first: str, second: str) -> None:
    visits = Related(name=second, private=True, unit="k", schema={"c0": Bounds(0, 9), "n": Bounds(0, 9)})  # type: ignore[arg-type]
    public = Public(
        schema={"p0": Bounds(0, 9), "r": Bounds(0, 9)}, unit=Unit("c0"), table=first, tables=(visits,)
    )  # type: ignore[arg-type]
    rows = {"c0": [1, 2, 3], "p0": [4, 5, 6], "r": [7, 8, 9]}
    more = {"k": [1, 1, 3, 9], "c0": [0, 1, 2, 3], "n": [3, 4, 5, 6]}
    child = ChildTable(name=second, rows_per_unit=2)
    method = LinkedSynthesis.for_privacy(public, child, epsilon=1, delta=1e-6, method="independent")
    parents, children = count_linked_cells(
        method, connect(rows, public, related={second: more}), SeededEntropy(1)
    )
    # NULL is the eleventh code; unit 9 has no row of the first table.
    assert [list(map(int, code)) for code in zip(*parents.codes, strict=True)] == [
        [5, 8, 0],
        [6, 9, 1],
        [4, 7, 2],
    ]
    assert sorted(zip(*(c.tolist() for c in children.codes), strict=True)) == [
        (4, 7, 0, 3),
        (4, 7, 1, 4),
        (6, 9, 2, 5),
    ]
    flat = Domain(columns=method.parents.domain.columns[:-1])
    assert (
        count_domain_cells(
            connect(rows, public, related={second: more}), flat, 1, SeededEntropy(1)
        ).counts.sum()
        == 3
    )
