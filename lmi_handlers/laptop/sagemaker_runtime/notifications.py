"""Notifications about asynchronous invocations, posted as SNS posts them to an HTTP subscriber.

They are not signed: there is no certificate that a subscriber could check.

Sources: SNS's page on HTTP message formats, and SageMaker's page on checking asynchronous predictions.
"""

from __future__ import annotations

import http.client
import json
import logging
import queue
import threading
import time
import urllib.request
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.redaction import redacted
from lmi_handlers.laptop.sagemaker_runtime.errors import ACCOUNT, REGION

_ATTEMPTS = 3
_PAUSE = 1.0
_TIMEOUT = 15.0
"""Seconds that SNS, too, waits for a subscriber."""
_MAX_QUEUED = 1000

logger = logging.getLogger(__name__)


def timestamp(moment: datetime) -> str:
    """Return the time like `2026-05-23T03:23:21.814Z`."""
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


class Topic:
    """An SNS topic with a single subscriber, `url`.

    Messages are posted one after the other by a thread of the topic's own, so a slow subscriber holds up nothing else.
    """

    def __init__(self, name: str, url: str) -> None:
        """Raises `ConfigError`."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--{name}-url has value {redacted(url)!r}: must be an http:// or https:// URL")
        self._url = url
        self._shown = redacted(url)
        self._arn = f"arn:aws:sns:{REGION}:{ACCOUNT}:{name}"
        self._queue: queue.Queue[urllib.request.Request] = queue.Queue(_MAX_QUEUED)
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def publish(self, message: Mapping[str, object]) -> None:
        """Queue the message. It is posted up to three times, and if nobody accepts it, the log says so."""
        message_id = str(uuid.uuid4())
        notification = {
            "Type": "Notification",
            "MessageId": message_id,
            "TopicArn": self._arn,
            "Message": json.dumps(message),
            "Timestamp": timestamp(datetime.now(timezone.utc)),
        }
        headers = {
            "Content-Type": "text/plain; charset=UTF-8",
            "x-amz-sns-message-type": "Notification",
            "x-amz-sns-message-id": message_id,
            "x-amz-sns-topic-arn": self._arn,
        }
        request = urllib.request.Request(self._url, json.dumps(notification).encode(), headers)  # noqa: S310  checked above
        try:
            self._queue.put_nowait(request)
        except queue.Full:
            logger.warning("a notification for %s was dropped: %d are waiting", self._shown, _MAX_QUEUED)
            return
        with self._start:  # not in the constructor: the process may still fork
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            self._deliver(self._queue.get())

    def _deliver(self, request: urllib.request.Request) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            if (failure := _post(request)) is None:
                return
            logger.warning("notifying %s failed (%d of %d tries): %s", self._shown, attempt, _ATTEMPTS, failure)
            if attempt < _ATTEMPTS:
                time.sleep(_PAUSE)


def _post(request: urllib.request.Request) -> Exception | None:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT):  # noqa: S310  `Topic` has checked it
            return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        return error
