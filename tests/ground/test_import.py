"""`import discreet` is quick and needs no extra; each package loads on first use."""

import subprocess
import sys
from pathlib import Path

import pytest

from .. import warm

HEAVY = (
    "torch",
    "sklearn",
    "matplotlib",
    "pyspark",
    "duckdb",
    "fastapi",
    "scipy",
    "pyarrow",
    "numpy",
    "rich",
    "typer",
)


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_few_modules_and_nothing_heavy():
    """Measured: 57 modules beyond those of a bare interpreter, in 0.1 CPU-seconds."""
    bare = set(fresh("import sys; print(*sys.modules)").split())
    loaded = set(fresh("import sys, discreet; print(*sys.modules)").split()) - bare
    assert len(loaded) < 150
    assert not set(HEAVY) & loaded


def test_rooms_load_on_first_use_and_are_listed():
    out = fresh(
        "import discreet as dp; print(dp.accounting.__name__, dp.tables.__name__, 'mechanisms' in dir(dp))"
    )
    assert out.split() == ["discreet.accounting", "discreet.tables", "True"]


def test_no_room_needs_an_extra():
    blocked = (
        "import sys\nfor name in ('torch', 'sklearn', 'matplotlib', 'pyspark', 'duckdb', 'fastapi'): "
        "sys.modules[name] = None\n"
    )
    out = fresh(
        blocked + "import discreet as dp; dp.mechanisms, dp.sampling, dp.accounting, dp.tables; print('ok')"
    )
    assert out.strip() == "ok"


@pytest.mark.parametrize(
    ("package", "line", "extra"),
    [
        ("sklearn", "discreet.tabular.Ridge", "tabular"),
        ("sklearn", "discreet.tabular.PrivatePipeline", "tabular"),
        ("sklearn", "from discreet.tabular import LogisticRegression, PrivateSearch", "tabular"),
        ("sklearn", "import discreet.tabular.estimators", "tabular"),
        ("torch", "import discreet.learning.pate", "learn"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, line: str, extra: str, tmp_path: Path
):
    done = warm.run(
        f"import sys; assert '{package}' not in sys.modules; sys.modules['{package}'] = None\n"
        f"import discreet\ntry:\n    {line}\nexcept discreet.MissingExtra as error:\n    print(error)",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert f"Install it with: pip install 'discreet[{extra}]'" in done.stdout


def test_questions_with_one_count_load_no_scipy():
    """Measured: scipy took 0.27 of the 0.28 CPU-seconds of the first HAVING COUNT(*)."""
    out = fresh(
        "import sys, discreet as dp\n"
        "people = dp.open(dp.tables.rand_hie(), budget=dp.Budget(epsilon=1), ledger=':memory:')\n"
        "people.sql('SELECT COUNT(*) FROM rand_hie', epsilon=0.1)\n"
        "people.sql('SELECT health, COUNT(*) FROM rand_hie GROUP BY health HAVING COUNT(*) > 9', epsilon=0.1)\n"
        "print('scipy' in sys.modules)\n"
    )
    assert out.strip() == "False"


def test_tables_are_learnt_from_without_torch():
    out = fresh(
        "import sys, discreet as dp\n"
        "dp.tabular.LogisticRegression, dp.tabular.PrivateSearch, dp.tabular.PrivatePipeline\n"
        "print(sorted(name for name in sys.modules if name.startswith(('torch', 'discreet.learning'))))\n"
    )
    assert out.strip() == "[]"


def test_what_is_loaded_by_its_name_is_there():
    """A module that is renamed is found by the names in strings, too: `discreet serve` once was not."""
    from importlib import import_module

    from discreet import _registry, learning, tabular
    from discreet.app import cli, demo, web
    from discreet.app.web import workers
    from discreet.app.web.verbs import VERBS

    for command in cli.COMMANDS:
        assert cli.load(command) is not None
    for package in (web, learning, tabular):
        for name in package.__all__:
            assert getattr(package, name) is not None
    for verb in VERBS.values():
        assert callable(getattr(verb.load(), verb.name))
    for chapter in demo.CHAPTERS:
        assert demo.chapter(chapter).TITLE
    for modules in _registry.PACKAGES.values():
        for module in modules:
            import_module(f"discreet.{module}")
    workers.load_packages()


def test_names_that_are_loaded_late_are_listed_and_a_slip_is_answered():
    import discreet as dp

    for package, name in (
        (dp.tabular, "LogisticRegression"),
        (dp.query, "WorkloadQuery"),
        (dp.learning, "Trainer"),
    ):
        assert name in dir(package)
        with pytest.raises(AttributeError, match=name):
            getattr(package, name[:-1])


def test_an_unknown_name_is_an_attribute_error():
    import discreet

    assert not hasattr(discreet, "no_such_room")
