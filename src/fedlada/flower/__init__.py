"""The same methods on a real federation, over Flower (extra `flower`).

On the nodes `client_app` trains with the code of a simulation; on the server `server_app`, or a `MethodStrategy` in an
app of your own, samples the cohorts, aggregates and saves. The weights equal those of `fedlada.simulate`, bit for bit.
"""

from fedlada.flower.client import client_app
from fedlada.flower.exchange import Replies, TooFewReplies
from fedlada.flower.grid import InProcessGrid
from fedlada.flower.server import server_app
from fedlada.flower.strategy import MethodStrategy

__all__ = ["InProcessGrid", "MethodStrategy", "Replies", "TooFewReplies", "client_app", "server_app"]
