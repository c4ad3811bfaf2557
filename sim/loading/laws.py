"""Laws of the input pipeline as symbols: what caches answer, what a sample asks of storage, memory, network and cores.

Sources: Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), arXiv 2007.06775 (fetch time,
policies, x*); derivations stand in the functions. Every symbol broadcasts, so a sweep is one call.
"""

from functools import lru_cache

import sympy as sp

from sim.costs.algebra import Compiled, Expr, compile_expressions, maximum, minimum, symbol
from sim.specs.loading import Cache

LEAST_SHARE = 1e-12
"""Shares of the dataset below this are none: logarithms stay finite."""
LEAST_REST = 1e-9
"""1 - 1/nodes with one node, for the same reason."""


def cached_share(nodes: Expr = 1) -> Expr:
    """Return the share of the dataset that the caches of so many nodes hold."""
    return minimum(1, nodes * symbol("cache_bytes") / symbol("dataset_bytes"))


def lru_hits() -> Expr:
    """Return the share of reads that an LRU cache answers under a new random order every epoch.

    One job on one node, x of the dataset cached: a file is read at places a and b of two epochs that follow each other,
    both uniform on (0, 1). What is read between them holds 1 - (1 - a') b' of the dataset's files, where a' = 1 - a and
    b' = 1 - b are again uniform: what is left untouched by the rest of one epoch and the start of the next. It is a hit
    where that is at most x: P(uv >= 1 - x) = x + (1 - x) ln(1 - x) for uniform u and v.

    On n nodes each epoch gives a node 1/n of all files by chance. With f = 1/n and r = 1 - f, u and v are uniform on
    (r, 1), a file was last read m epochs ago with probability f r^(m-1), and the epochs between leave r^(m-1)
    untouched: a sum over m of P(uv >= c) with c = (1 - x)/r^(m-1), which is 1 for c <= r^2 and 0 for c >= 1, so that
    two of its terms are not plain. n = 1 is the law above; for large n it tends to x.

    k jobs with orders and times of their own share the cache: together they touch x of all files in the time in which
    each touches y, 1 - (1 - y)^k = x. A read is a miss if the job's own last read is longer ago (the law above, at y),
    and none of the others has read the file since: (1 - y)^(k-1).
    """
    rest = maximum(1 - cached_share(), LEAST_SHARE) ** (1 / symbol("sharing_jobs"))
    f = 1 / symbol("nodes")
    r = maximum(1 - f, LEAST_REST)
    last = sp.floor(sp.log(rest) / sp.log(r))
    some = minimum(last, 1)
    before = last - some
    late, early = rest / r**before, rest / r**last
    partly = 1 - (late * sp.log(late / r**2) - late + r**2) / f**2
    rarely = (1 - early + early * sp.log(early)) / f**2
    # Of one node `r` is above its 0 by LEAST_REST, and with everything cached the sum by as much above 1.
    own = minimum(1, 1 - r**before + some * f * r**before * partly + f * r**last * rarely)
    return 1 - (1 - own) * rest ** (symbol("sharing_jobs") - 1)


def first_hits(policy: Cache) -> tuple[Expr, Expr]:
    """Return the shares of the first epoch's reads that are hits: none but for what other jobs have read before.

    Of k jobs that start together one is the first to read a file, and the others find what caches keep of it: of nodes
    that part the files wherever it was read. A node that keeps its own finds what was read there: each job reads 1/n of
    all files on it, and at place t of the epoch has touched t/n of them, of which min(t/n, y) may still be held, by
    MinIO, which is full by then, as by LRU: 1 - (1 - y)^k = x. The others have not the file with probability
    (1 - min(t/n, y))^(k-1), whose integral over t, with z = min(y, 1/n), is n (1 - (1 - z)^k) / k + (1 - n z)
    (1 - z)^(k-1): of one node x/k + 1 - x.
    """
    jobs, nodes = symbol("sharing_jobs"), symbol("nodes")
    if policy in ("none", "partitioned"):
        local, remote = hits(policy)
        return local * (1 - 1 / jobs), remote * (1 - 1 / jobs)
    kept = 1 - minimum(1 - maximum(1 - cached_share(), LEAST_SHARE) ** (1 / jobs), 1 / nodes)
    missed = nodes * (1 - kept**jobs) / jobs + (1 - nodes * (1 - kept)) * kept ** (jobs - 1)
    return 1 - missed, sp.S.Zero


def hits(policy: Cache) -> tuple[Expr, Expr]:
    """Return the shares of reads that the node's own cache and those of other nodes answer once caches are full.

    On one node, and where nodes part the files, that is after the first epoch, else after several.
    MinIO keeps what came first and never gives it up: the share it holds. Partitioned: nodes hold different files, so
    all of them together n times as many; of those a node reads its own from memory, the rest over the network.
    """
    if policy == "none":
        return sp.S.Zero, sp.S.Zero
    if policy == "lru":
        return lru_hits(), sp.S.Zero
    if policy == "minio":
        return cached_share(), sp.S.Zero
    all_of_it = cached_share(symbol("nodes"))
    return all_of_it / symbol("nodes"), all_of_it * (1 - 1 / symbol("nodes"))


def demands(local: Expr, remote: Expr) -> dict[str, Expr]:
    """Return what a sample asks for, in seconds: of the worker alone (delay), of storage and of the network.

    A worker copies hits from memory and waits for the first byte of misses beside other workers; storage's and the
    network's bandwidths are divided among all who use them.
    """
    size, miss = symbol("sample_bytes"), 1 - local - remote
    return {
        "delay_s": (local + remote) * size / symbol("memory_bytes_per_s") + miss * symbol("latency_s"),
        "storage_s": miss * size / symbol("read_bytes_per_s"),
        "network_s": remote * size / symbol("network_bytes_per_s"),
    }


def wanted_share() -> Expr:
    """Return x*: the least cached share with which fetching is as fast as min(P, G) (`wanted_samples_per_s`).

    From x b / B_memory + (1 - x) (b / B_storage + latency / workers) = 1 / min(P, G). An upper bound where storage has
    a latency, since requests wait while others read.
    """
    size = symbol("sample_bytes")
    storage = size / symbol("read_bytes_per_s") + symbol("latency_s") / symbol("workers")
    memory = size / symbol("memory_bytes_per_s")
    gained = maximum(storage - memory, LEAST_SHARE * storage)
    return minimum(1, maximum(0, (storage - 1 / symbol("wanted_samples_per_s")) / gained))


@lru_cache
def laws(policy: Cache, first: bool = False) -> Compiled:
    """Return the function of a policy's laws: local, remote, delay_s, storage_s, network_s.

    first: in the first epoch. Symbols: cache_bytes, dataset_bytes, sample_bytes, nodes, sharing_jobs,
    memory_bytes_per_s, read_bytes_per_s, network_bytes_per_s, latency_s; of these what the policy needs.
    """
    local, remote = first_hits(policy) if first else hits(policy)
    return compile_expressions({"local": local, "remote": remote} | demands(local, remote))


@lru_cache
def wanted() -> Compiled:
    """Return the function of `wanted_share` (share)."""
    return compile_expressions({"share": wanted_share()})
