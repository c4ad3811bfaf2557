"""A source whose samples say their own number; light, because spawned processes import it."""


class Numbers:
    """Sample n is n in `size` bytes; `asked` is what this process has read of it."""

    def __init__(self, samples, size=8):
        self.samples, self.size, self.asked = samples, size, []

    def __len__(self):
        return self.samples

    def read(self, item):
        self.asked.append(item)
        return item.to_bytes(self.size, "big")
