"""The APIs by name: our own, a third party's, and which of them `option.dialect` puts on the invoke routes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner
from facts import Said, raises, says
from openapi_spec_validator import validate
from paths import SUPPORT
from serving import Server

from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.invocations import invocations
from lmi_handlers.apis.openai.dialect import ChatDialect, CompletionsDialect
from lmi_handlers.apis.registry import APIS, ServedApis, available_apis, load_api_class
from lmi_handlers.apis.routes import generation
from lmi_handlers.commands.cli import main
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

PLUGIN = SUPPORT / "plugin"


def served(**options: Any) -> ServedApis:
    return ServedApis(Context(properties=ServingProperties(**options)))


@pytest.mark.parametrize("name", sorted(APIS))
def test_api_is_where_the_table_says(name: str) -> None:
    assert issubclass(load_api_class(name), Api)


def test_no_route_is_declared_twice() -> None:
    routes = [(route.method, route.path) for route in served().routes()]
    assert len(set(routes)) == len(routes)
    names = [route.name for route in served().routes()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"inputs": "a"}, None),
        ({"inputs": "a", "messages": []}, None),
        ({"parameters": {"messages": []}}, None),
        ({"messages": []}, ChatDialect),
        ({"messages": [], "prompt": "a"}, ChatDialect),
        ({"prompt": "a"}, CompletionsDialect),
        (["messages"], None),
    ],
)
def test_fields_choose_the_dialect_of_a_body(body: object, kind: type | None) -> None:
    invocations = served().invocations
    found = invocations.of(Payload(data=json.dumps(body).encode(), request_id="r"))
    assert found is invocations.native if kind is None else type(found) is kind


def test_case_of_a_dialects_name_does_not_matter() -> None:
    assert type(served(dialect="MindIE").root.dialect) is type(served(dialect="mindie").root.dialect)


@pytest.mark.parametrize("name", ["morse", "openai"])
def test_dialect_that_the_invoke_routes_cannot_speak(name: str) -> None:
    with raises(ConfigError, f"option.dialect {name} mindie tgi"):
        served(dialect=name)


def test_lmi_check_refuses_an_unknown_dialect(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=echo\noption.dialect=morse\n")
    result = CliRunner().invoke(main, ["check", "--model-dir", str(tmp_path)], env={"LOG_FORMAT": "text"})
    assert result.exit_code == 1
    assert says(result.stderr, "lmi: error: option.dialect morse lmi mindie tgi")


def test_dialect_that_is_not_tgis_conflicts_with_tgi_compat() -> None:
    with raises(ConfigError, "option.dialect=lmi conflicts option.tgi_compat=true"):
        served(dialect="lmi", tgi_compat=True)


# A third party's


def test_third_partys_api_is_found_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "say" not in available_apis()
    monkeypatch.delitem(sys.modules, "scripted_api", raising=False)  # another test may have imported it
    monkeypatch.syspath_prepend(PLUGIN)
    assert available_apis() == APIS | {"say": "scripted_api:SayApi"}
    assert "scripted_api" not in sys.modules


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    distribution = tmp_path / "other-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(f"[lmi_handlers.apis]\nother = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_broken_plugin_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "no_such_module:Broken")
    with raises(ConfigError, "API other ModuleNotFoundError"):
        served()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ("create = lambda self: 1 / 0", "API other created ZeroDivisionError"),
        ("routes = lambda self: 1 / 0", "API other routes ZeroDivisionError"),
        ("path = '/generate'", "APIs tgi other POST /generate"),
        ("path = '/ping'", "APIs server other POST /ping"),
        ("path = 'other'", "API other path slash"),
        (
            "path = '/other/{name}'",
            "API other /other/{name} parameters declared",
        ),
        ("name = 'generate'", "APIs tgi other operation generate"),
        ("claims = {'prompt': GENERATION}", "APIs openai other claim prompt"),
        ("prefixes = ('/v1',)", "APIs openai other prefix /v1"),
    ],
)
def test_plugin_that_cannot_be_served_is_named(
    members: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_api.py").write_text(f"""\
from scripted_api import SayBody, SayDialect

from lmi_handlers.apis.api import Api
from lmi_handlers.apis.routes import Route, generation

GENERATION = generation(SayDialect(), SayBody, {{}})

class OtherApi(Api):
    path, name = "/other", "other"

    def __init__(self, context):
        self.create()

    def create(self):
        pass

    def routes(self):
        return [Route("POST", self.path, self.name, "Other", "Answer.", GENERATION)]

    {members}
""")
    monkeypatch.syspath_prepend(PLUGIN)
    install(tmp_path, monkeypatch, "other_api:OtherApi")
    monkeypatch.delitem(sys.modules, "other_api", raising=False)
    with raises(ConfigError, message):
        served()


def test_body_of_a_native_dialect_need_not_be_a_struct() -> None:
    apis = served().apis
    assert apis["tgi"].root is not None
    native = generation(apis["tgi"].root.dialect, dict[str, str], {})
    endpoint = invocations(native, apis["openai"].claims, "text-generation")
    assert endpoint.of(Payload(data=b'{"prompt": "a"}', request_id="r")) is not endpoint.native
    assert endpoint.of(Payload(data=b'{"say": "prompt"}', request_id="r")) is endpoint.native


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(
        tmp_path_factory.mktemp("say") / "m",
        "option.rolling_batch=echo\noption.dialect=say\n",
        environ={"PYTHONPATH": os.pathsep.join(filter(None, [str(PLUGIN), os.environ.get("PYTHONPATH")]))},
    )
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("path", ["/say", "/invocations"])
def test_third_partys_dialect_answers(server: Server, path: str) -> None:
    answer = server.invoke({"say": "one two three", "tokens": 2}, path=path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/csv")
    assert len(answer.text.splitlines()) == 3
    answer = server.invoke({"tokens": 2}, path=path)
    assert (answer.status_code, answer.json()) == (400, {"sorry": "Object missing required field `say`"})


def test_openais_bodies_are_still_openais(server: Server) -> None:
    assert server.invoke({"prompt": "a", "max_tokens": 1}).json()["object"] == "text_completion"
    assert server.invoke({"prompt": "a", "say": "b"}).headers["Content-Type"] == "text/csv"


def test_tgis_routes_remain(server: Server) -> None:
    assert "generated_text" in server.invoke({"inputs": "a"}, path="/").json()[0]


def test_third_partys_errors_of_the_router(server: Server) -> None:
    answer = requests.post(f"{server.url}/say/more", json={}, timeout=60)
    assert answer.status_code == 404
    assert answer.json() == {"sorry": Said("/say/more not route GET /openapi.json")}


def test_third_partys_route_is_in_the_document(server: Server) -> None:
    document = requests.get(f"{server.url}/openapi.json", timeout=60).json()
    validate(document | {"paths": {"/say": document["paths"]["/say"]}})
    operation = document["paths"]["/say"]["post"]
    assert operation["operationId"] == "say"
    assert document["components"]["schemas"]["SayBody"]["properties"]["tokens"]["minimum"] == 1
    assert {"200", "400", "500"} <= set(operation["responses"])
