"""One frozen `Settings`, built once at start and passed down.

The fields of `Settings` are the table: each carries its default, unit, range and help, and from them
come parsing, `--help` and docs/configuration.md (`python -m shared.settings > docs/configuration.md`).

A setting is looked for in this order: flag (`--data-dir`), environment (`TOPICS_DATA_DIR`), TOML file
(`data_dir`), default. What is unknown or wrong is refused with the key, where it stood, and what
would be right. Nothing is read here: callers pass the mappings in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec import structs

from shared import limits
from shared.api_keys import ApiKey, KeyRing, parse_api_keys, parse_api_keys_file
from shared.errors import BadSetting, Internal
from shared.limits import GiB, KiB, MiB

ENV_PREFIX: Final = "TOPICS_"
# Keys of the command-line client and of the tests share our prefix and are none of our business.
FOREIGN_ENV_KEYS: Final = frozenset({"TOPICS_URL", "TOPICS_TOKEN"})
FOREIGN_ENV_PREFIX: Final = "TOPICS_TEST_"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. `parse` gets a string, or a TOML value, and raises ValueError."""

    name: str
    type_name: str
    unit: str
    default_text: str
    range_text: str
    help: str
    group: str
    parse: Callable[[object], object]
    # A secret may not be a flag: every user of the machine can read the arguments of a process.
    secret: bool = False

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str | None:
        return None if self.secret else "--" + self.name.replace("_", "-")

    def help_line(self) -> str:
        """For `--help`."""
        facts = [text for text in (self.unit, self.range_text) if text]
        return f"{self.help} [{'; '.join([*facts, 'default ' + self.default_text])}]"


# --- parsing one value ------------------------------------------------------------------------

_SIZE = re.compile(r"([0-9]+) ?(KiB|MiB|GiB|K|M|G)?")
_SIZE_UNITS: Final = {None: 1, "K": KiB, "KiB": KiB, "M": MiB, "MiB": MiB, "G": GiB, "GiB": GiB}
_BOOLEANS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def _parse_number(value: object, *, pattern: re.Pattern[str], right: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = pattern.fullmatch(value) if isinstance(value, str) else None
    # 19 digits hold every number in range; int() refuses very long ones with an error of its own.
    if found is None or len(found[1]) > 19:
        raise ValueError(f"must be {right}, not {value!r}")
    unit = found[2] if pattern is _SIZE else None
    return int(found[1]) * _SIZE_UNITS[unit]


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    raise ValueError(f"must be 1, 0, true, false, yes or no, not {value!r}")


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"must be a printable text that is not empty, not {value!r}")
    return value


def _parse_optional_text(value: object) -> str | None:
    # An empty value means unset: compose files and systemd units can only blank a variable.
    return None if value == "" else _parse_text(value)


class _Listen(NamedTuple):
    """What `host` may hold; split into the two fields once all sources are known."""

    host: str
    port: int | None


def _parse_host(value: object) -> _Listen:
    text = _parse_text(value)
    if _is_ip(text):
        return _Listen(text, None)
    host, port = text, None
    found = re.fullmatch(r"(.*):([0-9]{1,5})", text)
    if found is not None:
        host, port = found[1], int(found[2])
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    good = _is_ip(host) if bracketed or ":" in host else _HOST_NAME.fullmatch(host) is not None
    if not good or (port or 0) > 65535:
        raise ValueError(f"must be a host or host:port, as in 127.0.0.1:4000 or [::1]:4000, not {value!r}")
    return _Listen(host, port)


def _parse_key_text(value: object) -> str:
    # The text is turned into keys by load_settings, which knows what to call it in an error.
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return ",".join(value)
    if isinstance(value, str):
        return value
    raise ValueError("must be a text, or in TOML a list of texts")


def _is_ip(text: str) -> bool:
    # Of all processes only the supervisor looks at addresses.
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True only if sure: any other name might resolve to an address that others can reach."""
    import ipaddress

    return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)


def size_text(value: int) -> str:
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit} {name}"
    return str(value)


# --- kinds of fields --------------------------------------------------------------------------
# Each returns a dataclass field that is typed as its value, so that mypy checks the annotation of
# every row against its kind and default.

_LISTEN, _STORAGE, _LIMITS, _CAPS, _AUTH, _HTTP, _LOGS = (
    "Listening",
    "Storage",
    "Limits of one request",
    "Caps (0 = unlimited; beyond one: 429)",
    "Authentication",
    "Connections and shutdown",
    "Logging",
)

T = TypeVar("T")
_WHOLE = re.compile(r"([0-9]+)")
# Every consumer, C libraries included, can hold a signed 64-bit number.
_NUMBER_MAX: Final = (1 << 63) - 1


def _row(
    default: T,
    group: str,
    help: str,
    parse: Callable[[object], object],
    *,
    default_text: str,
    type_name: str = "text",
    unit: str = "",
    range_text: str = "",
    secret: bool = False,
) -> T:
    # The name is filled in from the dataclass field, see SETTINGS.
    row = Setting(
        name="",
        type_name=type_name,
        unit=unit,
        default_text=default_text,
        range_text=range_text,
        help=help,
        group=group,
        parse=parse,
        secret=secret,
    )
    return dataclasses.field(default=default, metadata={"row": row})


def _ranged(
    pattern: re.Pattern[str], right: str, show: Callable[[int], str], lo: int, hi: int | None
) -> tuple[Callable[[object], int], str]:
    range_text = f"at least {show(lo)}" if hi is None else f"{show(lo)} to {show(hi)}"

    def parse(value: object) -> int:
        number = _parse_number(value, pattern=pattern, right=right)
        if not lo <= number <= (_NUMBER_MAX if hi is None else hi):
            raise ValueError(f"must be {range_text}, not {value!r}")
        return number

    # 0 is the natural floor of a count and not worth a word in the documentation.
    return parse, "" if lo == 0 and hi is None else range_text


def _int(
    group: str,
    default: int,
    help: str,
    *,
    unit: str = "",
    lo: int = 0,
    hi: int | None = None,
    default_text: str = "",
) -> int:
    parse, range_text = _ranged(_WHOLE, "a whole number", str, lo, hi)
    text = default_text or str(default)
    return _row(
        default, group, help, parse, default_text=text, type_name="integer", unit=unit, range_text=range_text
    )


def _ms(group: str, default: int, help: str, *, lo: int = 0, hi: int | None = None) -> int:
    return _int(group, default, help, unit="ms", lo=lo, hi=hi)


def _size(group: str, default: int, help: str, *, lo: int = 0, hi: int | None = None) -> int:
    right = "a whole number of bytes, or one with KiB, MiB or GiB (K, M, G)"
    parse, range_text = _ranged(_SIZE, right, size_text, lo, hi)
    text = size_text(default)
    return _row(
        default, group, help, parse, default_text=text, type_name="size", unit="bytes", range_text=range_text
    )


def _bool(group: str, help: str) -> bool:
    return _row(False, group, help, _parse_bool, default_text="0", type_name="boolean")


def _text(group: str, default: str, help: str, parse: Callable[[object], object] = _parse_text) -> str:
    return _row(default, group, help, parse, default_text=default)


def _optional_text(group: str, help: str) -> str | None:
    return _row(None, group, help, _parse_optional_text, default_text="unset")


def _choice(group: str, choices: tuple[str, ...], default: str, help: str) -> str:
    range_text = "one of " + ", ".join(choices)

    def parse(value: object) -> object:
        if value not in choices:
            raise ValueError(f"must be {range_text}, not {value!r}")
        return value

    return _row(default, group, help, parse, default_text=default, range_text=range_text)


def _key_list(group: str, help: str) -> tuple[ApiKey, ...]:
    return _row((), group, help, _parse_key_text, default_text="none", type_name="list", secret=True)


# --- the table --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field for each."""  # without it a dataclass writes its whole signature here whenever it is loaded

    host: str = _text(
        _LISTEN,
        "127.0.0.1",
        "Address to listen on: a host, or host:port. Anything but a loopback address needs API keys.",
        _parse_host,
    )
    port: int = _int(_LISTEN, 4000, "Port to listen on; 0 takes any free one (see port_file).", hi=65535)
    port_file: str | None = _optional_text(
        _LISTEN, "File that receives the number of the port in use, once it is open."
    )

    data_dir: str = _text(
        _STORAGE, "./topics-data", "Directory of all data; created if absent. One server per directory."
    )
    wal_shards: int = _int(
        _STORAGE,
        8,
        "Number of shard workers, each with its own log. May change between restarts.",
        lo=1,
        hi=256,
        default_text="the number of CPUs, at most 8",
    )
    sync_interval_ms: int = _ms(
        _STORAGE,
        limits.SYNC_INTERVAL_MS,
        'How often "disk" data is synced in the background: what a power cut may cost.',
        lo=1,
        hi=60_000,
    )
    max_unsynced_bytes: int = _size(
        _STORAGE,
        limits.UNSYNCED_MAX_BYTES,
        "Writes of each shard that may wait for a sync; beyond it they are answered 429 until the disk catches up.",
        lo=MiB,
        hi=GiB,
    )
    min_free_bytes: int = _size(
        _STORAGE,
        64 * MiB,
        "With less free space than this a shard turns read-only until space returns. 0 = only when full.",
    )
    cache_bytes: int = _size(
        _STORAGE,
        limits.BLOCK_CACHE_BYTES,
        "Memory of each shard for decompressed blocks and indexes of sealed records.",
        lo=1 * MiB,
    )
    segment_max_events: int = _int(
        _STORAGE,
        10_000,
        "A topic is due for sealing at this many unsealed records. Under load all that are due are sealed together, "
        "about once a second.",
        unit="records",
        lo=1,
    )
    segment_max_bytes: int = _size(
        _STORAGE,
        64 * MiB,
        "A topic is due for sealing at this many unsealed bytes. So much new log in a shard, or 64 MiB, also lets the "
        "next sealing start early.",
        lo=64 * KiB,
    )
    segment_max_age_ms: int = _ms(
        _STORAGE,
        3_600_000,
        "A topic is due for sealing when its oldest unsealed record is this old. 0 = off.",
    )
    cold_dir: str | None = _optional_text(
        _STORAGE,
        "Cold tier for old sealed segments: a directory, or s3://bucket/prefix (endpoint and credentials from the "
        "AWS_* variables; needs topicsd[s3]). Unset = no cold tier.",
    )
    wal_archive: str | None = _optional_text(
        _STORAGE,
        "Directory or s3://bucket/prefix that gets every log file and segment before it is removed here, so that "
        "a restore can reach any moment between backups. Best the same place as the backups. Unset = off.",
    )
    hot_retain_segments: int = _int(
        _STORAGE,
        4,
        "Newest sealed segments of each shard that stay out of the cold tier. The stricter of this and "
        "hot_retain_bytes wins.",
        unit="segments",
    )
    hot_retain_bytes: int = _size(
        _STORAGE, 0, "Bytes of newest sealed segments of each shard that stay out of the cold tier. 0 = off."
    )

    max_batch_records: int = _int(
        _LIMITS, 10_000, "Records in one write; more: 400.", unit="records", lo=1, hi=100_000
    )
    max_record_bytes: int = _size(
        _LIMITS, 1 * MiB, "Data and meta of one record; more: 400.", lo=1 * KiB, hi=64 * MiB
    )
    max_body_bytes: int = _size(
        _LIMITS,
        64 * MiB,
        "Body of one request, also after decompression; more: 413.",
        lo=1 * KiB,
        hi=limits.MAX_BODY_BYTES_CEILING,
    )
    max_meta_bytes: int = _size(
        _LIMITS,
        16 * KiB,
        f"Meta of one record, which has at most {limits.META_MAX_KEYS} keys; more: 400.",
        hi=1 * MiB,
    )
    max_tag_bytes: int = _size(
        _LIMITS, 256, "Tag of one record; more: 400.", lo=1, hi=limits.LABEL_BYTES_CEILING
    )
    max_node_bytes: int = _size(
        _LIMITS, 128, "Node of one record; more: 400.", lo=1, hi=limits.LABEL_BYTES_CEILING
    )
    max_key_bytes: int = _size(
        _LIMITS, 256, "Key of one record; more: 400.", lo=1, hi=limits.LABEL_BYTES_CEILING
    )
    max_limit: int = _int(
        _LIMITS, 1000, "Records in the answer to one read; a larger limit is clamped.", unit="records", lo=1,
        hi=100_000,
    )  # fmt: skip
    max_claim: int = _int(
        _LIMITS,
        1000,
        "Jobs in one claim.",
        unit="jobs",
        lo=1,
        hi=100_000,
    )
    max_watch_topics: int = _int(_LIMITS, 256, "Topics in one watch.", unit="topics", lo=1, hi=100_000)

    max_topics: int = _int(_CAPS, 100_000, "Topics.", unit="topics")
    max_routers: int = _int(_CAPS, 10_000, "Routers.", unit="routers")
    max_watch_sessions: int = _int(_CAPS, 10_000, "Watch sessions.", unit="sessions")
    max_sse_connections: int = _int(_CAPS, 10_000, "Open streams (SSE and WebSocket).", unit="connections")
    max_sse_connections_per_key: int = _int(_CAPS, 1000, "Open streams of one API key.", unit="connections")
    max_inflight_per_key: int = _int(_CAPS, 1000, "Requests in flight of one API key.", unit="requests")
    max_total_bytes: int = _size(_CAPS, 0, "Bytes of all live records together.")

    api_keys: tuple[ApiKey, ...] = _key_list(
        _AUTH,
        "Keys, `secret[:scopes[:prefixes]]` separated by commas; scopes of read, write, delete, admin "
        "(r, w, d, a, rw) joined by `+`, name prefixes joined by `|`, an empty field = all. Without any "
        "key, auth is off. Not a flag, because arguments of a process are public.",
    )
    api_keys_file: str | None = _optional_text(
        _AUTH, "File with more keys, one per line or separated by commas; read again on SIGHUP."
    )
    allow_insecure_no_auth: bool = _bool(
        _AUTH, "Start without keys even on an address that others can reach."
    )
    probe_auth: bool = _bool(_AUTH, "Ask for a key on health and ready, too.")

    request_timeout_ms: int = _ms(
        _HTTP, 30_000, "Time for a client to send one whole request, headers and body.", lo=100
    )
    keepalive_timeout_ms: int = _ms(_HTTP, 75_000, "How long an idle connection is kept open.", lo=100)
    drain_timeout_ms: int = _ms(
        _HTTP, limits.DRAIN_TIMEOUT_MS, "Time for work in flight to finish at shutdown.", hi=600_000
    )

    log_level: str = _choice(
        _LOGS, ("debug", "info", "warning", "error"), "info", "Least severe level that is logged."
    )
    log_format: str = _choice(
        _LOGS, ("auto", "text", "json"), "auto", "auto = text on a terminal, json elsewhere."
    )
    slow_request_ms: int = _ms(
        _LOGS, 1000, "A request that takes this long is logged, unless it asked to wait. 0 = none."
    )

    # Not a setting: what api_keys_file held when it was last read. Apart from api_keys so that SIGHUP
    # can replace these and keep the others.
    file_api_keys: tuple[ApiKey, ...] = ()

    def key_ring(self) -> KeyRing:
        return KeyRing(self.api_keys + self.file_api_keys)

    def with_file_keys(self, text: str) -> Settings:
        """These settings with the keys of a (re-)read `api_keys_file`."""
        keys = parse_api_keys_file(text, key="api_keys_file", source="key file")
        return dataclasses.replace(self, file_api_keys=keys)

    def effective(self) -> dict[str, str | int | bool | None]:
        """What is in force, for the log at start; keys only as a count."""
        values: dict[str, str | int | bool | None] = {
            row.name: getattr(self, row.name) for row in SETTINGS if not row.secret
        }
        return values | {"api_keys": len(self.api_keys) + len(self.file_api_keys)}

    def to_child_json(self) -> bytes:
        """For worker and gateway processes, which trust it: validated here, and digests for keys."""
        return msgspec.json.encode(self)

    @classmethod
    def from_child_json(cls, data: bytes) -> Settings:
        try:
            return _CHILD_DECODER.decode(data)
        except msgspec.MsgspecError as err:
            # Only our own supervisor writes this.
            raise Internal(f"settings from the supervisor: {err}") from err


SETTINGS: Final[tuple[Setting, ...]] = tuple(
    structs.replace(cast(Setting, field.metadata["row"]), name=field.name)
    for field in dataclasses.fields(Settings)
    if "row" in field.metadata
)
_BY_NAME: Final = {row.name: row for row in SETTINGS}
_CHILD_DECODER = msgspec.json.Decoder(Settings)


# --- loading ----------------------------------------------------------------------------------


class _Given(NamedTuple):
    """A value as somebody gave it. `rank` 0 is the strongest source."""

    value: object
    rank: int
    key: str
    source: str


def parse_toml(data: bytes) -> dict[str, object]:
    """The content of a `--config` file as `load_settings` takes it."""
    import tomllib  # not in the children, which get their settings ready-made

    try:
        return tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise BadSetting(key="--config", source="config file", message=f"is not TOML: {err}") from None


def load_settings(
    flags: Mapping[str, str | None],
    env: Mapping[str, str],
    toml: Mapping[str, object] | None,
    *,
    cpus: int,
) -> Settings:
    """`flags` maps names (`data_dir`, `data-dir` or `--data-dir`) to text, None = not given; `env` is
    the whole environment. Raises BadSetting."""
    given: dict[str, _Given] = {}
    values: dict[str, object] = {"wal_shards": max(1, min(cpus, 8))}
    # Weakest first. A value that a stronger source hides is checked all the same: it would bite on
    # the day the flag is dropped.
    for found in (_from_toml(toml or {}), _from_env(env), _from_flags(flags)):
        for name, one in found.items():
            given[name] = one
            values[name] = _parse_given(_BY_NAME[name], one)
    _settle_listen_address(values, given)
    settings = Settings(**values)  # type: ignore[arg-type]  # each value was parsed by its own row
    _refuse_open_door(settings, given.get("host"))
    return settings


def _from_flags(flags: Mapping[str, str | None]) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for flag, value in flags.items():
        name = flag.removeprefix("--").replace("-", "_")
        key = "--" + name.replace("_", "-")
        if value is None:
            continue
        if name in _BY_NAME and _BY_NAME[name].flag is None:
            message = f"a secret may not be a flag; use {_BY_NAME[name].env} or api_keys_file"
            raise BadSetting(key=key, source="flag", message=message)
        if name not in _BY_NAME:
            flag_names = [row.flag for row in SETTINGS if row.flag is not None]
            raise _unknown(key, "flag", flag_names)
        found[name] = _Given(value, 0, key, "flag")
    return found


def _from_env(env: Mapping[str, str]) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for key, value in env.items():
        foreign = key in FOREIGN_ENV_KEYS or key.startswith(FOREIGN_ENV_PREFIX)
        if foreign or not key.startswith(ENV_PREFIX):
            continue
        name = key.removeprefix(ENV_PREFIX).lower()
        if name not in _BY_NAME or _BY_NAME[name].env != key:
            raise _unknown(key, "environment", [row.env for row in SETTINGS])
        found[name] = _Given(value, 1, key, "environment")
    return found


def _from_toml(toml: Mapping[str, object]) -> dict[str, _Given]:
    for key in toml:
        if key not in _BY_NAME:
            raise _unknown(key, "config file", list(_BY_NAME))
    return {key: _Given(value, 2, key, "config file") for key, value in toml.items()}


def _unknown(key: str, source: str, known: list[str]) -> BadSetting:
    wanted = key.upper() if source == "environment" else key.lower()
    if source == "config file":
        wanted = wanted.removeprefix(ENV_PREFIX.lower()).replace("-", "_")
    import difflib  # for a wrong key alone

    near = difflib.get_close_matches(wanted, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "docs/configuration.md lists all of them"
    return BadSetting(key=key, source=source, message=f"no such setting; {hint}")


def _parse_given(row: Setting, given: _Given) -> object:
    try:
        value = row.parse(given.value)
    except ValueError as err:
        raise BadSetting(key=given.key, source=given.source, message=str(err)) from None
    if row.secret:
        return parse_api_keys(cast(str, value), key=given.key, source=given.source)
    return value


def _settle_listen_address(values: dict[str, object], given: Mapping[str, _Given]) -> None:
    """`host` may bring a port. Against `port` the stronger source wins; two of one source must agree."""
    if "host" not in given:
        return
    listen = cast(_Listen, values["host"])
    values["host"] = listen.host
    if listen.port is None:
        return
    host, port = given["host"], given.get("port")
    if port is None or host.rank < port.rank:
        values["port"] = listen.port
    elif host.rank == port.rank and values["port"] != listen.port:
        message = f"is {values['port']}, but {host.key} already says port {listen.port}; give one of them"
        raise BadSetting(key=port.key, source=port.source, message=message)


def _refuse_open_door(settings: Settings, host: _Given | None) -> None:
    if settings.allow_insecure_no_auth or is_loopback(settings.host):
        return
    if settings.api_keys or settings.api_keys_file is not None:
        return
    message = (
        f"{settings.host} can be reached by others and there are no API keys: set TOPICS_API_KEYS or "
        "TOPICS_API_KEYS_FILE, listen on 127.0.0.1, or set TOPICS_ALLOW_INSECURE_NO_AUTH=1 to accept it"
    )
    key, source = ("host", "default") if host is None else (host.key, host.source)
    raise BadSetting(key=key, source=source, message=message)


# --- documentation ----------------------------------------------------------------------------

_INTRO: Final = """\
# Configuration

<!-- Generated by `python -m shared.settings > docs/configuration.md`; edit shared/settings.py. -->

Every setting can be given as a flag (`--data-dir DIR`), in the environment (`TOPICS_DATA_DIR`) or in
a TOML file named with `--config` (`data_dir = "DIR"`). The first of flag, environment, file and
default that says something counts. An unknown key or a bad value is refused at start, with its name.

Sizes are whole bytes or carry `KiB`, `MiB`, `GiB` (`K`, `M`, `G` for short); durations are whole
milliseconds; booleans are `1`, `0`, `true`, `false`, `yes` or `no`. An empty text unsets what is
unset by default, and is refused elsewhere. `TOPICS_URL` and `TOPICS_TOKEN` belong to the client and
`TOPICS_TEST_*` to the tests; the server ignores them.
"""


def settings_markdown() -> str:
    parts = [_INTRO]
    for group in dict.fromkeys(row.group for row in SETTINGS):
        rows = "".join(_markdown_row(row) for row in SETTINGS if row.group == group)
        parts.append(f"\n## {group}\n\n| Setting | Type | Default | Meaning |\n|---|---|---|---|\n{rows}")
    return "".join(parts)


def _markdown_row(row: Setting) -> str:
    names = f"`{row.name}`<br>`{row.env}`"
    kind = row.type_name + (f", {row.unit}" if row.unit and row.unit != "bytes" else "")
    kind += f"<br>{row.range_text}" if row.range_text else ""
    # A bar inside a cell would end it.
    return f"| {names} | {kind} | {row.default_text} | {row.help.replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(settings_markdown())
