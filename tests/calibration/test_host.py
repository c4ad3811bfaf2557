"""What is measured of the host itself ends, whoever else talks to this machine."""

import socket

from calibration import host


def test_a_stranger_on_the_port_does_not_take_the_senders_place(monkeypatch):
    """As a process does that still looks for a server which had the port before."""
    monkeypatch.setattr(host, "TRANSFER_BYTES", 2**22)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as stranger:
        assert host._transfer(server) > 0
        assert stranger.recv(1) == b""
    assert host.loopback_bytes_per_s() > 0
