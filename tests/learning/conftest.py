import pytest
import torch

from tests.priced_once import an_event_is_priced_once  # noqa: F401


@pytest.fixture(autouse=True)
def _one_thread_and_a_fixed_start() -> None:
    torch.set_num_threads(1)
    # all that is random here is on the processor; seeding every kind of accelerator took longer than most tests
    torch.default_generator.manual_seed(0)
