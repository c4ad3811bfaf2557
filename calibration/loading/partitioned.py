"""A cache that the nodes of a job have together (CoorDL, arXiv 2007.06775): every node keeps the samples it owns.

Sample n belongs to node n mod nodes. Whoever wants it asks that node's server over TCP; the server reads it from
storage the first time and keeps it, so that storage is read once in all. A server begins with the cache's token: a port
may belong to somebody else by now, whose samples have the same numbers. A question is the sample's number as eight
bytes; an answer is its length as eight bytes and the sample, a length of 0 where the server cannot give it. A server
that does not answer is a miss: the sample is read from storage.
"""

import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from calibration.loading.cells import Cells
from calibration.loading.minio import Counts
from calibration.loading.sources import Source
from sim.specs.fields import InputError

ADDRESS = "127.0.0.1"
FRAME = struct.Struct(">Q")
MOST_BYTES = 2**30
"""The largest sample that is believed."""

TIMEOUT_S = 5.0
PATIENCE_S = 1.0
"""How long the first question waits for a server to tell its token: it does so at once, and a stranger may never."""

AGAIN_S = 30.0
"""How long a server that failed is not asked."""

READ, ASKED = range(2)


def new_token() -> bytes:
    """Return what tells one cache from every other; all its nodes have it."""
    return secrets.token_bytes(16)


class Shard:
    """The server of one node: samples that it owns, kept as they are first asked for, `capacity_bytes` at most.

    token: of the cache (`new_token`), told to whoever connects. It listens on a free `port` of 127.0.0.1 until `close`;
    each connection has a thread.
    """

    def __init__(self, source: Source, node: int, nodes: int, token: bytes, capacity_bytes: int = 2**62) -> None:
        if not 0 <= node < nodes:
            raise InputError("node", node, f"a whole number from 0 to {nodes - 1}")
        self.source, self.node, self.nodes, self.token, self.capacity_bytes = source, node, nodes, token, capacity_bytes
        self.storage_reads = self.used_bytes = 0
        self._held: dict[int, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._server = socket.create_server((ADDRESS, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        with suppress(OSError):  # on other systems than Linux closing is enough
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def get(self, item: int) -> bytes:
        """Return an own sample; who asks for one that is just being read waits for it.

        Raises:
            InputError: it belongs to another node.
        """
        if not 0 <= item < len(self.source) or item % self.nodes != self.node:
            raise InputError("item", item, f"a sample of node {self.node}")
        with self._lock:
            known = self._held.get(item)
            if known is None:
                self._held[item] = mine = Future[bytes]()
                self.storage_reads += 1
        if known is not None:
            return known.result()
        try:
            data = self.source.read(item)
        except BaseException as error:
            mine.set_exception(error)
            self._forget(item)
            raise
        mine.set_result(data)
        with self._lock:
            self.used_bytes += len(data)
            full = self.used_bytes > self.capacity_bytes
        if full:
            self._forget(item, len(data))
        return data

    def _forget(self, item: int, size_bytes: int = 0) -> None:
        with self._lock:
            del self._held[item]
            self.used_bytes -= size_bytes

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one peer until it goes; a question that makes no sense ends the connection."""
        with connection:
            try:
                connection.sendall(self.token)
                while question := _received(connection, FRAME.size):
                    try:
                        data = self.get(FRAME.unpack(question)[0])
                    except InputError:
                        return
                    except OSError:  # storage failed: the peer may try it itself
                        data = b""
                    connection.sendall(FRAME.pack(len(data)) + data)
            except OSError:
                return


class Partitioned:
    """A source that asks the owner of a sample, and storage only where it does not answer.

    ports: of the nodes' servers; token: theirs; cells: a file that is made, in which all processes of this node count.
    `counts()`: hits came from an owner, misses from storage by this node itself.
    """

    def __init__(self, source: Source, ports: Sequence[int], token: bytes, cells: Path) -> None:
        self.source, self.ports, self.token = source, tuple(ports), token
        self._cells = Cells(cells, 2)
        self._open: dict[tuple[int, int], socket.socket] = {}
        """By thread and node: a thread's number is its own on the whole machine, also after a fork."""
        self._met: dict[tuple[int, int], Future[socket.socket]] = {}
        """Connections under way, likewise."""
        self._failed: dict[int, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the connections, which are each thread's own."""
        return {**self.__dict__, "_open": {}, "_met": {}, "_failed": {}}

    def __len__(self) -> int:
        return len(self.source)

    def read(self, item: int) -> bytes:
        """Return the sample from its owner, or from storage.

        Raises:
            InputError: the server at the owner's port is of another cache.
        """
        data = self._asked(item % len(self.ports), item)
        with self._cells.locked() as values:
            values[ASKED if data else READ] += 1
        return data or self.source.read(item)

    def counts(self) -> Counts:
        """Return what this node's processes have counted."""
        values = self._cells.read()
        return Counts(values[ASKED], values[READ])

    def close(self) -> None:
        """End the connections of this process."""
        for connection in self._open.values():
            connection.close()
        for meeting in self._met.values():
            meeting.add_done_callback(_hung_up)
        self._open.clear()
        self._met.clear()

    def _asked(self, node: int, item: int) -> bytes | None:
        """Return the owner's answer, None where there is none; raises InputError where a stranger listens."""
        if monotonic() < self._failed.get(node, 0.0):
            return None
        try:
            if not self._connected(node):
                return None
            with self._connection(node) as connection:
                connection.sendall(FRAME.pack(item))
                (size,) = FRAME.unpack(_received(connection, FRAME.size) or b"")
                if not size:
                    return None
                if size > MOST_BYTES:
                    raise ConnectionError(f"an answer of {size} bytes")
                data = _received(connection, size)
                if data is None:
                    raise ConnectionError("half an answer")
        except (OSError, struct.error):
            self._failed[node] = monotonic() + AGAIN_S
            return None
        return data

    @contextmanager
    def _connection(self, node: int) -> Iterator[socket.socket]:
        """Lend this thread's connection to a node, which is kept unless something is raised, be it an interrupt.

        What is left unread in it would be taken for the answer to the next question.
        """
        key = threading.get_native_id(), node
        connection = self._open.pop(key)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._open[key] = connection

    def _connected(self, node: int) -> bool:
        """Return whether this thread has a connection to a node, which is made beside it: one with a server that is
        silent is waited for once, and not for long."""
        key = threading.get_native_id(), node
        if key in self._open:
            return True
        meeting = self._met.get(key)
        if meeting is None:
            meeting = self._met[key] = Future()
            threading.Thread(target=self._meet, args=(node, meeting), daemon=True).start()
            wait([meeting], 0.0 if node in self._failed else PATIENCE_S)
        if not meeting.done():
            return False
        self._open[key] = self._met.pop(key).result()
        self._failed.pop(node, None)
        return True

    def _meet(self, node: int, meeting: Future[socket.socket]) -> None:
        try:
            meeting.set_result(self._greeted(node))
        except BaseException as error:
            meeting.set_exception(error)

    def _greeted(self, node: int) -> socket.socket:
        connection = socket.create_connection((ADDRESS, self.ports[node]), TIMEOUT_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: socket.socket) -> None:
        token = _received(connection, len(self.token))
        if token is None:
            raise ConnectionError("no token")
        if token != self.token:
            raise InputError("ports", connection.getpeername()[1], "the port of a server of this cache")


def _hung_up(meeting: Future[socket.socket]) -> None:
    if not meeting.exception():
        meeting.result().close()


def _received(connection: socket.socket, size: int) -> bytes | None:
    """Return exactly `size` bytes, None where the other side ends before."""
    parts, left = [], size
    while left:
        part = connection.recv(min(left, 2**20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
