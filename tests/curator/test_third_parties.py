"""A third party's mechanism: allowed by name only, charged as it states, and marked wherever its release goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import discreet as dp
from discreet import _registry, mechanisms
from discreet.curator import Ledger, books

CODE = '''
"""Releases the number of rows, with the noise of another package."""
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from discreet._require import PRICE, Real
from discreet.accounting import DiscreteLaplace
from discreet.mechanisms import Count, IntegerLaplace, Interactive, Mechanism, release
from discreet import Public

@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Mechanism):
    public: Public
    epsilon: Annotated[Real, PRICE]

    @property
    def noise(self):
        return IntegerLaplace.for_epsilon(self.epsilon, sensitivity=1)

    @property
    def event(self):
        return self.noise.event

    def __call__(self, source, /, *, entropy):
        noisy = int(self.noise(int(Count()(source)), entropy=entropy))
        return release(noisy, event=self.event, entropy=entropy)

@dataclass(frozen=True, slots=True, kw_only=True)
class Live(Interactive):
    public: Public

    @property
    def event(self):
        return DiscreteLaplace(scale=Fraction(1), sensitivity=1)

    def start(self, source, *, entropy):
        return {"asked": 0}

    def answer(self, state, source, question, *, entropy):
        return {"asked": state["asked"] + 1}, release(state["asked"], event=self.event, entropy=entropy)

@dataclass
class Loose(Mechanism):
    public: Public

    def __call__(self, source, /, *, entropy):
        raise AssertionError

function = print
'''


def install(folder: Path, package: str, entries: dict[str, str], code: str = CODE) -> None:
    """Lay a package and its metadata into a folder, as pip does."""
    module = package.replace("-", "_").lower()
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    points = "\n".join(f"{name} = {value}" for name, value in entries.items())
    (metadata / "entry_points.txt").write_text(f"[discreet.mechanisms]\n{points}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of modules; the registry is as before after the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for name in ("_CLASSES", "_TAGS", "_OTHERS"):
        monkeypatch.setattr(_registry, name, dict(getattr(_registry, name)))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def opened(tmp_path, **options):
    return dp.open(
        {"x": [1, 2, 3]}, table="t", schema={"x": dp.Bounds(0, 9)}, unit=dp.rows(), version="1",
        budget=dp.Budget(epsilon=10), ledger=tmp_path / "t.ledger", **options,
    )  # fmt: skip


def test_what_is_allowed_has_a_description_is_charged_stored_and_marked(site, tmp_path):
    install(site, "Acme-DP", {"acme_dp.Rows": "acme_dp:Rows"})
    rows = mechanisms.allow("acme_dp.Rows")
    assert mechanisms.allow("acme_dp.Rows") is rows, "allowed twice, entered once"
    people = opened(tmp_path)
    asked = rows(public=people.public, epsilon=1)
    assert _registry.from_json(json.loads(json.dumps(_registry.to_json(asked)))) == asked
    first = people.ask(asked)
    assert first.mark == "on the word of Acme-DP 1.2"
    assert "mark='on the word of Acme-DP 1.2'" in repr(first)
    again = opened(tmp_path).ask(asked)
    assert (again.value, again.mark) == (first.value, first.mark), "served from the ledger, with its mark"
    (charge,) = people.ledger.entries(kind=books.SPENDING)
    assert charge.body["trust"] == "Acme-DP 1.2"
    assert charge.body["mechanism"]["type"] == "acme_dp.Rows"
    assert people.spent == pytest.approx(1, abs=1e-9)
    with pytest.raises(dp.InvalidInput, match=r"epsilon must be above zero, got -1"):
        rows(public=people.public, epsilon=-1)


def test_the_mark_reaches_what_contains_it_and_the_answers_of_what_is_live(site, tmp_path):
    install(site, "acme-dp", {"acme_dp.Rows": "acme_dp:Rows", "acme_dp.Live": "acme_dp:Live"})
    rows, live = map(mechanisms.allow, ("acme_dp.Rows", "acme_dp.Live"))
    people = opened(tmp_path)
    both = mechanisms.Sequential(
        mechanisms=[rows(public=people.public, epsilon=1), mechanisms.noisy_count(people.public, epsilon=1)]
    )
    assert people.ask(both).mark == "on the word of acme-dp 1.2"
    handle = people.start(live(public=people.public))
    assert handle.answer("anything").mark == "on the word of acme-dp 1.2"
    resumed = opened(tmp_path).curator.resume(live(public=people.public), handle.number)
    assert resumed.answer("more").mark == "on the word of acme-dp 1.2"
    assert people.ask(mechanisms.noisy_count(people.public, epsilon=1)).mark == "by proof"


def test_code_of_the_steward_is_marked_as_that(site, tmp_path):
    install(site, "acme-dp", {})
    import acme_dp

    people = opened(tmp_path)
    assert (
        people.ask(acme_dp.Rows(public=people.public, epsilon=1)).mark == "on the word of the steward's code"
    )


def test_the_schema_file_allows_by_name(site, tmp_path):
    install(site, "acme-dp", {"acme_dp.Rows": "acme_dp:Rows"})
    (tmp_path / "t.csv").write_text("x\n1\n2\n")
    schema = tmp_path / "t.toml"
    columns = 'table = "t"\nunit = "row"\n{}\n[columns.x]\ntype = "number"\nlower = 0\nupper = 9\n'
    options = {"schema": schema, "budget": dp.Budget(epsilon=1), "ledger": ":memory:"}
    schema.write_text(columns.format("mechanisms = 3"))
    with pytest.raises(dp.InvalidInput, match="mechanisms must be a list, got 3"):
        dp.open(tmp_path / "t.csv", **options)
    schema.write_text(columns.format('mechanisms = ["acme_dp.Rows"]'))
    dp.open(tmp_path / "t.csv", **options)
    assert "acme_dp.Rows" in _registry.registered()


def test_a_description_imports_nothing_that_was_not_allowed(site, tmp_path):
    install(site, "acme-dp", {"acme_dp.Rows": "acme_dp:Rows"}, code="raise SystemExit('was imported')")
    with pytest.raises(dp.DescriptionError, match=r"'acme_dp\.Rows' is not a known type"):
        _registry.from_json({"type": "acme_dp.Rows", "epsilon": 1})
    assert "acme_dp" not in sys.modules


def test_a_process_that_has_not_allowed_it_reads_the_ledger_and_asks_its_own(site, tmp_path):
    install(site, "acme-dp", {"acme_dp.Rows": "acme_dp:Rows"})
    people = opened(tmp_path)
    people.ask(mechanisms.allow("acme_dp.Rows")(public=people.public, epsilon=1))
    script = f"""
import discreet as dp
from discreet import mechanisms
people = dp.open({{"x": [1, 2, 3]}}, table="t", schema={{"x": dp.Bounds(0, 9)}}, unit=dp.rows(), version="1",
    ledger={str(tmp_path / "t.ledger")!r})
people.ask(mechanisms.noisy_count(people.public, epsilon=2))
print(people.spent, people.ledger.verify())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0].startswith("3"), done.stdout
    assert Ledger(tmp_path / "t.ledger").verify() == []


@pytest.mark.parametrize(
    ("package", "name", "value", "message"),
    [
        ("acme-dp", "acme_dp.Rows", "acme_dp:Nothing", "cannot be loaded"),
        ("acme-dp", "acme_dp.Rows", "os:path", "is no mechanism"),
        ("acme-dp", "acme_dp.Rows", "acme_dp:function", "is no mechanism"),
        ("acme-dp", "acme_dp.Rows", "acme_dp:Loose", "no frozen dataclass of its own"),
        ("acme-dp", "acme_dp.Rows", "discreet.mechanisms:AddNoise", "no frozen dataclass of its own"),
        ("acme-dp", "other.Rows", "acme_dp:Rows", "may not declare other.Rows"),
        ("acme-dp", "query.Query", "acme_dp:Rows", "may not declare query.Query"),
        ("query", "query.Query", "query:Rows", "a tag of discreet's own"),
        ("discreet", "discreet.Rows", "discreet_:Rows", "a tag of discreet's own|cannot be loaded"),
    ],
)
def test_what_is_not_a_packages_own_is_refused(site, package, name, value, message):
    install(site, package, {name: value})
    with pytest.raises(dp.DiscreetError, match=message):
        mechanisms.allow(name)
    assert name == "query.Query" or name not in _registry.registered()


@pytest.mark.parametrize(
    "name", ["", "os.system", "acme_dp", "acme_dp.a.b", "../x.Y", "acme_dp.Rows\n", 3, "É.X"]
)
def test_a_hostile_name_is_refused(site, name):
    install(site, "acme-dp", {"acme_dp.Rows": "acme_dp:Rows"})
    with pytest.raises(dp.InvalidInput, match=r"must be a (package|text)|no installed packages declare"):
        mechanisms.allow(name)
    assert "acme_dp" not in sys.modules


def test_two_packages_cannot_share_a_name_nor_two_names_a_class(site):
    install(site, "acme-dp", {"acme_dp.Rows": "acme_dp:Rows", "acme_dp.Other": "acme_dp:Rows"})
    install(site, "other", {"acme_dp.Live": "acme_dp:Live"})
    install(site, "third", {"acme_dp.Live": "acme_dp:Live"})
    mechanisms.allow("acme_dp.Rows")
    with pytest.raises(dp.DescriptionError, match="one of them is taken"):
        mechanisms.allow("acme_dp.Other")
    with pytest.raises(dp.InvalidInput, match="2 installed packages declare"):
        mechanisms.allow("acme_dp.Live")
