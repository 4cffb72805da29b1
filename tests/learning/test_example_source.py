"""Examples are a source of their own kind: whatever has the protocol trains, and nothing takes them for a
table."""

import pytest
import torch
from torch import nn

import discreet as dp
from discreet import InvalidInput, Public, PublicMismatch, mechanisms
from discreet._errors import Unsupported
from discreet.learning import Examples, Trainer
from discreet.mechanisms import ExampleSource, Sequential
from discreet.mechanisms.protocols import check_source
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory, Source

SIZE = 40
PUBLIC = Public(size=SIZE)
X = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


class Computed:
    """A source that is no subclass of ours: examples that are computed when they are taken."""

    public, people, size = PUBLIC, None, SIZE

    def take(self, places):
        rows = torch.from_numpy(places)
        return X[rows], Y[rows]

    def shapes(self):
        return X[:0], Y[:0]


def trainer(public=PUBLIC):
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    loss = nn.functional.cross_entropy
    return Trainer(model, loss, public=public, noise_multiplier=1.0, clip=1.0, batch=10, steps=3)


def both_kinds():
    return [Examples(X, Y, PUBLIC), Examples.of(torch.utils.data.TensorDataset(X, Y), PUBLIC)]


def test_examples_have_the_protocol_and_are_no_table():
    for source in (*both_kinds(), Computed()):
        assert isinstance(source, ExampleSource)
        assert not isinstance(source, Source)
        assert not hasattr(source, "batches")
    assert not isinstance(Memory({"a": [1]}), ExampleSource)


def test_any_source_with_the_protocol_trains_the_same_model():
    models = [
        trainer()(source, entropy=SeededEntropy(7)).value.state_dict()
        for source in (*both_kinds(), Computed())
    ]
    for other in models[1:]:
        assert all(torch.equal(models[0][name], other[name]) for name in models[0])


def test_a_session_over_such_a_source_trains_and_keeps_the_books():
    budget = dp.Budget(epsilon=50, delta=1e-5)
    session = dp.open(Computed(), budget=budget, ledger=":memory:", large_delta=True, large_epsilon=True)
    assert session.public == PUBLIC
    assert isinstance(session.train(trainer()).value, nn.Linear)
    assert session.spent > 0
    with pytest.raises(InvalidInput, match="public facts of its own"):
        dp.open(Computed(), schema={"a": dp.Boolean()}, unit=dp.rows(), budget=budget, ledger=":memory:")
    with pytest.raises(InvalidInput, match="connected already"):
        dp.open(Computed(), budget=budget, ledger=":memory:", seconds=1)


@pytest.mark.parametrize("source", [*both_kinds(), Computed()])
def test_what_reads_columns_refuses_examples(source):
    with pytest.raises(Unsupported, match=r"without columns"):
        mechanisms.noisy_count(PUBLIC, epsilon=1)(source, entropy=Entropy())
    with pytest.raises(Unsupported, match="without columns"):
        check_source(PUBLIC, source)
    check_source(PUBLIC, source, examples=True)


def test_mechanisms_of_mechanisms_leave_the_kind_of_source_to_their_parts():
    paired = Sequential(mechanisms=(trainer(), trainer()))
    assert len(paired(Computed(), entropy=Entropy()).value) == 2


def test_examples_with_other_public_facts_are_refused():
    with pytest.raises(PublicMismatch, match="size differ"):
        trainer(Public(size=SIZE + 1))(Computed(), entropy=Entropy())
