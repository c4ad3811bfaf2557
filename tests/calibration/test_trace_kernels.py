"""Which kernels a trace holds: directions, shapes, FLOP, whose time counts."""

from collections import Counter
from pathlib import Path

import pytest

from calibration.trace_kernels import Seen, kernels
from calibration.trace_tree import read_tree
from sim.costs.layers.attention import FLASH_BACKWARD_FLOP
from tests.calibration.traces import BATCH, GPT, TOKENS, kernel, op, recorded, written

STEPS, H, V, L = 3, GPT.hidden, GPT.vocab, GPT.layers


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """The kernels of three recorded steps of a small GPT."""
    return kernels(read_tree(recorded(tmp_path_factory.mktemp("trace"))))


def of(seen: list[Seen], op: str, direction: str) -> list[Seen]:
    return [s for s in seen if (s.op, s.direction) == (op, direction)]


def products(seen: list[Seen], direction: str) -> Counter[tuple[float, ...]]:
    return Counter((s.shape["m"], s.shape["n"], s.shape["k"]) for s in of(seen, "gemm", direction))


def test_the_forward_products_are_those_of_the_layers(seen):
    layer = {(TOKENS, 3 * H, H), (TOKENS, H, H), (TOKENS, 4 * H, H), (TOKENS, H, 4 * H)}
    assert products(seen, "forward") == dict.fromkeys(layer, STEPS * L) | {(TOKENS, V, H): STEPS}


@pytest.mark.parametrize("direction", ["dgrad", "wgrad"])
def test_every_product_has_both_gradients_with_the_simulators_shapes(seen, direction):
    turned = {"dgrad": lambda m, n, k: (m, k, n), "wgrad": lambda m, n, k: (n, k, m)}[direction]
    wanted = Counter({turned(*shape): n for shape, n in products(seen, "forward").items()})
    assert products(seen, direction) == wanted


def test_flop_of_all_products_are_six_times_weights_and_tokens(seen):
    weights = L * 12 * H**2 + V * H
    assert sum(s.flop for s in seen if s.op == "gemm") == STEPS * 6 * weights * TOKENS


def test_rows_of_a_norm_are_the_tokens(seen):
    assert {s.shape["rows"] for s in of(seen, "norm", "any") + of(seen, "norm", "backward")} == {TOKENS}


def test_attention_is_causal_and_backward_does_more(seen):
    forward, backward = of(seen, "attention", "forward"), of(seen, "attention", "backward")
    assert len(forward) == len(backward) == STEPS * L
    scores = BATCH * GPT.heads * GPT.seq**2
    assert {s.flop for s in forward} == {4 * scores * GPT.head_dim / 2}
    assert {s.flop for s in backward} == {FLASH_BACKWARD_FLOP * 2 * scores * GPT.head_dim}
    assert {s.shape["rows"] for s in forward} == {TOKENS * GPT.heads}


@pytest.mark.parametrize(
    ("op", "direction", "calls", "size"),
    [
        ("norm", "any", 2 * L + 1, 8 * TOKENS * H),
        ("norm", "backward", 2 * L + 1, 12 * TOKENS * H),
        ("gelu", "forward", L, 8 * TOKENS * 4 * H),
        ("gelu", "backward", L, 12 * TOKENS * 4 * H),
        ("cross_entropy", "forward", 1, 12 * TOKENS * V),
        ("cross_entropy", "backward", 1, 8 * TOKENS * V),
        ("adam", "any", 1, 28 * GPT.parameters),
    ],
)
def test_memory_bound_kernels_move_what_the_layers_count(seen, op, direction, calls, size):
    found = of(seen, op, direction)
    assert len(found) == STEPS * calls
    assert {s.bytes for s in found} == {size}


def test_what_is_inside_a_kernel_is_not_counted_again(seen, tmp_path):
    trace = read_tree(recorded(tmp_path))
    everything = sum(root.duration_us for root in trace.slices) * 1e-6
    assert sum(s.seconds for s in kernels(trace)) < everything
    assert {s.dtype for s in seen} == {"float32"}


@pytest.mark.parametrize(("fused", "implementation"), [(True, "fused"), (False, "for-loop")])
def test_adam_is_one_kernel_whatever_its_implementation(tmp_path, fused, implementation):
    found = of(kernels(read_tree(recorded(tmp_path, fused=fused))), "adam", "any")
    assert {s.implementation for s in found} == {implementation}
    assert {s.bytes for s in found} == {28 * GPT.parameters}


def test_an_update_of_a_list_counts_every_parameter_once(tmp_path):
    step = op("Optimizer.step#Adam.step", 0, 9) | {"cat": "user_annotation"}
    each = [op("aten::addcdiv_", start, 1, [[8], [8], [8]]) for start in (2, 4)]
    whole = op("aten::_foreach_addcdiv_", 1, 6, [[[8], [8]]])
    whole["args"]["Input type"] = ["TensorList"]
    (found,) = kernels(read_tree(written(tmp_path, [step, whole, *each])))
    assert (found.bytes, found.implementation) == (7 * 4 * 16, "foreach")


@pytest.mark.parametrize(("name", "calls"), [("Adam", 1), ("AdamW", 1), ("RMSprop", 0), ("NAdam", 0)])
def test_other_optimizers_are_no_adam(tmp_path, name, calls):
    step = op(f"Optimizer.step#{name}.step", 0, 9) | {"cat": "user_annotation"}
    update = op("aten::addcdiv_", 2, 1, [[8], [8], [8]])
    assert len(of(kernels(read_tree(written(tmp_path, [step, update]))), "adam", "any")) == calls


def test_stored_scores_are_batched_products_and_a_softmax(tmp_path):
    eager = GPT.__class__(layers=1, hidden=64, heads=2, vocab=100, seq=32, attention="eager")
    seen = kernels(read_tree(recorded(tmp_path, eager)))
    batched = [s for s in seen if s.op == "gemm" and s.shape["batch"] > 1]
    assert {s.shape["batch"] for s in batched} == {BATCH * 2}
    assert Counter(s.direction for s in batched) == {"forward": 2 * STEPS, "dgrad": 4 * STEPS}
    assert len(of(seen, "softmax", "any")) == len(of(seen, "softmax", "backward")) == STEPS


DIMS = ((8, 4), (4, 16))


def one(path: Path) -> Seen:
    (found,) = kernels(read_tree(path))
    return found


def test_device_time_is_that_of_the_linked_kernels(tmp_path):
    events = [
        op("aten::mm", 0.0, 90.0, DIMS, "c10::BFloat16", External_id=5),
        op("aten::copy_", 10.0, 5.0, External_id=6),
        kernel(5, 3.0),
        kernel(6, 4.0),
        kernel(77, 100.0),
    ]
    found = one(written(tmp_path, events, "trace.json.gz"))
    assert (found.seconds, found.launches, found.dtype) == (pytest.approx(7e-6), 2, "bfloat16")


def test_older_traces_link_kernels_by_correlation(tmp_path):
    launch = op("cudaLaunchKernel", 1.0, 1.0, correlation=9, External_id=5) | {"cat": "cuda_runtime"}
    late = kernel(5, 3.0)
    late["args"] = {"correlation": 9}
    assert one(written(tmp_path, [op("aten::mm", 0.0, 9.0, DIMS, External_id=5), launch, late])).seconds == 3e-6


def test_an_operation_without_kernels_does_not_count_beside_a_device(tmp_path):
    assert kernels(read_tree(written(tmp_path, [op("aten::mm", 0.0, 9.0, DIMS), kernel(5, 1.0)]))) == []


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [("Memcpy HtoD (Pinned -> Device)", "h2d", "pinned"), ("Memcpy DtoH (Device -> Pageable)", "d2h", "pageable")],
)
def test_copies_between_host_and_device_are_kept_apart(tmp_path, name, direction, memory):
    events = [op("aten::copy_", 0.0, 9.0, ((1024,), (1024,)), External_id=5), kernel(5, 2.0, name, "gpu_memcpy")]
    found = one(written(tmp_path, events))
    assert (found.op, found.direction, found.implementation, found.bytes) == ("copy", direction, memory, 4096)


@pytest.mark.parametrize(
    ("types", "dtype", "each"),
    [
        (("c10::BFloat16", "float"), "bfloat16", 6),
        (("float", "c10::Half"), "float32", 6),
        (("float", "bool"), "float32", 8),
    ],
)
def test_casts_move_as_many_bytes_as_both_tensors_have(tmp_path, types, dtype, each):
    cast = op("aten::copy_", 0.0, 9.0, ((32, 32), (32, 32)))
    cast["args"]["Input type"] = list(types)
    found = one(written(tmp_path, [cast]))
    assert (found.dtype, found.bytes, dict(found.shape)) == (dtype, each * 1024, {"bytes": each * 1024})


def test_collectives_of_nccl_come_with_their_ranks(tmp_path):
    told = {"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, "Group size": 8}
    events = [op("aten::mm", 0.0, 9.0, DIMS), kernel(5, 20.0, "ncclDevKernel_AllReduce", dtype="BFloat16", **told)]
    found = one(written(tmp_path, events))
    assert (found.op, found.direction, found.shape) == ("collective", "all_reduce", {"bytes": 200.0, "ranks": 8})


@pytest.mark.parametrize("wild", [{"In msg nelems": 10**400}, {"Group size": 10**400}])
def test_collectives_of_impossible_sizes_are_left_out(tmp_path, wild):
    told = {"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, "Group size": 8} | wild
    events = [op("aten::mm", 0.0, 9.0, DIMS), kernel(5, 20.0, "ncclDevKernel_AllReduce", dtype="BFloat16", **told)]
    assert kernels(read_tree(written(tmp_path, events))) == []


def test_a_linear_layer_in_one_library_call_is_a_forward_product(tmp_path):
    found = one(written(tmp_path, [op("aten::linear", 0.0, 9.0, ((2, 4, 8), (16, 8)))]))
    assert (found.direction, dict(found.shape)) == ("forward", {"m": 8, "n": 16, "k": 8, "batch": 1, "item": 4})


def test_backward_products_without_their_forward_are_told_apart_by_layout(tmp_path):
    node = "autograd::engine::evaluate_function: CompiledFunctionBackward"
    plain, turned = [[16, 1], [4, 1]], [[1, 16], [4, 1]]
    events = [
        op(node, 0.0, 90.0, Sequence_number=3),
        op("aten::mm", 1.0, 5.0, ((8, 16), (16, 4)), Input_Strides=plain),
        op("aten::mm", 9.0, 5.0, ((16, 8), (8, 4)), Input_Strides=turned),
    ]
    assert [s.direction for s in kernels(read_tree(written(tmp_path, events)))] == ["dgrad", "wgrad"]


def test_an_elementwise_result_has_the_shape_that_inputs_are_broadcast_to(tmp_path):
    for dims, moved in ((((8, 4), (8, 4)), 96), (((8, 1), (4,)), 8 + 4 + 32), (((8, 4), ()), 64)):
        found = one(written(tmp_path, [op("aten::add", 0.0, 9.0, dims)]))
        assert found.bytes == 4 * moved, dims


def test_a_forward_pass_that_another_thread_repeats_confuses_no_gradients(tmp_path):
    """Both have autograd numbers from 0: number 3 is a product (8, 16) x (16, 4) here, and (2, 8) x (8, 32) there."""
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        op("aten::mm", 0.0, 5.0, ((8, 16), (16, 4)), Sequence_number=3),
        op(node, 20.0, 90.0, Sequence_number=3),
        op("aten::mm", 21.0, 5.0, ((8, 4), (4, 16))),
        op("aten::mm", 29.0, 5.0, ((16, 8), (8, 4))),
        op("aten::mm", 120.0, 5.0, ((2, 8), (8, 32)), Sequence_number=3) | {"tid": 2},
    ]
    found = kernels(read_tree(written(tmp_path, events)))
    assert [s.direction for s in found] == ["forward", "dgrad", "wgrad", "forward"]


def test_grouped_queries_and_full_attention(tmp_path):
    dims = ((2, 8, 64, 16), (2, 2, 64, 16), (2, 2, 64, 16))
    name = "aten::_scaled_dot_product_flash_attention"
    concrete = ["", "", "", "0.", "False"]
    found = one(written(tmp_path, [op(name, 0.0, 9.0, dims, Concrete_Inputs=concrete)]))
    assert found.flop == 4 * 2 * 8 * 64 * 64 * 16
