from collections.abc import Iterator

import pytest
import torch

from tests.learning.placement import placement
from tests.priced_once import an_event_is_priced_once  # noqa: F401


@pytest.fixture(autouse=True)
def _one_thread_and_a_fixed_start() -> None:
    torch.set_num_threads(1)
    # all that is random here is on the processor; seeding every kind of accelerator took longer than most tests
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_without_a_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--devices`: no tensor is made without a device, and none is read by numpy where it is."""
    if not request.config.getoption("--devices") or request.node.get_closest_marker("one_device"):
        yield
        return
    with placement() as found:
        yield
    assert not found, "\n".join(sorted(found))
