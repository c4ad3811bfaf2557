"""What a torch profiler trace recorded on the host, as trees of nested slices with the time of their kernels.

A device kernel belongs to the innermost operation that launched it: kernel and operation carry the same "External id"
(torch 2.x; older traces link both through the launch's "correlation"). A slice's device time is that of all kernels
below it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from sim.specs.fields import InputError
from sim.validation.traces import trace_events

OPERATION = "cpu_op"
HOST = (OPERATION, "user_annotation")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH = ("cuda_runtime", "cuda_driver")
BACKWARD = "autograd::engine::evaluate_function: "
DTYPES = {"float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64"}
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
LARGEST = 2**31
MOST_DIMENSIONS, MOST_ELEMENTS = 64, 2**48
"""Elements along one dimension, dimensions, and elements in all: what claims more is no tensor."""

Dims = tuple[int, ...]


@dataclass(eq=False)
class Slice:
    """A slice of the host's with its arguments; microseconds.

    `device_us` is the time of the kernels that it launched itself, `launches` their number, `copied` the name of one
    that copies between host and device; `parent` the slice around it.
    """

    name: str
    start_us: float
    duration_us: float
    args: Mapping[str, Any]
    parent: "Slice | None" = None
    children: list["Slice"] = field(default_factory=list)
    device_us: float = 0.0
    launches: int = 0
    copied: str = ""

    def below(self) -> Iterator["Slice"]:
        """Yield the slice and everything inside it, in the order of time."""
        waiting = [self]
        while waiting:
            one = waiting.pop()
            yield one
            waiting.extend(reversed(one.children))

    def dims(self, index: int) -> Dims:
        """Return the shape of the input tensor `index`; () where there is none (or a scalar)."""
        held = _at(self.args.get("Input Dims"), index)
        return _dims(held) or ()

    def list_dims(self, index: int) -> list[Dims]:
        """Return the shapes of the input `index`, a list of tensors (or one tensor)."""
        held = _at(self.args.get("Input Dims"), index)
        if not isinstance(held, list):
            return []
        one = _dims(held)
        each = [one] if one is not None else [_dims(h) for h in held]
        return [d for d in each if d]

    def transposed(self, index: int) -> bool:
        """Return whether the last two dimensions of an input are stored the other way round."""
        strides = _whole(_at(self.args.get("Input Strides"), index))
        return bool(strides and len(strides) >= 2 and strides[-2] < strides[-1])

    def text(self, index: int) -> str:
        """Return an input that is no tensor as the trace writes it; "" where it does not."""
        held = _at(self.args.get("Concrete Inputs"), index)
        return held if isinstance(held, str) else ""

    @property
    def dtype(self) -> str:
        """torch's name of the first input's type that is one of a floating-point tensor; "" without any."""
        types = self.args.get("Input type")
        known = [DTYPES[t] for t in types if isinstance(t, str) and t in DTYPES] if isinstance(types, list) else []
        return known[0] if known else ""

    def item(self, index: int) -> int:
        """Return the bytes of an element of the input `index`, of `dtype` where its type is no floating-point one."""
        told = _at(self.args.get("Input type"), index)
        return ELEMENT_BYTES.get(DTYPES.get(told, self.dtype) if isinstance(told, str) else self.dtype, 0)

    @property
    def sequence(self) -> int | None:
        """The autograd sequence number, which a forward operation and its backward share."""
        held = self.args.get("Sequence number")
        return held if isinstance(held, int) and held >= 0 else None

    @property
    def backward(self) -> "Slice | None":
        """The autograd node in which it runs, where it is no forward repeated inside one."""
        if self.sequence is not None:
            return None
        above = self.parent
        while above is not None and not above.name.startswith(BACKWARD):
            above = above.parent
        return above


def _at(held: Any, index: int) -> Any:
    return held[index] if isinstance(held, list) and index < len(held) else None


def _dims(held: Any) -> Dims | None:
    found = _whole(held)
    return found if found is not None and prod(found) <= MOST_ELEMENTS else None


def _whole(held: Any) -> Dims | None:
    fine = isinstance(held, list) and len(held) <= MOST_DIMENSIONS
    return tuple(held) if fine and all(type(n) is int and 0 <= n < LARGEST for n in held) else None


def elements(dims: Dims) -> int:
    """Return the elements of a tensor; 0 of none."""
    return prod(dims) if dims else 0


@dataclass(frozen=True)
class Recorded:
    """The outermost slices of every thread in the order of time, whether kernels of a device were recorded, and the
    arguments of NCCL's with their time (`dur`, microseconds)."""

    slices: tuple[Slice, ...]
    on_device: bool
    collectives: tuple[Mapping[str, Any], ...]

    def all(self) -> Iterator[Slice]:
        """Yield every slice, outer before inner."""
        for one in self.slices:
            yield from one.below()


def read_tree(path: Path) -> Recorded:
    """Return the slices of a torch profiler trace (.json or .json.gz, at most 256 MiB unpacked).

    Raises:
        InputError: not such a file; a slice without times; no operations; or operations without the shapes of their
            inputs (`record_shapes=True`).
    """
    threads: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    kernels: list[Mapping[str, Any]] = []
    launched_by: dict[Any, Any] = {}
    operations = False
    for n, e in enumerate(trace_events(path)):
        if not isinstance(e, dict):
            raise InputError(f"{path}: traceEvents[{n}]", type(e).__name__, "an object")
        kind, args = e.get("cat"), e.get("args")
        if e.get("ph") != "X" or not isinstance(e.get("name"), str):
            continue
        args = args if isinstance(args, dict) else {}
        if kind in LAUNCH:
            launched_by[_key(args.get("correlation"))] = args.get("External id")
        elif kind in (*HOST, *DEVICE):
            start, duration = (_microseconds(e.get(k), f"{path}: traceEvents[{n}].{k}") for k in ("ts", "dur"))
            if kind in HOST:
                operations = operations or kind == OPERATION
                thread = str(e.get("pid")), str(e.get("tid"))
                threads[thread].append(Slice(e["name"], start, duration, args))
            else:
                kernels.append({**args, "dur": duration, "name": e["name"]})
    if not operations:
        raise InputError(str(path), "a trace without operations", "one of torch.profiler with ProfilerActivity.CPU")
    roots = tuple(root for slices in threads.values() for root in _nested(slices))
    if not any(s.args.get("Input Dims") for each in threads.values() for s in each):
        raise InputError(str(path), "a trace without shapes", "one recorded with profile(..., record_shapes=True)")
    _attribute(kernels, launched_by, [s for each in threads.values() for s in each])
    return Recorded(roots, bool(kernels), tuple(k for k in kernels if "Collective name" in k))


def _microseconds(value: Any, path: str) -> float:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    if not fine or (path.endswith("dur") and value < 0):
        raise InputError(path, value, "a number of microseconds" + (" >= 0" if path.endswith("dur") else ""))
    return float(value)


def _key(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _nested(slices: list[Slice]) -> list[Slice]:
    """Return the outermost slices of one thread, each with what it encloses."""
    roots: list[Slice] = []
    around: list[Slice] = []
    for one in sorted(slices, key=lambda s: (s.start_us, -s.duration_us)):
        while around and one.start_us >= around[-1].start_us + around[-1].duration_us:
            around.pop()
        one.parent = around[-1] if around else None
        (one.parent.children if one.parent else roots).append(one)
        around.append(one)
    return roots


def _attribute(kernels: list[Mapping[str, Any]], launched_by: Mapping[Any, Any], slices: list[Slice]) -> None:
    """Add the time of every kernel to the slice that launched it."""
    named = {_key(s.args.get("External id")): s for s in slices}
    for kernel in kernels:
        external = kernel.get("External id", launched_by.get(_key(kernel.get("correlation"))))
        launcher = named.get(_key(external)) if _key(external) > 0 else None
        if launcher is not None:
            launcher.device_us += kernel["dur"]
            launcher.launches += 1
            if "HtoD" in kernel["name"] or "DtoH" in kernel["name"]:
                launcher.copied = kernel["name"]
