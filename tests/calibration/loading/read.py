"""What was read of a source, as a dataset."""

import torch
from torch.utils.data import Dataset


class Read(Dataset):
    """Places of a source (`Order`) as the numbers that were read."""

    def __init__(self, source):
        self.source = source

    def __getitem__(self, place):
        return torch.tensor(int.from_bytes(self.source.read(place % len(self.source)), "big"))
