"""TLS for the coordinator's connections: a certificate made for one job, trusted by that job's tasks alone.

The certificate travels to the tasks as the secret does, inside the Spark closure, and a task accepts no other: there
is no authority to ask, no name to compare, nothing to renew. The challenge of ``cluster.wire`` then runs inside, and
says who the task is.
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import secrets
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from typing import Any, cast

from firesteel.cluster.wire import Allowance, Buffer, WireError
from firesteel.core.switches import switch

__all__ = ["Certificate", "Sealed", "TlsSocket", "join", "wanted"]

_SETTING = "spark.firesteel.tls"
_SPARK_ENCRYPTS = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.rpc.enabled",
    # With this one alone Spark leaves its RPC in the clear. But who set it wants encryption, and gets it from us.
    "spark.ssl.enabled",
)
_CHUNK_BYTES = 256 << 10
_NAME = "firesteel job"
# A certificate is valid as long as its job. Other dates would only ask whether the machines' clocks agree. The last is
# how RFC 5280 (4.1.2.5) spells "no well-defined expiration date".
_BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


def wanted(read: Callable[[str], str | None]) -> bool:
    """Whether to use TLS: where Spark encrypts its own connections, unless ``spark.firesteel.tls`` says otherwise.

    Args:
        read: gives the value of a Spark setting, or ``None``.
    """
    return switch(read, _SETTING, any((read(name) or "").strip().lower() == "true" for name in _SPARK_ENCRYPTS))


Sealed = tuple[str, bytes, bytes]
"""A certificate, its key, encrypted, and the password of that: for whoever is to listen in the driver's place."""


class Certificate:
    """A job's certificate, with its key. Lives where the coordinator does; only ``text`` leaves that process.

    Nodes of a cluster listen, too: theirs is another one, ``sealed`` on the driver (``Certificate.seal``), and travels
    inside the Spark closure.

    Raises ``ImportError`` where the package ``cryptography`` is not installed; tasks do not need it.
    """

    def __init__(self, sealed: Sealed | None = None) -> None:
        certificate, key, password = sealed or _make()
        self.text = certificate
        """The certificate without its key, in PEM: what tasks have to be given."""
        self._context = _context(ssl.PROTOCOL_TLS_SERVER)
        self._context.num_tickets = 0  # nobody comes back to resume a session
        # Python's ssl reads keys from files only. This one is readable to its owner, encrypted, and gone at once.
        with tempfile.NamedTemporaryFile(prefix="firesteel-", suffix=".pem") as file:
            file.write(certificate.encode() + key)
            file.flush()
            self._context.load_cert_chain(file.name, password=password)

    @staticmethod
    def seal() -> Sealed:
        """A new certificate, for others to listen with."""
        return _make()

    def accept(self, connection: socket.socket) -> TlsSocket:
        """The driver's end of TLS on an accepted connection.

        Takes no longer than the connection's timeout. Raises ``WireError`` where the other end does not speak TLS.
        """
        return TlsSocket(connection, self._context, is_server=True)


def join(connection: socket.socket, certificate: str) -> TlsSocket:
    """The task's end of TLS: raises ``WireError`` unless the other end has the key of exactly this certificate.

    Takes no longer than the connection's timeout.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # it names a job, not a host
    context.load_verify_locations(cadata=certificate)
    stream = TlsSocket(connection, context, is_server=False)
    if not hmac.compare_digest(stream.peer_certificate, ssl.PEM_cert_to_DER_cert(certificate)):
        raise WireError("the process at the driver's address has another certificate than this job's")
    return stream


class TlsSocket:
    """A connected socket whose bytes are encrypted. One thread may send, and another receive, at the same time.

    ``ssl.SSLSocket`` does not allow that: it lets two threads into one OpenSSL object, which is not made for it
    (python/cpython#143756). Here OpenSSL only turns bytes into bytes, under a lock that is never held while waiting;
    the waiting happens on the plain socket, with its own timeout, and ends when another thread shuts that down.

    No farewell is sent when it closes. Messages say themselves whether they are whole, and when the work is done.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, is_server: bool) -> None:
        self._socket = connection
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=is_server)
        self._engine = threading.Lock()
        self._shake_hands()

    @property
    def peer_certificate(self) -> bytes:
        """The other end's certificate in DER, empty where it has none."""
        return self._tls.getpeercert(binary_form=True) or b""

    def sendall(self, data: Buffer, /) -> None:
        """Send all of it. One thread at a time."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK_BYTES):
            self._socket.sendall(self._encrypt(view[start : start + _CHUNK_BYTES]))

    def send(self, data: Buffer, flags: int, /) -> int:
        """Send all of it or fail: less than its length means that the connection cannot be used any more."""
        encrypted = self._encrypt(memoryview(data).cast("B"))
        return len(data) if self._socket.send(encrypted, flags) == len(encrypted) else 0

    def recv_into(self, buffer: memoryview, /) -> int:
        """Wait for bytes; how many came, 0 when the other end closed. Raises ``WireError`` on damaged ones."""
        while True:
            with self._engine:
                got = self._decrypt(buffer)
            if got is not None:
                return got
            data = self._socket.recv(_CHUNK_BYTES)
            if not data:
                return 0
            with self._engine:
                self._arrived.write(data)

    def gettimeout(self) -> float | None:
        """How long a wait may last."""
        return self._socket.gettimeout()

    def settimeout(self, seconds: float | None, /) -> None:
        """Set how long a wait may last."""
        self._socket.settimeout(seconds)

    def getsockname(self) -> Any:
        """This end's address."""
        return self._socket.getsockname()

    def fileno(self) -> int:
        """The plain socket's descriptor, to poll."""
        return self._socket.fileno()

    def shutdown(self, how: int, /) -> None:
        """End the connection; wakes a thread that waits."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Give the descriptor back."""
        self._socket.close()

    def _shake_hands(self) -> None:
        allowance = Allowance(self._socket)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):
                    self._socket.sendall(self._leaving.read())  # OpenSSL's word to the other end on what is wrong
                raise WireError(f"TLS could not be agreed on: {_reason(error)}") from error
            else:
                self._socket.sendall(self._leaving.read())
                return
            self._socket.sendall(self._leaving.read())
            allowance.spend()
            data = self._socket.recv(_CHUNK_BYTES)
            if not data:
                raise WireError("the other end closed the connection while TLS was agreed on")
            self._arrived.write(data)

    def _encrypt(self, view: memoryview) -> bytes:
        with self._engine:
            sent = 0
            while sent < len(view):
                sent += self._tls.write(view[sent:])
            return self._leaving.read()

    def _decrypt(self, buffer: memoryview) -> int | None:
        """How many bytes were there, 0 at the other end's farewell, ``None`` where more has to arrive first."""
        got = 0
        try:
            while got < len(buffer):
                # One record, 16 KiB at most. (With a buffer it returns a number, whatever its stub says.)
                got += cast(int, self._tls.read(len(buffer) - got, buffer[got:]))
        except ssl.SSLWantReadError:
            return got or None
        except ssl.SSLZeroReturnError:
            return got
        except ssl.SSLError as error:
            raise WireError(f"encrypted bytes were damaged on their way: {_reason(error)}") from error
        return got


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
    return context


def _reason(error: ssl.SSLError) -> str:
    return (getattr(error, "verify_message", None) or error.reason or str(error)).lower().replace("_", " ")


def _make() -> Sealed:
    """A new certificate."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise ImportError(
            f"Spark's settings ask for encryption (or {_SETTING} does), and TLS needs the package cryptography on the "
            f"driver: pip install 'firesteel[tls]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    password = secrets.token_hex(32).encode()
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), sealed, password
