"""What a process says of another that it no longer hears."""

import socket
import struct

import pytest
from zootomy.clusters.watch import Watch


def closed(line: socket.socket) -> None:
    line.close()


def reset(line: socket.socket) -> None:
    """As the system closes the lines of a process that died with something unread."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


@pytest.mark.parametrize("end", [closed, reset])
def test_a_process_whose_line_ends_has_died(monkeypatch, end):
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    watch, said = Watch(5), []
    watch._lines[1], watch._names[1] = ours, "host, pid 7"
    monkeypatch.setattr(watch, "_end", said.append)
    end(theirs)
    with ours:
        watch._listen(1)
    (reason,) = said
    assert reason.endswith(
        "(host, pid 7) has died, and the run cannot go on without it. Start all processes again, "
        "with --resume."
    )
