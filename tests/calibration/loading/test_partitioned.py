"""A cache over nodes: storage is read once in all, and a server that is dead, slow or wrong is a miss."""

import os
import signal
import socket
import threading
import time
from concurrent.futures import wait
from contextlib import contextmanager
from multiprocessing import get_context

import pytest
from torch.utils.data import DataLoader

from calibration.guards import OutOfTime, within
from calibration.loading import partitioned
from calibration.loading.decoding import Order
from calibration.loading.minio import Counts
from calibration.loading.partitioned import FRAME, Partitioned, Shard, new_token
from sim.specs.fields import InputError
from tests.calibration.loading.numbers import Numbers
from tests.calibration.loading.read import Read

N = 60
TOKEN = new_token()


def node(connection, number, nodes):
    """Serve a shard until told to end; then say how often storage was read."""
    shard = Shard(Numbers(N), number, nodes, TOKEN)
    connection.send(shard.port)
    connection.recv()
    connection.send(shard.storage_reads)


@contextmanager
def servers(nodes):
    context = get_context("fork")
    pipes = [context.Pipe() for _ in range(nodes)]
    processes = [context.Process(target=node, args=(pipes[n][1], n, nodes), daemon=True) for n in range(nodes)]
    for process in processes:
        process.start()
    try:
        yield [ours for ours, _ in pipes], processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_nodes_read_storage_once_in_all(tmp_path):
    with servers(2) as (pipes, _):
        ports = [pipe.recv() for pipe in pipes]
        for n in range(2):  # both nodes read everything, each with two workers, for two epochs
            source = Partitioned(Numbers(N), ports, TOKEN, tmp_path / f"node-{n}")
            loader = DataLoader(Read(source), 5, sampler=Order(N, 2, seed=n), num_workers=2)
            assert sorted(int(item) for batch in loader for item in batch) == sorted([*range(N), *range(N)])
            assert source.counts() == Counts(2 * N, 0)
        for pipe in pipes:
            pipe.send(None)
        assert [pipe.recv() for pipe in pipes] == [N // 2, N // 2]


def test_a_killed_node_is_a_miss(tmp_path):
    with servers(2) as (pipes, processes):
        source = Partitioned(Numbers(N), [pipe.recv() for pipe in pipes], TOKEN, tmp_path / "cells")
        assert [int.from_bytes(source.read(item), "big") for item in range(10)] == list(range(10))
        os.kill(processes[1].pid, signal.SIGKILL)
        processes[1].join()
        assert [int.from_bytes(source.read(item), "big") for item in range(N)] == list(range(N))
        assert source.source.asked == list(range(1, N, 2))
        assert source.counts() == Counts(10 + N // 2, N // 2)
        source.close()


@contextmanager
def answering(data):
    """A server that answers every question with `data`, or is silent from the beginning."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def serve():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            kept.append(connection)
            if data is not None:
                connection.sendall(TOKEN)
                connection.recv(FRAME.size)
                connection.sendall(data)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join()
        for connection in kept:
            connection.close()


@pytest.mark.parametrize(
    "data", [None, b"", b"\0\0\0", FRAME.pack(2**60), FRAME.pack(9) + b"short", FRAME.pack(0)], ids=repr
)
def test_what_makes_no_sense_is_a_miss(tmp_path, data, monkeypatch):
    monkeypatch.setattr(partitioned, "TIMEOUT_S", 0.2)
    with answering(data) as port:
        source = Partitioned(Numbers(N), [port], TOKEN, tmp_path / "cells")
        assert source.read(3) == (3).to_bytes(8, "big")
        assert source.counts() == Counts(0, 1)
        source.close()


def test_a_silent_server_holds_nobody_up(tmp_path, monkeypatch):
    """A stranger who has a node's port now and says nothing: the others' samples come as ever, its own from storage."""
    monkeypatch.setattr(partitioned, "PATIENCE_S", 0.1)
    monkeypatch.setattr(partitioned, "TIMEOUT_S", 3.0)
    shard = Shard(Numbers(N), 1, 2, TOKEN)
    with answering(None) as silent:
        source, begin = Partitioned(Numbers(N), [silent, shard.port], TOKEN, tmp_path / "cells"), time.monotonic()
        assert [int.from_bytes(source.read(item), "big") for item in range(N)] == list(range(N))
        assert time.monotonic() - begin < 2
        assert source.counts() == Counts(N // 2, N // 2)
        source.close()
    shard.close()


def test_a_silent_server_is_waited_for_once(tmp_path, monkeypatch):
    monkeypatch.setattr(partitioned, "AGAIN_S", 0.0)
    monkeypatch.setattr(partitioned, "PATIENCE_S", 0.5)
    monkeypatch.setattr(partitioned, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = Partitioned(Numbers(N), [silent.getsockname()[1]], TOKEN, tmp_path / "cells")
        waits = []
        monkeypatch.setattr(partitioned, "wait", lambda meetings, most: waits.append(most) or wait(meetings, most))
        for item in range(30):
            source.read(item)
            time.sleep(0.02)
        assert waits[0] == 0.5
        assert len(waits) > 1
        assert set(waits[1:]) == {0.0}
        source.close()


def test_silent_strangers_who_connect_hold_nobody_up(tmp_path):
    shard = Shard(Numbers(N), 0, 1, TOKEN)
    strangers = [socket.create_connection(("127.0.0.1", shard.port), 5) for _ in range(3)]
    source, begin = Partitioned(Numbers(N), [shard.port], TOKEN, tmp_path / "cells"), time.monotonic()
    assert int.from_bytes(source.read(3), "big") == 3
    assert time.monotonic() - begin < 2
    assert source.counts() == Counts(1, 0)
    for peer in (*strangers, source, shard):
        peer.close()


@pytest.mark.parametrize("question", [FRAME.pack(1), FRAME.pack(2**63), FRAME.pack(N), b"abc"], ids=repr)
def test_a_question_that_makes_no_sense_ends_the_connection(question):
    shard = Shard(Numbers(N), 0, 2, TOKEN)
    with socket.create_connection(("127.0.0.1", shard.port), 5) as peer:
        peer.sendall(question)
        peer.shutdown(socket.SHUT_WR)
        assert partitioned._received(peer, len(TOKEN)) == TOKEN
        assert peer.recv(1) == b""
    shard.close()
    assert shard.storage_reads == 0


def test_an_answer_that_is_not_waited_for_is_given_to_no_later_question(tmp_path):
    class Slow(Numbers):
        def read(self, item):
            time.sleep(0.5 if item == 1 else 0)
            return super().read(item)

    shard = Shard(Slow(N), 0, 1, TOKEN)
    source = Partitioned(Numbers(N), [shard.port], TOKEN, tmp_path / "cells")
    with pytest.raises(OutOfTime), within(0.1):
        source.read(1)
    assert [int.from_bytes(source.read(item), "big") for item in (2, 3)] == [2, 3]
    assert source.counts() == Counts(2, 0)
    source.close()
    shard.close()


def test_a_server_of_another_cache_is_told(tmp_path):
    """A port that was used again: its samples have the same numbers, and are others."""
    shard = Shard(Numbers(N, size=4), 0, 1, new_token())
    source = Partitioned(Numbers(N), [shard.port], TOKEN, tmp_path / "cells")
    with pytest.raises(InputError, match=f"ports: got {shard.port}; allowed: the port of a server of this cache"):
        source.read(3)
    shard.close()


def test_a_shard_keeps_no_more_than_it_may():
    shard = Shard(Numbers(N), 0, 1, TOKEN, capacity_bytes=16)
    for item in (1, 2, 3, 1, 2, 3):
        shard.get(item)
    assert shard.source.asked == [1, 2, 3, 3]
    assert shard.used_bytes == 16
    shard.close()


def test_storage_that_fails_is_told(tmp_path):
    class Broken(Numbers):
        def read(self, item):
            raise OSError("gone")

    shard = Shard(Broken(N), 0, 1, TOKEN)
    source = Partitioned(Numbers(N), [shard.port], TOKEN, tmp_path / "cells")
    assert source.read(4) == (4).to_bytes(8, "big")
    assert source.counts() == Counts(0, 1)
    source.close()
    shard.close()


def test_bad_input():
    with pytest.raises(InputError, match="node"):
        Shard(Numbers(N), 2, 2, TOKEN)
    shard = Shard(Numbers(N), 0, 2, TOKEN)
    with pytest.raises(InputError, match="item"):
        shard.get(1)
    shard.close()
