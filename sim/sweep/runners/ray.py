"""Runs tasks on a Ray cluster: of this machine, or of many, by address."""

import os
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

from sim.specs import InputError
from sim.sweep.closing import Closing
from sim.sweep.runners.base import MAX_LOSSES, TaskFailed, lost

LOOPBACK = "127.0.0.1"
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Off, Ray takes the loopback address as the node's, on every system; its own default is the outward one."""

OBJECT_STORE_BYTES = 80 * 2**20
AHEAD = 2
GRACE_S = 0.5
"""For so long tasks may still end by themselves when no more of them are wanted."""


def _token_can_be_kept() -> bool:
    """Return whether the token that Ray makes for a cluster of its own is there, or can be written."""
    folder = Path.home() / ".ray"
    return (folder / "auth_token").exists() or os.access(folder if folder.exists() else folder.parent, os.W_OK)


class Ray(Closing):
    """A Ray cluster: the one at `address` ("auto": that of this machine), or else a local one for as long as it runs.

    A local one listens on 127.0.0.1 alone, shows no dashboard and reports no usage. `workers`: cores that a local one
    has, and tasks that run at once.
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        if workers is not None and not 1 <= workers <= 100_000:
            raise InputError("workers", workers, "a whole number from 1 to 100000")
        # Read when Ray is imported: no usage reports and, of a cluster of this machine's own, no address but loopback.
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"} | ({} if address else {LOCAL_ONLY: "0"})
        if not (address or _token_can_be_kept()):
            os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))
        try:
            self.ray: Any = import_module("ray")
        except ImportError:
            raise InputError("runner", "ray", "pool; for ray install it: pip install 'trainsim[ray]'") from None
        self.address, self.asked = address, workers
        self.workers = workers or os.cpu_count() or 1
        self.losses, self.owned = MAX_LOSSES, False

    def run(self, tasks: Iterable[Any], function: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield the results of all tasks as they come."""
        ray = self.ray
        call = ray.remote(num_cpus=1, max_retries=self.losses - 1, retry_exceptions=False)(_called)
        shared, waiting, held = ray.put(function), iter(tasks), dict[Any, Any]()
        try:
            while True:
                while len(held) < AHEAD * self.workers:
                    task = next(waiting, NOTHING)
                    if task is NOTHING:
                        break
                    held[call.remote(shared, task)] = task
                if not held:
                    return
                for reference in ray.wait(list(held), num_returns=1)[0]:
                    task = held.pop(reference)
                    yield self._result(reference, task)
        finally:
            # A driver dies where what it cancels ends at that moment (ray-project/ray, pull request 54798).
            running = ray.wait(list(held), num_returns=len(held), timeout=GRACE_S)[1] if held else []
            for reference in running:
                ray.cancel(reference, force=True)

    def _result(self, reference: Any, task: Any) -> Any:
        errors = self.ray.exceptions
        try:
            failure, found = self.ray.get(reference)
        except (errors.WorkerCrashedError, errors.ObjectLostError, errors.OutOfMemoryError):
            raise lost(task, self.losses) from None
        except errors.RayError as error:
            raise TaskFailed(f"task {task!r}: {error}") from None
        if failure is not None:
            raise TaskFailed(f"task {task!r}: {failure}")
        return found

    def __enter__(self) -> Self:
        if self.ray.is_initialized():  # somebody else's, who also ends it
            return self
        try:
            if self.address:
                self.ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
                self.workers = self.asked or max(1, int(self.ray.cluster_resources().get("CPU", 1)))
            else:
                self.ray.init(
                    num_cpus=self.workers,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _node_ip_address=LOOPBACK,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
        except Exception as error:  # Ray's own start ends in many kinds, bare Exception among them
            self.ray.shutdown()
            why = (str(error).splitlines() or [""])[0]
            name, value, what = (
                ("address", self.address, "that answers") if self.address else ("runner", "ray", "that starts")
            )
            raise InputError(name, value, f"a Ray cluster {what} ({why})") from None
        self.owned = True
        return self

    def close(self) -> None:
        """Shut the cluster down, if it was started here."""
        if self.owned:
            self.ray.shutdown()
            self.owned = False


NOTHING = object()


def _called(function: Callable[[Any], Any], task: Any) -> tuple[str | None, Any]:
    """Return (what went wrong or None, result), as the pool's workers do."""
    try:
        return None, function(task)
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
