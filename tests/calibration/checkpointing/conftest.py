"""One thread for everything here: two would wait for each other where others use the machine."""

from dataclasses import dataclass, field

import pytest
import torch

from calibration.checkpointing.async_save import AsyncSave
from calibration.checkpointing.engine import TorchSave


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[TorchSave, AsyncSave], ids=["torch.save", "async_save"])
def engine(request):
    """Return a way of writing, anew at each call."""
    return request.param


@dataclass
class Told:
    """The phases that an engine went through; `at` one of them `then` is called."""

    at: str = ""
    then: object = None
    phases: list = field(default_factory=list)

    def __call__(self, phase):
        if not (phase == "write" and self.phases[-1:] == ["write"]):
            self.phases.append(phase)
        if phase == self.at:
            self.then()
