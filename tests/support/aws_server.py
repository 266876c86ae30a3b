"""moto's server for the APIs that `lmi deploy` uses, with what moto lacks, in a process of its own.

moto has no shadow variants, no inference components, no `UpdateEndpoint` and no policy simulator, overwrites what
exists, and knows only some instance types. Here, components and updates are in service at once, unless `control` says otherwise.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from boto_files import read_once
from serving import free_port
from waiting import wait_until

_ACCOUNT, _REGION = "123456789012", "us-east-1"
_CONTROL = "/_control"
_PASSED = {
    "iam:PassRole": "sagemaker.amazonaws.com",
    "iam:CreateServiceLinkedRole": "sagemaker.application-autoscaling.amazonaws.com",
}
"""What the simulated policies allow these for."""

Respond = Callable[[str, list[tuple[str, str]]], Any]


class AwsServer:
    """The server. `environ` makes boto3 use it."""

    def __init__(self) -> None:
        read_once()
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-W", "ignore", __file__, self.url.rpartition(":")[2]]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, timeout=120)
        self.environ = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": _REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def control(
        self,
        *,
        refuse: Iterable[str] = (),
        status: str = "InService",
        component: str = "InService",
        rolls_back: bool = False,
        lose: Iterable[str] = (),
        lingers: Iterable[str] = (),
    ) -> None:
        """Refuse these operations (or IAM actions, in the simulator), and give new endpoints and components a status.

        With `rolls_back`, an update leaves the endpoint with its former configuration. The answers to the calls of `lose`
        are lost, in that order. An endpoint that was deleted is described with each of the statuses `lingers` once.
        """
        settings = {"refuse": list(refuse), "status": status, "component": component, "rolls_back": rolls_back}
        self._post(_CONTROL, settings | {"lose": list(lose), "lingers": list(lingers)})

    def _post(self, path: str, body: object) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url + path, json.dumps(body).encode()), timeout=60).close()

    def _answers(self) -> bool:
        try:
            self.control()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class _Refused(Exception):
    pass


class _Additions:
    """A WSGI application before moto's."""

    def __init__(self, app: Callable[[dict[str, Any], Respond], Iterable[bytes]], sagemaker: Any) -> None:
        self._app = app
        self._sagemaker = sagemaker
        self._settings: dict[str, Any] = {}
        self._components: dict[str, dict[str, Any]] = {}
        self._shadows: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        body = _body(environ)  # whatever the answer: a connection that is closed with unread bytes is reset
        if body:
            environ["wsgi.input"] = io.BytesIO(body)
        if environ["PATH_INFO"] == _CONTROL:
            self._settings = json.loads(body)
            return _json(respond, {})
        if [operation] == self._settings["lose"][:1]:
            del self._settings["lose"][0]
            list(self(environ, lambda *_: None))
            return _json(respond, {"__type": "ServiceUnavailable", "message": "lost"}, "503 Service Unavailable")
        if operation in self._settings["refuse"]:
            return _json(
                respond, {"__type": "AccessDeniedException", "message": f"not allowed: {operation}"}, "400 Bad"
            )
        if "iam" in environ.get("HTTP_AUTHORIZATION", "").split("/")[3:4]:
            return self._simulation(body, respond)
        addition = getattr(self, f"_{operation}", None)
        if addition is None:
            return self._app(environ, respond)
        try:
            answer = addition(json.loads(body))
        except _Refused as refused:
            return _json(respond, {"__type": "ValidationException", "message": str(refused)}, "400 Bad Request")
        if answer is not None:
            return _json(respond, answer)
        answer = self._app(environ, respond)
        if operation == "CreateEndpoint":
            endpoint = self._sagemaker.endpoints[json.loads(body)["EndpointName"]]
            endpoint.endpoint_status = self._settings["status"]
            endpoint.failure_reason = "the container did not answer" if self._settings["status"] == "Failed" else None
        return answer

    def _simulation(self, body: bytes, respond: Respond) -> Iterable[bytes]:
        asked = urllib.parse.parse_qs(body.decode())
        actions = [values[0] for name, values in asked.items() if name.startswith("ActionNames.")]
        services = [values[0] for name, values in asked.items() if ".ContextKeyValues." in name]
        refused = [
            *self._settings["refuse"],
            *(action for action, service in _PASSED.items() if service not in services),
        ]
        members = "".join(
            f"<member><EvalActionName>{action}</EvalActionName><EvalDecision>"
            f"{'implicitDeny' if action in refused else 'allowed'}</EvalDecision></member>"
            for action in actions
        )
        name = "SimulatePrincipalPolicy"
        results = f"<{name}Result><EvaluationResults>{members}</EvaluationResults></{name}Result>"
        respond("200 OK", [("Content-Type", "text/xml")])
        return [f"<{name}Response>{results}</{name}Response>".encode()]

    def _CreateModel(self, body: dict[str, Any]) -> None:  # noqa: N802  AWS's names
        if body["ModelName"] in self._sagemaker._models:
            raise _Refused("Cannot create already existing model")

    def _CreateEndpointConfig(self, body: dict[str, Any]) -> None:  # noqa: N802
        if body["EndpointConfigName"] in self._sagemaker.endpoint_configs:
            raise _Refused("Cannot create already existing endpoint configuration")
        self._shadows[body["EndpointConfigName"]] = body.get("ShadowProductionVariants", [])

    def _DescribeEndpointConfig(self, body: dict[str, Any]) -> dict[str, Any] | None:  # noqa: N802
        if not (shadows := self._shadows.get(name := body["EndpointConfigName"])):
            return None
        described: dict[str, Any] = self._sagemaker.describe_endpoint_config(name)
        return described | {"ShadowProductionVariants": shadows}

    def _CreateEndpoint(self, body: dict[str, Any]) -> None:  # noqa: N802
        if body["EndpointName"] in self._sagemaker.endpoints:
            raise _Refused("Cannot create already existing endpoint")

    def _DescribeEndpoint(self, body: dict[str, Any]) -> dict[str, Any] | None:  # noqa: N802
        name = body["EndpointName"]
        if name in self._sagemaker.endpoints or not self._settings["lingers"]:
            return None
        arn = f"arn:aws:sagemaker:{_REGION}:{_ACCOUNT}:endpoint/{name}"
        status = self._settings["lingers"].pop(0)
        return {
            "EndpointName": name,
            "EndpointArn": arn,
            "EndpointStatus": status,
            "CreationTime": 0,
            "LastModifiedTime": 0,
        }

    def _UpdateEndpoint(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        endpoint = self._sagemaker.endpoints[body["EndpointName"]]
        if self._settings["rolls_back"]:
            endpoint.failure_reason = "an alarm went off"
        else:
            endpoint.endpoint_config_name = body["EndpointConfigName"]
            if not body.get("RetainAllVariantProperties"):
                for variant in endpoint.production_variants:
                    variant["CurrentInstanceCount"] = 1
        return {"EndpointArn": endpoint.arn}

    def _DeleteEndpoint(self, body: dict[str, Any]) -> None:  # noqa: N802
        if any(item["EndpointName"] == body["EndpointName"] for item in self._components.values()):
            raise _Refused("Cannot delete an endpoint with inference components")

    def _CreateInferenceComponent(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        name = body["InferenceComponentName"]
        arn = f"arn:aws:sagemaker:{_REGION}:{_ACCOUNT}:inference-component/{name}"
        status = self._settings["component"]
        reason = {"FailureReason": "there is no capacity"} if status == "Failed" else {}
        copies = body.get("RuntimeConfig", {}).get("CopyCount", 1)
        self._components[name] = body | {
            "InferenceComponentArn": arn,
            "InferenceComponentStatus": status,
            "RuntimeConfig": {"CurrentCopyCount": copies, "DesiredCopyCount": copies},
            "EndpointArn": f"arn:aws:sagemaker:{_REGION}:{_ACCOUNT}:endpoint/{body['EndpointName']}",
            "CreationTime": 0,
            "LastModifiedTime": 0,
            **reason,
        }
        return {"InferenceComponentArn": arn}

    def _UpdateInferenceComponent(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self._found(body)["Specification"] = body["Specification"]
        return {"InferenceComponentArn": self._found(body)["InferenceComponentArn"]}

    def _DescribeInferenceComponent(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {key: value for key, value in self._found(body).items() if key != "Tags"}

    def _ListInferenceComponents(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        found = self._components.values()
        return {"InferenceComponents": [item for item in found if item["EndpointName"] == body["EndpointNameEquals"]]}

    def _DeleteInferenceComponent(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        name = self._found(body)["InferenceComponentName"]
        if any(item["Specification"].get("BaseInferenceComponentName") == name for item in self._components.values()):
            raise _Refused("Cannot delete a component that has adapters")
        del self._components[name]
        return {}

    def _ListTags(self, body: dict[str, Any]) -> dict[str, Any] | None:  # noqa: N802
        kind, _, name = body["ResourceArn"].rpartition(":")[2].partition("/")
        return {"Tags": self._components[name]["Tags"]} if kind == "inference-component" else None

    def _found(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["InferenceComponentName"] not in self._components:
            raise _Refused(f"Could not find inference component {body['InferenceComponentName']}")
        return self._components[body["InferenceComponentName"]]


def _body(environ: dict[str, Any]) -> bytes:
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return body


def _json(respond: Respond, answer: object, status: str = "200 OK") -> Iterable[bytes]:
    respond(status, [("Content-Type", "application/x-amz-json-1.1")])
    return [json.dumps(answer, default=str).encode()]  # times


def _serve(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.sagemaker.models import FakeEndpointConfig, SageMakerModelBackend, sagemaker_backends
    from werkzeug.serving import run_simple

    # moto knows only old instance types, and no variants without a model.
    for kind in (FakeEndpointConfig, SageMakerModelBackend):
        setattr(kind, "validate_production_variants", lambda *_: None)  # noqa: B010  mypy forbids the assignment
    app = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, _Additions(app, sagemaker_backends[_ACCOUNT][_REGION]), threaded=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
