from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from shared.api_keys import Scope
from shared.errors import BadSetting, Internal
from shared.limits import GiB, KiB, MiB
from shared.settings import SETTINGS, Setting, Settings, is_loopback, load_settings, parse_toml, size_text

SECRET = "s3cr3t-Zq9"


def load(
    flags: Mapping[str, str | None] | None = None,
    env: Mapping[str, str] | None = None,
    toml: Mapping[str, object] | None = None,
    cpus: int = 2,
) -> Settings:
    return load_settings(flags or {}, env or {}, toml, cpus=cpus)


def refused(
    flags: Mapping[str, str | None] | None = None,
    env: Mapping[str, str] | None = None,
    toml: Mapping[str, object] | None = None,
) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        load(flags, env, toml)
    return caught.value


def test_defaults_are_those_of_the_contract() -> None:
    settings = load()
    expected = {
        "host": "127.0.0.1", "port": 4000, "data_dir": "./topics-data", "cold_dir": None, "port_file": None,
        "segment_max_events": 10_000, "segment_max_bytes": 64 * MiB, "segment_max_age_ms": 3_600_000,
        "hot_retain_segments": 4, "hot_retain_bytes": 0, "max_batch_records": 10_000,
        "max_record_bytes": MiB, "max_body_bytes": 64 * MiB, "max_meta_bytes": 16 * KiB,
        "max_tag_bytes": 256, "max_node_bytes": 128, "max_key_bytes": 256, "max_limit": 1000,
        "max_claim": 1000, "max_watch_topics": 256, "max_topics": 100_000, "max_routers": 10_000,
        "max_watch_sessions": 10_000, "max_sse_connections": 10_000, "max_sse_connections_per_key": 1000,
        "max_inflight_per_key": 1000, "max_total_bytes": 0, "api_keys": (), "api_keys_file": None,
        "allow_insecure_no_auth": False, "probe_auth": False, "min_free_bytes": 64 * MiB,
        "max_unsynced_bytes": 64 * MiB,
        "sync_interval_ms": 200, "cache_bytes": 64 * MiB, "drain_timeout_ms": 10_000,
        "request_timeout_ms": 30_000, "keepalive_timeout_ms": 75_000, "log_level": "info",
        "log_format": "auto", "slow_request_ms": 1000, "wal_shards": 2, "wal_archive": None,
    }  # fmt: skip
    assert {name: getattr(settings, name) for name in expected} == expected
    assert set(expected) == {row.name for row in SETTINGS}


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_every_default_is_accepted_as_a_value(row: Setting) -> None:
    default = getattr(Settings(), row.name)
    if default not in (None, ()):
        text = str(int(default)) if isinstance(default, bool) else str(default)
        assert getattr(load(env={row.env: text}), row.name) == default


@pytest.mark.parametrize(("cpus", "shards"), [(1, 1), (4, 4), (8, 8), (96, 8), (0, 1)])
def test_shards_follow_the_cpus_up_to_eight(cpus: int, shards: int) -> None:
    assert load(cpus=cpus).wal_shards == shards


def test_an_explicit_shard_count_wins_over_the_cpus() -> None:
    assert load(env={"TOPICS_WAL_SHARDS": "16"}, cpus=2).wal_shards == 16


def test_flag_beats_environment_beats_file_beats_default() -> None:
    flags, env, toml = {"data_dir": "flag"}, {"TOPICS_DATA_DIR": "env"}, {"data_dir": "toml"}
    assert load(flags, env, toml).data_dir == "flag"
    assert load({"data_dir": None}, env, toml).data_dir == "env"
    assert load({}, env, toml).data_dir == "env"
    assert load({}, {}, toml).data_dir == "toml"
    assert load().data_dir == "./topics-data"


@pytest.mark.parametrize("flag", ["data_dir", "data-dir", "--data-dir"])
def test_a_flag_may_be_spelled_as_typed_or_as_named(flag: str) -> None:
    assert load({flag: "x"}).data_dir == "x"


def test_a_bad_value_is_refused_even_where_a_stronger_source_hides_it() -> None:
    error = refused({"port": "1"}, {"TOPICS_PORT": "x"})
    assert (error.key, error.source) == ("TOPICS_PORT", "environment")
    error = refused({}, {"TOPICS_PORT": "1"}, {"port": "x"})
    assert (error.key, error.source) == ("port", "config file")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("64KiB", 64 * KiB),
        ("64 KiB", 64 * KiB),
        ("3M", 3 * MiB),
        ("2G", 2 * GiB),
        ("1GiB", GiB),
    ],
)
def test_sizes_take_suffixes(text: str, value: int) -> None:
    assert load(env={"TOPICS_MAX_TOTAL_BYTES": text}).max_total_bytes == value
    assert load(toml={"max_total_bytes": text}).max_total_bytes == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("Yes", True), ("0", False), ("FALSE", False), ("no", False)],
)
def test_booleans_take_six_words(text: str, value: bool) -> None:
    assert load(env={"TOPICS_PROBE_AUTH": text}).probe_auth is value


@pytest.mark.parametrize(
    ("key", "text", "hint"),
    [
        ("TOPICS_PORT", "", "a whole number"),
        ("TOPICS_PORT", "http", "a whole number"),
        ("TOPICS_PORT", "-1", "a whole number"),
        ("TOPICS_PORT", " 80", "a whole number"),
        ("TOPICS_PORT", "8_0", "a whole number"),
        ("TOPICS_PORT", "٨٠", "a whole number"),
        ("TOPICS_PORT", "4000\n", "a whole number"),
        ("TOPICS_PORT", "65536", "0 to 65535"),
        ("TOPICS_WAL_SHARDS", "0", "1 to 256"),
        ("TOPICS_MAX_BODY_BYTES", "64MB", "KiB, MiB or GiB"),
        ("TOPICS_MAX_BODY_BYTES", "1.5M", "KiB, MiB or GiB"),
        ("TOPICS_MAX_BODY_BYTES", "1GiB", "1 KiB to 80 MiB"),
        ("TOPICS_MAX_TOTAL_BYTES", "9" * 19 + "G", "at least 0"),
        ("TOPICS_MAX_TOTAL_BYTES", "9" * 5000, "KiB, MiB or GiB"),
        ("TOPICS_SYNC_INTERVAL_MS", "200ms", "a whole number"),
        ("TOPICS_PROBE_AUTH", "on", "true, false"),
        ("TOPICS_PROBE_AUTH", "", "true, false"),
        ("TOPICS_DATA_DIR", "", "not empty"),
        ("TOPICS_DATA_DIR", "a\x00b", "printable"),
        ("TOPICS_LOG_LEVEL", "trace", "debug, info"),
        ("TOPICS_LOG_FORMAT", "xml", "auto, text, json"),
        ("TOPICS_HOST", "", "not empty"),
        ("TOPICS_HOST", "*", "host:port"),
        ("TOPICS_HOST", "a:b:c", "host:port"),
        ("TOPICS_HOST", "localhost:99999", "host:port"),
        ("TOPICS_HOST", "[::1", "host:port"),
        ("TOPICS_HOST", "http://localhost", "host:port"),
    ],
)
def test_a_bad_value_names_key_source_and_what_would_be_right(key: str, text: str, hint: str) -> None:
    error = refused(env={key: text})
    assert (error.key, error.source) == (key, "environment")
    assert hint in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", True),
        ("port", 1.5),
        ("port", [4000]),
        ("port", -1),
        ("max_total_bytes", 2**63),
        ("probe_auth", 1),
        ("data_dir", 7),
        ("data_dir", {"a": 1}),
        ("log_level", ["info"]),
        ("host", 1),
        ("api_keys", [SECRET, 1]),
        ("api_keys", {SECRET: "r"}),
    ],
)
def test_a_toml_value_of_the_wrong_type_is_refused(key: str, value: object) -> None:
    error = refused(toml={key: value})
    assert (error.key, error.source) == (key, "config file")
    assert SECRET not in str(error)


def test_toml_takes_its_own_types() -> None:
    text = b'port = 81\nprobe_auth = true\ncache_bytes = "8 MiB"\napi_keys = ["a:r", "b"]\n'
    settings = load(toml=parse_toml(text))
    assert (settings.port, settings.probe_auth, settings.cache_bytes) == (81, True, 8 * MiB)
    assert len(settings.api_keys) == 2


@pytest.mark.parametrize("data", [b"port = ", b"\xff", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_refused(data: bytes) -> None:
    with pytest.raises(BadSetting, match="not TOML"):
        parse_toml(data)


def test_unknown_keys_are_refused_with_the_nearest_known_one() -> None:
    assert "did you mean TOPICS_DATA_DIR?" in str(refused(env={"TOPICS_DATADIR": "x"}))
    assert "did you mean --data-dir?" in str(refused({"--data-dri": "x"}))
    assert "did you mean data_dir?" in str(refused(toml={"data-dir": "x"}))
    assert "did you mean data_dir?" in str(refused(toml={"TOPICS_DATA_DIR": "x"}))
    assert "docs/configuration.md" in str(refused(toml={"zzz": 1}))
    assert refused(toml={"file_api_keys": []}).key == "file_api_keys"
    assert refused(env={"TOPICS_port": "1"}).key == "TOPICS_port"


def test_an_unknown_key_is_named_without_its_value() -> None:
    error = refused(env={"TOPICS_API_KEY": SECRET})
    assert "did you mean TOPICS_API_KEYS" in str(error)
    assert SECRET not in str(error)


def test_the_rest_of_the_environment_is_ignored() -> None:
    env = {"PATH": "/bin", "TOPICS_URL": "u", "TOPICS_TOKEN": "t", "TOPICS_TEST_SAMPLE": "9", "TOPIC": "x"}
    assert load(env=env) == load()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost", "localhost", 4000),
        ("127.0.0.2:81", "127.0.0.2", 81),
        ("localhost:0", "localhost", 0),
        ("::1", "::1", 4000),
        ("[::1]", "::1", 4000),
        ("[::1]:82", "::1", 82),
    ],
)
def test_the_host_may_bring_a_port(text: str, host: str, port: int) -> None:
    settings = load(env={"TOPICS_HOST": text})
    assert (settings.host, settings.port) == (host, port)


def test_between_a_port_in_host_and_port_the_stronger_source_wins() -> None:
    assert load({"port": "9"}, {"TOPICS_HOST": "localhost:8"}).port == 9
    assert load({"host": "localhost:8"}, {"TOPICS_PORT": "9"}).port == 8
    assert load(env={"TOPICS_HOST": "localhost:8", "TOPICS_PORT": "8"}).port == 8
    error = refused(env={"TOPICS_HOST": "localhost:8", "TOPICS_PORT": "9"})
    assert error.key == "TOPICS_PORT"
    assert "TOPICS_HOST already says port 8" in str(error)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.1", "::ffff:10.0.0.1"])
def test_an_address_others_can_reach_needs_keys(host: str) -> None:
    error = refused(env={"TOPICS_HOST": host})
    assert (error.key, error.source) == ("TOPICS_HOST", "environment")
    assert "TOPICS_API_KEYS" in str(error)
    assert load(env={"TOPICS_HOST": host, "TOPICS_API_KEYS": SECRET}).host == host
    assert load(env={"TOPICS_HOST": host, "TOPICS_API_KEYS_FILE": "/k"}).host == host
    assert load(env={"TOPICS_HOST": host, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)
    assert load(env={"TOPICS_HOST": host}).host == host


def test_keys_are_no_flag() -> None:
    error = refused({"--api-keys": SECRET})
    assert "TOPICS_API_KEYS" in str(error)
    assert SECRET not in str(error)


def test_an_empty_optional_value_means_unset() -> None:
    env = {"TOPICS_COLD_DIR": "", "TOPICS_API_KEYS": "", "TOPICS_API_KEYS_FILE": "", "TOPICS_PORT_FILE": ""}
    assert load(env=env) == load()


def test_keys_of_the_file_are_replaced_and_the_others_kept_when_it_is_read_again() -> None:
    settings = load(env={"TOPICS_API_KEYS": "fixed", "TOPICS_API_KEYS_FILE": "/k"})
    once = settings.with_file_keys("old:r")
    again = once.with_file_keys("new:w")
    assert once.key_ring().find("old") is not None
    assert again.key_ring().find("old") is None
    assert again.key_ring().find("new") is not None
    assert again.key_ring().find("fixed") is not None
    with pytest.raises(BadSetting):
        again.with_file_keys("# all gone")


def test_children_get_the_same_settings_and_only_digests() -> None:
    env = {"TOPICS_API_KEYS": f"{SECRET}:r+d:a|b", "TOPICS_PORT": "0", "TOPICS_COLD_DIR": "/cold"}
    settings = load(env=env).with_file_keys(f"{SECRET}-2")
    handed = settings.to_child_json()
    assert SECRET.encode() not in handed
    received = Settings.from_child_json(handed)
    assert received == settings
    key = received.key_ring().find(SECRET)
    assert key is not None
    assert key.scopes == {Scope.READ, Scope.DELETE}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"port":"x"}', b'{"api_keys":[{}]}'])
def test_a_broken_handover_is_our_bug(data: bytes) -> None:
    with pytest.raises(Internal):
        Settings.from_child_json(data)


def test_effective_settings_show_everything_but_keys() -> None:
    shown = load(env={"TOPICS_API_KEYS": SECRET}).effective()
    assert set(shown) == {row.name for row in SETTINGS}
    assert shown["api_keys"] == 1
    assert SECRET not in repr(shown)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().port = 1  # type: ignore[misc]


def test_help_lines_carry_range_and_default() -> None:
    by_name = {row.name: row for row in SETTINGS}
    assert by_name["port"].help_line().endswith("[0 to 65535; default 4000]")
    assert by_name["cache_bytes"].help_line().endswith("[bytes; at least 1 MiB; default 64 MiB]")
    assert by_name["api_keys"].flag is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (KiB, "1 KiB"), (1536, "1536"), (64 * MiB, "64 MiB"), (GiB, "1 GiB")],
)
def test_sizes_are_shown_in_the_largest_whole_unit(value: int, text: str) -> None:
    assert size_text(value) == text
