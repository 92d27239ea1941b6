"""The notice that a spot host will be taken away becomes a stop request (lesson 13).

EC2 answers at a local address with 404 until it has decided, and then with the time; two minutes are left.
SageMaker sends SIGTERM instead. Only a host that is told to asks: set ``checkpoint.spot_notice``.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from types import TracebackType

from dtlab.train.signals import StopSignals

__all__ = ["EC2", "SpotNotice"]

EC2 = "http://169.254.169.254/latest/meta-data/spot/instance-action"
_TOKEN = "/latest/api/token"
# The address is this host's own: a proxy, which the environment may name for the rest, cannot reach it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SpotNotice:
    """Asks ``url`` every few seconds in a thread while the block runs; 200 asks ``signals`` to stop.

    A host that does not answer is asked again: no answer is no notice.
    """

    def __init__(self, signals: StopSignals, url: str = EC2, every_seconds: float = 5.0) -> None:
        self._signals, self._url, self._every = signals, url, every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dtlab-spot-notice", daemon=True)

    def _watch(self) -> None:
        while not self._end.is_set():
            if self._has_come():
                self._signals.stop("spot notice")
                return
            self._end.wait(self._every)

    def _has_come(self) -> bool:
        headers = {}
        scheme, _, host = self._url.partition("://")
        base = f"{scheme}://{host.split('/')[0]}"
        try:
            # Newer hosts want a token first; others do not know the address.
            asked = urllib.request.Request(
                base + _TOKEN, method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
            )
            with _OPENER.open(asked, timeout=1.0) as answer:
                headers["X-aws-ec2-metadata-token"] = answer.read().decode()
        except (OSError, ValueError):
            pass
        try:
            with _OPENER.open(urllib.request.Request(self._url, headers=headers), timeout=1.0) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError, urllib.error.HTTPError):
            return False

    def __enter__(self) -> SpotNotice:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
