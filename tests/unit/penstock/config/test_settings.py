"""Layers, complaints and the round trip of `--print-config`."""

from dataclasses import fields
from pathlib import Path

import pytest

from gateway.listen_address import SHAPE
from penstock.config.settings import Settings, load, render
from penstock.config.settings_docs import settings_page
from penstock.config.settings_tree import FLAGS, SETTINGS, section_of
from penstock.errors import SettingsError
from tests.support.server_process import ROOT


def config(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return file


def complaint(
    flags: dict[str, object] | None = None,
    env: dict[str, str] | None = None,
    file: Path | None = None,
) -> str:
    with pytest.raises(SettingsError) as raised:
        load(flags or {}, env or {}, file)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_settings_without_sources_are_the_defaults() -> None:
    assert load({}, {}, None) == Settings()


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    file = config(tmp_path, 'log_level = "error"\n[store]\nflush = "async"\nsegment_bytes = 8388608')
    env = {"PENSTOCK_STORE__FLUSH": "buffered", "PENSTOCK_LOG_LEVEL": "warning"}
    settings = load({"log_level": "debug"}, env, file)
    assert settings.store.segment_bytes == 8_388_608
    assert settings.store.flush == "buffered"
    assert settings.log_level == "debug"


SECRETS = {
    **{f"wire.{role}token": ("s3cret-token", "***") for role in ("", "gateway_", "client_", "operator_")},
    "gateway.store_token": ("s3cret-token", "***"),
    "notify.redis_url": ("redis://user:s3cret@cache.example:6379/0", "redis://***@cache.example:6379/0"),
    "auth.jwt_keys_url": ("https://keys.example/jwks?key=s3cret", "https://keys.example/jwks?***"),
    "auth.http_connect_url": ("https://user:s3cret@auth.example/connect", "https://***@auth.example/connect"),
    "auth.http_permission_url": ("https://s3cret@auth.example/may", "https://***@auth.example/may"),
}


@pytest.mark.parametrize("path", SECRETS)
def test_printed_config_hides_secrets_and_can_be_loaded(path: str, tmp_path: Path) -> None:
    given, shown = SECRETS[path]
    settings = load({path: given}, {}, None)
    printed = render(settings)
    assert "s3cret" not in printed
    assert shown in printed
    assert load({}, {}, config(tmp_path, printed)) == load({}, {}, None)
    assert load({}, {}, config(tmp_path, render(settings, hide_secrets=False))) == settings


def test_every_setting_that_may_hold_a_secret_is_known_as_one() -> None:
    named = {path for path in SETTINGS if path.endswith(("token", "_url", "password", "secret"))}
    kinds = {path: setting.limits["secret"] for path, setting in SETTINGS.items() if "secret" in setting.limits}
    assert kinds.pop("tier.url") == kinds.pop("store.replicated_log") == "refused"
    assert named == SECRETS.keys() == kinds.keys()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("notify.redis_url", "redis:/user:s3cret@h/0"),
        ("notify.redis_url", "rediss//:s3/cret?@h"),
        ("auth.http_connect_url", "ftp://u:s3cret@h"),
    ],
)
def test_a_complaint_about_a_secret_does_not_tell_it(path: str, value: str) -> None:
    env = {SETTINGS[path].environment_names[-1]: value}
    told = complaint(env=env)
    assert "s3" not in told
    assert "cret" not in told
    assert path in told


@pytest.mark.parametrize(
    "url",
    [
        "s3://u:hidden@bucket/fleet",
        "s3://u:hid/den@bucket/fleet",
        "s3:/u:hidden@bucket/fleet",
        "s3://bucket/fleet?aws_secret_access_key=hidden",
        "abfss://fleet:hidden@account.dfs.core.windows.net/fleet",
    ],
)
def test_the_place_of_a_tier_has_no_credentials(url: str) -> None:
    told = complaint({"tier.url": url})
    assert "hid" not in told
    assert "den" not in told
    assert "is not a folder, or a URL of storage like s3://BUCKET/PATH without user, password and query" in told


@pytest.mark.parametrize(
    "url",
    [
        "/srv/a@b?c",
        "fleet",
        "file:///srv/fleet",
        "s3://bucket/fleet/a@b",
        "abfss://fleet@account.dfs.core.windows.net/f",
    ],
)
def test_places_of_a_tier_are_shown_as_they_are(url: str) -> None:
    assert f'url = "{url}"' in render(load({"tier.url": url}, {}, None))


def test_a_token_that_is_no_text_is_not_quoted(tmp_path: Path) -> None:
    assert "77123" not in complaint(file=config(tmp_path, "[wire]\ntoken = 77123"))


def test_flags_that_were_not_given_hide_nothing() -> None:
    env = {"PENSTOCK_FLUSH": "async", "PENSTOCK_LISTEN": "mqtt://127.0.0.1:1"}
    settings = load({"flush": None, "listen": []}, env, None)
    assert settings.store.flush == "async"
    assert settings.gateway.listen == ("mqtt://127.0.0.1:1",)


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    file = config(tmp_path, '[store]\nflush = "async"')
    assert load({}, {"PENSTOCK_CONFIG": str(file)}, None).store.flush == "async"


@pytest.mark.parametrize("name", [name for setting in SETTINGS.values() for name in setting.environment_names])
def test_every_setting_can_be_given_in_the_environment(name: str) -> None:
    try:
        taken = load({}, {name: "7"}, None) != Settings()
    except SettingsError as error:  # 7 is no flush policy, say; but it was looked at
        taken = str(error).endswith(f"(from {name})")
    assert taken


def test_lists_are_separated_by_commas_in_the_environment() -> None:
    settings = load({}, {"PENSTOCK_LISTEN": "mqtt://127.0.0.1:1883, mqtt://[::1]:1884"}, None)
    assert settings.gateway.listen == ("mqtt://127.0.0.1:1883", "mqtt://[::1]:1884")


def test_an_empty_variable_is_not_set() -> None:
    env = {"PENSTOCK_ADMIN": "", "PENSTOCK_CONFIG": "", "PENSTOCK_STORE__RETENTION_BYTES": ""}
    assert load({}, env, None) == Settings()


def test_kubernetes_service_variables_are_not_settings() -> None:
    env = {"PENSTOCK_PORT": "tcp://10.0.0.1:1883", "PENSTOCK_SERVICE_HOST": "10.0.0.1"}
    assert load({}, env, None) == Settings()


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (
            {"PENSTOCK_STORE__FLUSH": "fast"},
            "store.flush: 'fast' is not one of sync, async, buffered (from PENSTOCK_STORE__FLUSH)",
        ),
        (
            {"PENSTOCK_GATEWAY__RECEIVE_MAXIMUM": "70000"},
            "gateway.receive_maximum: 70000 is not an integer from 1 to 65535 (from PENSTOCK_GATEWAY__RECEIVE_MAXIMUM)",
        ),
        (
            {"PENSTOCK_STORE__RETENTION_AGE_S": "a week"},
            "store.retention_age_s: 'a week' is not an integer of at least 1 (from PENSTOCK_STORE__RETENTION_AGE_S)",
        ),
        (
            {"PENSTOCK_GATEWAY__QUEUE_QOS0": "perhaps"},
            "gateway.queue_qos0: 'perhaps' is not true or false (from PENSTOCK_GATEWAY__QUEUE_QOS0)",
        ),
        (
            {"PENSTOCK_LISTEN": "mqtt://127.0.0.1:1883,1884"},
            f"gateway.listen: '1884' is not {SHAPE} (from PENSTOCK_LISTEN)",
        ),
        (
            {"PENSTOCK_ADMIN": "127.0.0.1:99999"},
            "admin: '127.0.0.1:99999' is not HOST:PORT (from PENSTOCK_ADMIN)",
        ),
        (
            {"PENSTOCK_STORE__FLSUH": "sync"},
            "store.flsuh: no such setting; did you mean store.flush? (from PENSTOCK_STORE__FLSUH)",
        ),
        (
            {"PENSTOCK_FLUSH": "sync", "PENSTOCK_STORE__FLUSH": "async"},
            "store.flush: both PENSTOCK_FLUSH and PENSTOCK_STORE__FLUSH are set; unset one",
        ),
    ],
)
def test_a_wrong_variable_is_refused_by_name(env: dict[str, str], text: str) -> None:
    assert complaint(env=env) == text


def test_a_wrong_flag_is_refused_by_name() -> None:
    assert complaint({"flush": "fast"}).endswith("(from --flush)")
    assert complaint({"log_level": "loud"}).endswith("(from --log-level)")


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        ("[store]\nflsh = 'sync'", "store.flsh: no such setting; did you mean store.flush?"),
        ("segment_bytes = 1", "segment_bytes: no such setting; did you mean store.segment_bytes?"),
        ("[stor]\nflush = 'sync'", "stor: no such setting; `penstock serve --print-config`"),
        ("store = 3", "store: 3 is not a table; write [store] and its settings below it"),
        ("[store]\nsegment_bytes = true", "store.segment_bytes: True is not an integer from"),
        ("[gateway]\nlisten = [1]", "gateway.listen: [1] is not a list of mqtt://HOST:PORT"),
    ],
)
def test_a_wrong_line_in_the_file_is_refused_by_name(tmp_path: Path, toml: str, text: str) -> None:
    file = config(tmp_path, toml)
    found = complaint(file=file)
    assert found.startswith(text)
    assert found.endswith(f"(from {file})")


def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert complaint(file=missing).startswith(f"{missing}: No such file or directory; name")
    assert "line 1" in complaint(file=config(tmp_path, "= 3"))
    latin1 = tmp_path / "latin1.toml"
    latin1.write_bytes(b"# caf\xe9")
    assert "not UTF-8" in complaint(file=latin1)


def test_a_packet_must_fit_a_segment() -> None:
    found = complaint(env={"PENSTOCK_STORE__SEGMENT_BYTES": "65536"})
    assert found.startswith("gateway.maximum_packet_size_bytes: 1048576 is more than half")


def test_printed_config_can_be_read_back(tmp_path: Path) -> None:
    flags = {"data": Path('/tmp/a "b"\\ü'), "listen": ["mqtt://127.0.0.1:1", "mqtt://[::1]:2"]}
    env = {"PENSTOCK_STORE__LIVE_ONLY": "a/#,\x7f/+", "PENSTOCK_GATEWAY__QUEUE_QOS0": "yes"}
    for settings in (load({}, {}, None), load(flags, env, None)):
        assert load({}, {}, config(tmp_path, render(settings))) == settings


def test_every_setting_is_documented_and_allows_its_default() -> None:
    for setting in SETTINGS.values():
        assert setting.doc.endswith(".")
        assert setting.parse(setting.default) == setting.default
    assert set(FLAGS) <= set(SETTINGS)
    assert {section_of(path) for path in SETTINGS} == {
        "",
        "store",
        "wire",
        "notify",
        "gateway",
        "auth",
        "quota",
        "audit",
        "tracing",
        "console",
        "cluster",
        "tier",
        "flows",
    }
    assert len(SETTINGS) > len(fields(Settings))


def test_the_documentation_is_up_to_date() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == settings_page(), "run `make docs`"
