"""The routes of the page at `/docs`: who gets it, and what it brings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import requests
from model_store import ECHO, StoreServer
from serving import Server, StartServer

from lmi_handlers.laptop.swagger_ui import routes

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
FILES = ("page.css", "page.js", "favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css")


def get(server: Server, path: str, **headers: str) -> requests.Response:
    return requests.get(server.url + path, headers=headers, timeout=30)


def test_browsers_get_the_page(echo_server: Server) -> None:
    answer = get(echo_server, "/docs", Accept=BROWSER)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "accept" in answer.headers["Vary"].lower()
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert "Set-Cookie" not in answer.headers
    for link in re.findall(r'(?:src|href)="([^"#]+)"', answer.text):
        assert get(echo_server, f"/{link}", Accept=BROWSER).status_code == 200, link


@pytest.mark.parametrize("name", FILES)
def test_files_are_asked_for_again_only_if_they_have_changed(echo_server: Server, name: str) -> None:
    answer = get(echo_server, f"/docs/{name}")
    assert answer.status_code == 200
    again = get(echo_server, f"/docs/{name}", **{"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/docs/", "/docs/index.html", "/docs/../app.py", "/docs/%2e%2e/routes.py"])
def test_other_files_are_not_served(echo_server: Server, path: str) -> None:
    request = requests.Request("GET", echo_server.url).prepare()
    request.url = echo_server.url + path
    with requests.Session() as session:
        assert session.send(request, timeout=30).status_code == 404


def test_programs_do_not_get_the_page(echo_server: Server, start_server: StartServer) -> None:
    without = start_server("option.rolling_batch=echo\noption.console=false\n")
    with_page, program, browser = (
        get(echo_server, "/docs"),
        get(without, "/docs"),
        get(without, "/docs", Accept=BROWSER),
    )
    assert {answer.status_code for answer in (with_page, program, browser)} == {404}
    assert "option.console" not in with_page.text
    assert "option.console=true" in program.text
    assert program.text == browser.text
    assert [get(without, f"/docs/{name}").status_code for name in FILES] == [404] * len(FILES)


def test_a_key_turns_it_off(guarded_server: Server) -> None:
    assert get(guarded_server, "/docs", Accept=BROWSER).status_code == 404


def test_several_models(tmp_path: Path) -> None:
    server = StoreServer(tmp_path, {"a": ECHO, "b": ECHO})
    try:
        server.wait_ready()
        assert "swagger-ui" in get(server, "/docs", Accept=BROWSER).text
        assert get(server, "/docs/page.js").status_code == 200
        assert get(server, "/docs").status_code in (400, 404)
    finally:
        server.stop()


def test_without_the_package_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from flask import Flask

    monkeypatch.setattr(routes, "_PACKAGE", "a_package_that_nobody_has")
    app = Flask(__name__, static_folder=None)
    routes.add_docs(app)
    answer = app.test_client().get("/docs", headers={"Accept": BROWSER})
    assert answer.status_code == 404
    assert "pip install flask-swagger-ui" in answer.text
    assert app.test_client().get("/docs/swagger-ui.css").status_code == 404
