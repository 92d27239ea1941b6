"""The little protocol between launcher, fork server and ranks.

A message is one tag byte, a length and that many bytes. A rank sends STARTED when its function is about to
run, then RETURNED or FAILED. The launcher answers with one RELEASE byte when the rank may leave.
"""

import socket
import struct

STARTED = 1  # empty
RETURNED = 2  # seconds as a double, then the pickled result
FAILED = 3  # a report as JSON

RELEASE = b"r"

_HEAD = struct.Struct("!BQ")
_SECONDS = struct.Struct("!d")
_SIZE = struct.Struct("!I")


def pack(tag: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(tag, len(body)) + body


def pack_result(seconds: float, data: bytes) -> bytes:
    return pack(RETURNED, _SECONDS.pack(seconds) + data)


def split_result(body: bytes) -> tuple[float, bytes]:
    return _SECONDS.unpack_from(body)[0], body[_SECONDS.size :]


class Inbox:
    """Puts messages together from the pieces that a socket gives."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        self._data += data
        messages = []
        while len(self._data) >= _HEAD.size:
            tag, size = _HEAD.unpack_from(self._data)
            end = _HEAD.size + size
            if len(self._data) < end:
                break
            messages.append((tag, bytes(self._data[_HEAD.size : end])))
            del self._data[:end]
        return messages


def send_request(channel: socket.socket, body: bytes, fds: list[int]) -> None:
    """One request with descriptors to the fork server."""
    socket.send_fds(channel, [_SIZE.pack(len(body))], fds)
    channel.sendall(body)


def receive_request(channel: socket.socket, count: int) -> tuple[bytes, list[int]] | None:
    """The next request, or None when the launcher is gone."""
    head, fds, _, _ = socket.recv_fds(channel, _SIZE.size, count)
    if not head:
        return None
    head += _exactly(channel, _SIZE.size - len(head))
    (size,) = _SIZE.unpack(head)
    return _exactly(channel, size), fds


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = channel.recv(size - len(data))
        if not piece:
            raise EOFError("the launcher went away in the middle of a request")
        data += piece
    return bytes(data)
