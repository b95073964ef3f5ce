"""Who may ask the server, for what, and how much; and what a refusal says."""

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from regard.studio import create_app
from regard.studio._guard import HEADERS, Guard
from regard.studio._run_folders import Folder

TOKEN = "a-secret"


@pytest.fixture
def guarded(tmp_path):
    app = create_app(tmp_path, names=("studio.lan",), addresses=True, token=TOKEN, example=None)
    return TestClient(app, base_url="http://studio.lan:9000", follow_redirects=False)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8642",
        "",
        "10.0.0.1",
        "[::2]",
        "localhost:80:80x",
    ],
)
def test_a_request_under_another_name_is_refused(client, host):
    answer = client.get("/api/runs", headers={"host": host})
    assert answer.status_code == 421
    assert answer.json()["error"].startswith("this server does not answer to the host name")


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "LOCALHOST:8642", "[::1]:8642", "[::1]"])
def test_this_machine_s_own_names_are_answered_whatever_the_port(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:8643", "http://localhost:8642", "file://", "https://127.0.0.1"],
)
def test_a_page_from_elsewhere_is_refused(client, origin):
    for method in ("GET", "POST"):
        answer = client.request(method, "/api/about", headers={"origin": origin})
        assert answer.status_code == 403, method
        assert "other sites" in answer.json()["error"]


def test_the_page_itself_may_ask(client):
    answer = client.get("/api/about", headers={"origin": "http://127.0.0.1:8642", "sec-fetch-site": "same-origin"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_browser_that_says_a_request_comes_from_another_site_is_believed(client, site):
    assert client.get("/api/about", headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status_code == 403
    # A link to the page may be followed from anywhere; to anything else it may not.
    navigation = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=navigation).status_code == 200
    assert client.get("/api/about", headers=navigation).status_code == 403


def test_every_answer_forbids_what_is_not_needed(client):
    for path in ("/", "/studio.js", "/api/about", "/api/nothing", "/api/runs/none"):
        answer = client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, path
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert client.get("/api/about", headers={"host": "evil.example"}).headers["content-security-policy"] == policy


def test_without_the_token_nothing_is_told(guarded):
    for path in ("/", "/studio.js", "/api/runs", "/api/openapi.json", "/?token=wrong", "/api/runs?token=" + TOKEN):
        answer = guarded.get(path)
        assert answer.status_code == 401, path
        assert "token" in answer.json()["error"]
    for header in ({"cookie": "regard_studio=wrong"}, {"authorization": "Bearer wrong"}, {"cookie": b"\xe9=;;=\x7f"}):
        assert guarded.get("/api/runs", headers=header).status_code == 401


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_cannot_read(guarded):
    answer = guarded.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    assert guarded.get("/").status_code == 200
    assert guarded.get("/api/runs").json() == []


def test_a_program_shows_the_token_in_a_header(guarded):
    assert guarded.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_token_does_not_replace_the_other_checks(guarded):
    shown = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/api/runs", headers={**shown, "host": "evil.example"}).status_code == 421
    assert guarded.get("/api/runs", headers={**shown, "origin": "http://evil.example"}).status_code == 403
    # A name that was rebound to this address is never a number.
    assert guarded.get("/api/runs", headers={**shown, "host": "192.168.1.7:9000"}).status_code == 200


def test_a_body_that_says_it_is_too_large_is_not_read(client):
    answer = client.post("/api/runs/gaussian/attention", headers={"content-length": str(10**9)}, content=b"x")
    assert answer.status_code == 413
    assert client.post("/api/runs/gaussian/attention", headers={"content-length": "many"}).status_code == 400


def test_a_body_that_does_not_say_its_size_is_counted(client):
    def endless():
        for _ in range(100):
            yield b"x" * 2**20

    kind = {"content-type": "multipart/form-data; boundary=b"}
    answer = client.post("/api/runs/gaussian/attention", content=endless(), headers=kind)
    assert answer.status_code == 413
    assert "MB" in answer.json()["error"]


def test_there_is_no_way_in_by_web_socket(client):
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/runs"):
        pass


def test_other_methods_are_refused_in_words(client):
    answer = client.delete("/api/runs")
    assert answer.status_code == 405
    assert answer.json() == {"error": "DELETE is not allowed at this address"}


def test_a_mistake_of_ours_is_a_sentence_not_a_stack_trace(tmp_path, monkeypatch):
    def broken(self):
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(Folder, "places", broken)
    client = TestClient(create_app(tmp_path), base_url="http://127.0.0.1", raise_server_exceptions=False)
    answer = client.get("/api/runs")
    assert answer.status_code == 500
    assert answer.json() == {"error": "an error occurred in regard; the terminal that runs the studio shows it"}


def test_names_of_hosts_are_read_as_browsers_write_them():
    guard = Guard(None, names=["Lab"], addresses=True)
    assert all(map(guard.may_be_called, ("lab", "LAB:80", "10.1.2.3:8000", "[fe80::1]:80")))
    assert not any(map(guard.may_be_called, ("lab.evil", "evil:10.1.2.3", "[lab", "")))
