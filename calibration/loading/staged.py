"""A staged loader (as DALI's pipelines): threads that only fetch, before torch's workers, which then only prepare."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from torch import Tensor
from torch.utils.data import Dataset, Sampler

from calibration.loading.decoding import Prepared

Sample = tuple[int, bytes]
"""A place and what was fetched for it."""


class Fetched(Sampler[list[Sample]]):
    """Batches of fetched samples for `Decoded`: `threads` fetch, each `prefetch` batches ahead.

    A DataLoader asks its sampler in the training process, once its workers have started; the bytes go to them with
    their orders.
    """

    def __init__(self, data: Prepared, places: Iterable[int], batch: int, threads: int, prefetch: int) -> None:
        self.data, self.places, self.batch, self.threads = data, places, batch, threads
        self.ahead = prefetch * threads * batch

    def __iter__(self) -> Iterator[list[Sample]]:
        places, coming = iter(self.places), deque[tuple[int, Future[bytes]]]()
        fetchers = ThreadPoolExecutor(self.threads)

        def start(number: int) -> None:
            for place in islice(places, number):
                coming.append((place, fetchers.submit(self.data.fetch, place)))

        try:
            start(self.ahead)
            while coming:
                batch = [coming.popleft() for _ in range(min(self.batch, len(coming)))]
                start(len(batch))
                yield [(place, data.result()) for place, data in batch]
        finally:  # a process forked beside a thread may inherit a lock that the thread would have opened
            fetchers.shutdown(cancel_futures=True)


class Decoded(Dataset[Tensor]):
    """What was fetched, prepared."""

    def __init__(self, data: Prepared) -> None:
        self.data = data

    def __getitem__(self, sample: Sample) -> Tensor:
        return self.data.prepare(*sample)
