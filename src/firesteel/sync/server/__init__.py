"""The asynchronous parameter server, as a sync: Hogwild or locked.

Nothing here opens a port: servers and clients are given connections (``Line``), which the engine makes.
"""

from firesteel.sync.server.agreement import ServerSync
from firesteel.sync.server.client import Client, Dial
from firesteel.sync.server.serving import Line, ParameterServer

__all__ = ["Client", "Dial", "Line", "ParameterServer", "ServerSync"]
