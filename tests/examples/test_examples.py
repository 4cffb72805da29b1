"""Every example runs as a newcomer would run it, is short, and says something."""

from pathlib import Path

import pytest

from .. import warm

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


# Those that train or simulate for more than 4 CPU-seconds are in `make test-all`.
LATER = {
    "ab_test_stream",
    "attacked_models",
    "audit_training",
    "federated",
    "mnist_dp_sgd",
    "mnist_pate",
    "online_learning",
    "reusable_holdout",
    "secret_in_text",
    "tanh_or_relu",
    "train_and_resume",
}


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in LATER)) for p in EXAMPLES]
)
def test_an_example_runs_and_is_short(path, tmp_path):
    assert len(path.read_text().splitlines()) < 100
    done = warm.run(path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
    if path.stem == "train_and_resume":
        assert "\nrefused: " in done.stdout, "an older checkpoint that is put back is refused"


def test_there_is_one_for_each_kind_of_use():
    named = {
        "ab_test_stream", "census_release", "hospital_survey", "leaderboard", "local_survey", "mnist_dp_sgd",
        "mnist_pate", "private_recommender", "synthetic_copy",
    }  # fmt: skip
    assert named <= {path.stem for path in EXAMPLES}
