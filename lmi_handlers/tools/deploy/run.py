"""Makes the calls of a plan, and takes back what it made if one of them fails."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lmi_handlers.core.terminal import show
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.client.errors import CallRefused

_INVERSE = {
    "create_model": ("delete_model", ("ModelName",)),
    "create_endpoint_config": ("delete_endpoint_config", ("EndpointConfigName",)),
    "create_endpoint": ("delete_endpoint", ("EndpointName",)),
    "create_inference_component": ("delete_inference_component", ("InferenceComponentName",)),
    "register_scalable_target": (
        "deregister_scalable_target",
        ("ServiceNamespace", "ResourceId", "ScalableDimension"),
    ),
}
"""The call that reverts another, and the parameters that it needs. A policy goes with its target."""

IN_SERVICE = "InService"
_DELETING = "Deleting"
FAILED = ("Failed", "OutOfService", "UpdateRollbackFailed")
_PATIENCE_SECONDS = 300
"""For descriptions that fail: without a connection, with too many calls, or with a token that has expired."""
_MAX_WAIT_SECONDS = 3 * 3600  # longer than the longest download and start-up that SageMaker allows
GONE = "gone"
"""The `until` of a call that is repeated until there is nothing to describe."""


class Unknown(CallRefused):
    """AWS does not say what became of something. It may be well, so nothing is taken back."""


def run(aws: Aws, calls: Iterable[AwsCall], *, keep_failed: bool = False) -> None:
    """Make the calls. If one fails, delete what was made, unless `keep_failed`. Raises `CallRefused`.

    Ctrl-C ends this, but not what AWS is doing: nothing is deleted. The same if AWS no longer answers.
    """
    made: list[AwsCall] = []  # deletions
    used: list[AwsCall] = []  # those of what an update has put to use
    update = None
    with _interruptible():
        try:
            for call in calls:
                if call.until is not None:
                    answer = wait(aws, call)
                    if update is not None and _is_rolled_back(update, answer):
                        made, used = used + made, []
                        reason = status_of(answer)[1] or "it gives no reason"
                        raise CallRefused(f"SageMaker has rolled the update back: {reason}")
                elif (deletion := _perform(aws, call)) is not None:
                    made.append(deletion)
                if call.operation == "update_endpoint":
                    update = call
                if call.operation.startswith("update_"):
                    made, used = [], used + made
        except KeyboardInterrupt as error:
            raise CallRefused(
                "interrupted; what was made is still there: see `lmi status` and `lmi undeploy`"
            ) from error
        except Unknown as error:
            raise CallRefused(f"{error}{_kept(used + made)}; see `lmi status` and `lmi undeploy`") from error
        except CallRefused as error:
            raise CallRefused(
                f"{error}{_kept(used + made) if keep_failed or used else _take_back(aws, made)}"
            ) from error


def inverse(call: AwsCall) -> AwsCall | None:
    """Return the call that deletes what `call` creates."""
    if call.operation not in _INVERSE:
        return None
    operation, names = _INVERSE[call.operation]
    return AwsCall(call.service, operation, {name: call.parameters[name] for name in names})


def _perform(aws: Aws, call: AwsCall) -> AwsCall | None:
    """Make one call, and return the one that deletes what it created."""
    show(f"{call.api_name} {call.subject}")
    is_change = call.operation == "register_scalable_target" and _is_registered(aws, call)
    try:
        aws(call)
    except CallRefused as refused:
        # Models and configurations are named after what they say: an earlier run was interrupted.
        if refused.is_duplicate and call.operation in ("create_model", "create_endpoint_config"):
            show(f"  exists already: {refused.message}")
            return None
        if not _is_done(aws, call):
            raise
        show(f"  already done: {refused.message}")
    return None if is_change else inverse(call)


def _is_done(aws: Aws, call: AwsCall) -> bool:
    """Tell whether an endpoint has the configuration asked for: only the answer was lost, or boto3 has sent it twice."""
    if call.operation not in ("create_endpoint", "update_endpoint"):
        return False
    named = {"EndpointName": call.parameters["EndpointName"]}
    endpoint = _find(aws, AwsCall(call.service, "describe_endpoint", named)) or {}
    descriptions = [endpoint, endpoint.get("PendingDeploymentSummary", {})]
    return call.parameters["EndpointConfigName"] in [found.get("EndpointConfigName") for found in descriptions]


def _is_registered(aws: Aws, call: AwsCall) -> bool:
    """Tell whether the target is registered already. Registering it again changes it."""
    named = {"ServiceNamespace": call.parameters["ServiceNamespace"], "ResourceIds": [call.parameters["ResourceId"]]}
    return bool(aws(AwsCall(call.service, "describe_scalable_targets", named))["ScalableTargets"])


def _is_rolled_back(update: AwsCall, answer: dict[str, Any]) -> bool:
    """Tell whether an endpoint that is in service has its former configuration."""
    asked = update.parameters["EndpointConfigName"]
    return bool(answer.get("EndpointConfigName", asked) != asked)


def _kept(made: list[AwsCall]) -> str:
    """Return what to add to the error if nothing is deleted."""
    return f". What was made is kept: {', '.join(call.subject for call in made)}" if made else ""


def _take_back(aws: Aws, made: list[AwsCall]) -> str:
    """Delete what was made, last first. Returns what to add to the error."""
    remaining = [left for deletion in reversed(made) if (left := _left(aws, deletion))]
    if not made:
        return ". Nothing was created"
    if not remaining:
        return ". What was created has been deleted again"
    return f". This is still there, until `lmi undeploy` deletes it: {', '.join(remaining)}"


def _left(aws: Aws, deletion: AwsCall) -> str:
    """Delete something. Returns what is left and why, or nothing."""
    try:
        delete(aws, deletion)
    except CallRefused as refused:
        return f"{deletion.subject} ({refused})"
    return ""


def delete(aws: Aws, deletion: AwsCall) -> None:
    """Delete a resource, and wait until it is gone where that takes time. A missing one is no error. Raises `CallRefused`."""
    show(f"{deletion.api_name} {deletion.subject}")
    try:
        aws(deletion)
    except CallRefused as refused:
        if not refused.is_missing:
            raise
    if deletion.operation in ("delete_endpoint", "delete_inference_component"):
        described = deletion.operation.replace("delete_", "describe_")
        wait(aws, AwsCall(deletion.service, described, deletion.parameters, until=GONE))


def wait(aws: Aws, call: AwsCall) -> dict[str, Any]:
    """Repeat a call until the status is `call.until`, and return the last answer. Prints each new status.

    Raises `CallRefused` if it fails or takes too long, and `Unknown` if AWS gives no answer. What is deleted may have failed
    before, and be described so for a while.
    """
    what = "to be deleted" if call.until == GONE else f"to be {call.until}"
    show(f"waiting for {call.subject} {what}")
    seen, started = "", time.monotonic()
    deadline = started + _MAX_WAIT_SECONDS
    for pause in _pauses():
        answer = _find(aws, call)
        status, reason = status_of(answer)
        if status != seen:
            show(f"  {status}")
        was_deleted, seen = seen == _DELETING, status
        if status == call.until:
            return answer or {}
        may_be_old = call.until == GONE and not was_deleted and time.monotonic() < started + _PATIENCE_SECONDS
        if answer is None or (status in FAILED and not may_be_old):
            raise CallRefused(f"{call.subject} is {status}: {reason or 'SageMaker gives no reason'}")
        if time.monotonic() > deadline:
            raise CallRefused(f"{call.subject} is still {status} after {_MAX_WAIT_SECONDS // 3600} hours")
        time.sleep(pause)
    raise AssertionError("pauses never end")


def _find(aws: Aws, call: AwsCall) -> dict[str, Any] | None:
    """Describe something, or return None if it does not exist. Raises `Unknown` if that fails for some minutes."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for pause in _pauses():
        try:
            return aws.find(call)
        except CallRefused as refused:
            if time.monotonic() > deadline:
                raise Unknown(f"{refused}. So it is not known what became of {call.subject}") from refused
            show(f"  {refused}; trying again")
        time.sleep(pause)
    raise AssertionError("pauses never end")


def status_of(answer: dict[str, Any] | None) -> tuple[str, str]:
    """Return the status in a description, and the reason of a failure, which may be empty."""
    if answer is None:
        return GONE, ""
    status = answer.get("EndpointStatus") or answer.get("InferenceComponentStatus") or ""
    return status, answer.get("FailureReason", "")


def _pauses() -> Iterator[float]:
    """Yield seconds: short ones first, because a deletion may take only seconds."""
    yield from (0.5, 1.0, 2.0, 5.0)
    while True:
        yield 15.0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C, because there is something to clean up. `interruptible` says why not earlier."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
