import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_a_fixed_start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
