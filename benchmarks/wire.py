"""What a checksum and TLS cost a message on its way: one large buffer and many small messages over loopback.

    .venv/bin/python benchmarks/wire.py

Interleaved repeats, medians; between two processes of a busy machine only the ratios mean something.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from collections import defaultdict

from firesteel.cluster.tls import Certificate, join
from firesteel.cluster.wire import Link

KINDS = ("TCP, no checksum", "TCP, checksum", "TLS")


def answer(connection: socket.socket, certificate: str | None) -> None:
    link = Link(connection if certificate is None else join(connection, certificate))
    while link.receive() is not None:
        link.send({"kind": "fetched"})


def measure(kind: str, certificate: Certificate, data: bytes, messages: int) -> tuple[float, float]:
    """Seconds for the buffer, and for one small message and its answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    for each in (ours, theirs):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    text = certificate.text if kind == "TLS" else None
    other = multiprocessing.get_context("fork").Process(target=answer, args=(theirs, text))
    other.start()
    theirs.close()
    link = Link(ours if text is None else certificate.accept(ours))
    if kind == "TCP, no checksum":
        link._sums_buffers = False
    start = time.perf_counter()
    link.send({"kind": "event"}, [data])
    link.receive()
    whole = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(messages):
        link.send({"kind": "beat"})
        link.receive()
    each_seconds = (time.perf_counter() - start) / messages
    link.close()
    other.join()
    return whole, each_seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    start = time.perf_counter()
    certificate = Certificate()
    print(f"a certificate: {time.perf_counter() - start:.3f} s, with its imports")
    data = os.urandom(options.megabytes << 20)
    found = defaultdict(list)
    for _ in range(options.repeats):
        for kind in KINDS:
            found[kind].append(measure(kind, certificate, data, options.messages))
    base = statistics.median(whole for whole, _ in found[KINDS[0]])
    for kind in KINDS:
        whole = statistics.median(whole for whole, _ in found[kind])
        each = statistics.median(each for _, each in found[kind])
        print(f"{kind:18} {options.megabytes / whole:6.0f} MiB/s ({base / whole:.2f})  {each * 1e6:6.0f} us a message")


if __name__ == "__main__":
    main()
