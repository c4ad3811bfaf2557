"""What saving the state of a run takes, by itself."""

from typing import Annotated, Any, Literal

from sim.specs.checkpointing import Snapshot
from sim.specs.fields import InputError, real, spec
from sim.specs.storage import Storage

Kind = Literal["device", "host", "none"]


@spec
class Times:
    """Seconds of a step and of each part of saving, each where nothing runs beside it; bytes of the whole state.

    `update_s`: of the step, the update of weights, which a snapshot in progress holds up. `host_snapshot_s`: the copy
    to host memory. `device_snapshot_s`: the copy in the device's memory, left out where it does not fit.
    `persist_s`: writing from host memory until the file is safe. `reload_s`: reading it into the devices.
    `contention`: by how much of itself a step takes longer while it is written, and the writing beside a step.

    Raises:
        InputError: a number is out of range, the update takes longer than the step, or a device snapshot is asked for
            that does not fit.
    """

    iteration_s: Annotated[float, real(1e-9, 1e6, "s")]
    update_s: Annotated[float, real(0.0, 1e6, "s")] = 0.0
    host_snapshot_s: Annotated[float, real(0.0, 1e7, "s")]
    device_snapshot_s: Annotated[float, real(0.0, 1e7, "s")] | None = None
    persist_s: Annotated[float, real(0.0, 1e9, "s")]
    reload_s: Annotated[float, real(0.0, 1e9, "s")] = 0.0
    state_bytes: Annotated[float, real(1.0, 1e15, "B")] = 1.0
    contention: Annotated[float, real(0.0, 100.0)] = 0.0
    snapshot: Snapshot = "auto"

    def __post_init__(self) -> None:
        if self.update_s > self.iteration_s:
            raise InputError("update_s", self.update_s, f"at most iteration_s = {self.iteration_s:g} s")
        if self.snapshot == "device" and self.device_snapshot_s is None:
            raise InputError("snapshot", "device", "auto, host or none: the state does not fit in the free memory")

    @classmethod
    def of(
        cls, iteration_s: float, state_bytes: float, storage: Storage, host_bytes_per_s: float, **more: Any
    ) -> "Times":
        """Return what saving `state_bytes` takes that one device copies to its host and one storage keeps."""
        return cls(
            iteration_s=iteration_s,
            host_snapshot_s=state_bytes / host_bytes_per_s,
            persist_s=state_bytes / storage.write_bytes_per_s,
            reload_s=storage.latency_s + state_bytes / storage.read_bytes_per_s,
            state_bytes=state_bytes,
            **more,
        )

    @property
    def kind(self) -> Kind:
        """Which snapshot is made: on the device if it fits and is faster, where nothing else is asked for."""
        if self.snapshot != "auto":
            return self.snapshot
        on_device = self.device_snapshot_s
        return "device" if on_device is not None and on_device < self.host_snapshot_s else "host"

    @property
    def snapshot_s(self) -> float:
        """What the weight update may have to wait for; without a snapshot training waits for all of the saving."""
        if self.kind == "none":
            return self.host_snapshot_s + self.persist_s
        return self.host_snapshot_s if self.kind == "host" else float(self.device_snapshot_s or 0.0)

    @property
    def hideable_s(self) -> float:
        """How long a snapshot goes on beside the next step before the weight update waits for it."""
        return 0.0 if self.kind == "none" else self.iteration_s - self.update_s

    @property
    def written_s(self) -> float:
        """What goes on in the background after a snapshot: one on the device is copied to the host before."""
        if self.kind == "none":
            return 0.0
        return self.persist_s + (self.host_snapshot_s if self.kind == "device" else 0.0)

    @property
    def values(self) -> dict[str, float]:
        """The symbols of `sim.checkpointing.laws`."""
        return {
            "iteration_s": self.iteration_s,
            "hideable_s": self.hideable_s,
            "snapshot_s": self.snapshot_s,
            "persist_s": self.written_s,
            "contention": self.contention,
            "reload_s": self.reload_s,
        }
