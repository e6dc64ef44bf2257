"""Flows as a file has them: what is wrong is one line that names flow, field and remedy, before anything starts."""

from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.flows.definition import Flow, read_flows
from penstock.flows.sink import sink_of
from penstock.sdk.client import Client

GOOD = 'from = "plant/+/temp"\nto = "https://example.test/hook"\n'


def flows_of(tmp_path: Path, text: str, name: str = "alarms") -> list[Flow]:
    path = tmp_path / "flows.toml"
    path.write_text(f"[flow.{name}]\n{text}")
    flows = read_flows(path)
    for flow in flows:
        sink_of(flow, Client("unix:///nowhere"), "penstock://store")
    return flows


def test_a_flow_has_all_that_the_page_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", "whsec_c2VjcmV0")
    (tmp_path / "token").write_text("Bearer abc\n")
    (flow,) = flows_of(
        tmp_path,
        f"""{GOOD}
        where = "json.celsius > 90"
        map = {{ topic = "alarms/{{levels[1]}}", payload = "{{json.celsius}}", headers = {{ site = "{{levels[1]}}" }} }}
        format = "cloudevents-batch"
        headers = {{ Authorization = {{ file = "{tmp_path}/token" }}, X-Site = "a" }}
        sign = {{ env = "HOOK_KEY" }}
        attempts = 3
        start = "now"
        allow_addresses = ["169.254.10.0/24"]
        """,
    )
    assert flow.group == "flow.alarms"
    assert flow.headers == {"Authorization": "Bearer abc", "X-Site": "a"}
    assert (flow.said.attempts, flow.said.batch, flow.signing_key) == (3, 100, "whsec_c2VjcmV0")
    assert "abc" not in repr(flow.said)
    assert "c2Vj" not in repr(flow.said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('to = "https://a.test"', "flow.alarms: object missing required field `from`; see docs/flows.md"),
        ('from = "a/#/b"\nto = "https://a.test"', "flow.alarms.from: 'a/#/b' is no topic filter"),
        ('from = "$share/g/a"\nto = "https://a.test"', "flow.alarms.from: a flow is a group by itself"),
        (GOOD + 'wher = "true"', "flow.alarms: `wher` is not known; is `where` meant?"),
        (GOOD + 'map = { topc = "x" }', "flow.alarms.map: `topc` is not known; is `topic` meant?"),
        (GOOD + 'format = "xml"', "flow.alarms.format: invalid enum value 'xml'"),
        (GOOD + "attempts = 0", "flow.alarms.attempts: expected `int` >= 1"),
        (GOOD + 'where = "json.celsius >"', "flow.alarms.where: character 15: Syntax error"),
        (GOOD + 'where = "jsn.celsius > 1"', "flow.alarms.where: character 4: undeclared reference to 'jsn.celsius'"),
        (GOOD + 'where = "json.celsius + 1"', "flow.alarms.where: "),
        (
            GOOD + "where = \"topic + 'x'\"",
            "flow.alarms.where: it gives STRING, and not a bool; ",
        ),
        (
            GOOD + 'where = "json.l.map(x, x).size() > 1"',
            "flow.alarms.where: map() builds a list",
        ),
        (GOOD + 'map = { topic = "a/{levels[1" }', "flow.alarms.map.topic: a `{` is not closed; write {{ for a brace"),
        (GOOD + 'map = { topic = "a/}" }', "flow.alarms.map.topic: `}` at character 3 closes nothing"),
        (
            GOOD + 'map = { headers = { Big = "x" } }',
            "flow.alarms.map.headers.Big: is no name",
        ),
        (
            GOOD + 'headers = { Authorization = "Bearer abc" }',
            "flow.alarms.headers.Authorization: a secret ",
        ),
        (GOOD + 'sign = { env = "NOT_THERE" }', "flow.alarms.sign: the environment has no NOT_THERE; set it"),
        (GOOD + 'sign = { file = "/not/there" }', "flow.alarms.sign: /not/there: "),
        (GOOD + "sign = {}", "flow.alarms.sign: a secret is in a file or in the environment"),
        (GOOD + 'allow_addresses = ["x"]', "flow.alarms.allow_addresses: 'x' does not appear to be"),
        (GOOD + 'ca_file = "/not/there"', "flow.alarms.ca_file: /not/there: "),
        ('from = "a"\nto = "https://u:p@a.test"', "flow.alarms.to: a URL has no password here"),
        ('from = "a"\nto = "ftp://a.test"', "flow.alarms.to: 'ftp://a.test' is no place for messages; say http://"),
        ('from = "a"\nto = "https://"', "flow.alarms.to: 'https://' names no host"),
        ('from = "a"\nto = "file://host/x"', "flow.alarms.to: 'file://host/x' names no file of this machine"),
        (
            'from = "a"\nto = "file:///x"\nformat = "cloudevents-batch"',
            "flow.alarms.format: a file has no ",
        ),
        ('from = "a/#"\nto = "penstock:"', "flow.alarms.map.topic: its messages would come back to it"),
        (
            GOOD + 'token = { env = "NOT_THERE" }',
            "flow.alarms.token: ",
        ),
    ],
)
def test_errors_of_flow_definitions_name_flow_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        flows_of(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no flow; write a table [flow.NAME]"),
        ("[flow]", "there is no flow"),
        ("[flows.a]\nx=1", "'flows' is not known here; flows are tables: [flow.NAME]"),
        ("[flow.a", "is no TOML"),
        ("flow = 3", "there is no flow"),
        ('[flow."a b"]\nfrom="a"\nto="http://h"', "flow.a b: a name has 1 to 100 letters"),
    ],
)
def test_a_file_without_flows_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "flows.toml").write_text(text)
    with pytest.raises(UsageError, match=r"flows\.toml") as caught:
        read_flows(tmp_path / "flows.toml")
    assert said in str(caught.value)
    with pytest.raises(UsageError, match="give a file with flows"):
        read_flows(tmp_path / "missing.toml")
