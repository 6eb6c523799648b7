"""Every knob, once: name, type, default, unit, bounds, the names other projects gave it, and what it does.

`Settings.from_env(os.environ)` is what a session reads; `Settings.from_file(path)` reads the same keys in lower case
from YAML. Both gather every problem they find into one ConfigError. tools/settings_doc.py makes docs/settings.md.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from .engines.switches import OWN
from .errors import ConfigError

PREFIX = "ROCE_RING_"
_MIB = 1 << 20
_LISTED = "docs/settings.md lists every setting with its bounds"

Value = int | float | str

MODES = (
    "full", "full_phased", "payload_rsag", "payload_rsag_phased", "ring", "ring_bidir", "halving", "bulk_push",
    "bulk_push_phased", "pull", "bulk_pull",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Knob:
    """What is known about a setting apart from its value. `agree`: ranks with different values may not start."""

    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""  # says in words what `pattern` accepts
    aliases: tuple[str, ...] = ()
    agree: bool = False


def _knob(default: Any, meaning: str, **facts: Any) -> Any:
    return field(default=default, metadata={"knob": Knob(meaning, **facts)})


@dataclass(frozen=True, slots=True)
class Settings:
    """One rank's settings, checked. Defaults suit a DGX Spark ring; where a number comes from is in its meaning."""

    # what is reduced here, and how
    max_bytes: int = _knob(
        262144,
        "largest payload that is reduced here; larger ones go to the engine's own all-reduce",
        unit="bytes",
        low=16,
        high=1024 * _MIB,
        aliases=("SGLANG_ROCE_MAX_SIZE", "VLLM_ROCE_ALLREDUCE_MAX_SIZE"),
        agree=True,
    )
    gather_bytes: int = _knob(
        0,
        "largest all-gather input of one rank that is gathered here; 0 takes max_bytes",
        unit="bytes",
        low=0,
        high=1024 * _MIB,
        aliases=("DSV41_ROCE_GATHER", "VLLM_ROCE_ALLGATHER_MAX_SIZE"),
        agree=True,
    )
    mode: str = _knob(
        "auto",
        "collective mode; auto lets the ladder choose one per size; one that only ring neighbours need connects nobody "
        "else",
        choices=("auto", *MODES),
        agree=True,
    )
    ladder: str = _knob("", "path of the ladder that mode auto climbs; empty takes the shipped one for the fabric")

    # how bytes move
    provider: str = _knob(
        "auto",
        "what moves bytes between ranks; auto takes shm when all ranks share a host, else verbs; with pcie the kernels "
        "of one host's ranks reach each other's memory themselves",
        choices=("auto", "shm", "verbs", "pcie"),
        agree=True,
    )
    hca: str = _knob(
        "",
        "HCAs this rank may use, in the order that peer_hca_maps counts them; empty takes the plan's",
        pattern=r"[A-Za-z0-9_.:-]{1,31}(,[A-Za-z0-9_.:-]{1,31}){0,7}",
        form="1 to 8 HCA names joined by commas, e.g. rocep1s0f0,rocep1s0f1",
        aliases=("B12X_ROCE_HCA",),
    )
    peer_hca_maps: str = _knob(
        "",
        "per rank, which HCAs lead to which peer; empty takes the plan's",
        pattern=r"\d+=\d+(/\d+){0,3}(,\d+=\d+(/\d+){0,3})*(;\d+=\d+(/\d+){0,3}(,\d+=\d+(/\d+){0,3})*)*",
        form="one section per rank joined by ';', each like 1=1/3,2=0/3,3=0/2",
        aliases=("B12X_ROCE_PEER_HCA_MAPS",),
        agree=True,
    )
    plan: str = _knob("", "path of the mesh plan this rank belongs to; empty runs without one")
    stripe_min_bytes: int = _knob(
        32768,
        "from this size up a transfer is cut over all paths to its peer; below, the first path carries it",
        unit="bytes",
        low=0,
        high=1024 * _MIB,
        agree=True,
    )
    two_wave_threshold_bytes: int = _knob(
        0,
        "from this size up forwarded peers are served after the direct ones; 0 is off. Hides drops of a 1024-deep "
        "hairpin queue, only costs time with 8192",
        unit="bytes",
        low=0,
        high=1024 * _MIB,
        aliases=("B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES",),
        agree=True,
    )
    forward_window_bytes: int = _knob(
        131072,
        "most unacknowledged bytes on a forwarded path; 0 is off. At most half the hairpin queue, so 32768 if it is "
        "1024 deep",
        unit="bytes",
        low=0,
        high=1024 * _MIB,
        aliases=("B12X_ROCE_FORWARD_WINDOW_BYTES",),
    )
    forward_chunk_bytes: int = _knob(
        32768,
        "size of one write within that window; a multiple of 16",
        unit="bytes",
        low=4096,
        high=16 * _MIB,
        aliases=("B12X_ROCE_FORWARD_CHUNK_BYTES",),
    )

    # the proxy thread
    idle_spins: int = _knob(
        -1,
        "empty polls before the proxy thread naps; -1 chooses 20,000,000 (200,000 cost 8.6 % of a decode step), or "
        "few where threads outnumber cores",
        unit="polls",
        low=-1,
        high=1_000_000_000_000,
    )
    nap_us: int = _knob(
        20,
        "length of the first nap; naps double up to 1 ms, or 5 ms where kernels can wake the thread (CPU)",
        unit="us",
        low=1,
        high=1000,
    )
    proxy_cpu: int = _knob(
        -1,
        "CPU the proxy thread is pinned to; -1 leaves it to the scheduler (pinning measured from neutral to -5.5 %)",
        unit="CPU",
        low=-1,
        high=4095,
    )

    # when a peer does not answer
    late_s: float = _knob(
        1.0, "after this long a missing flag is reported; nobody is stopped", unit="s", low=0.01, high=3600, agree=True
    )
    dead_peer_s: float = _knob(
        5.0,
        "a peer whose process or host is gone ends the operation on all ranks within this time",
        unit="s",
        low=1,
        high=600,
        agree=True,
    )
    peer_timeout_s: float = _knob(
        300.0,
        "hard limit for a peer that lives but sends nothing; kernels that compile themselves at first use need minutes",
        unit="s",
        low=1,
        high=86400,
        aliases=("B12X_ROCE_PEER_TIMEOUT_S",),
        agree=True,
    )

    # the control socket
    name: str = _knob(
        "default",
        "name of this job in the run directory; two jobs on one host need two",
        pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}",
        form="up to 48 letters, digits, '.', '_' or '-'",
        agree=True,
    )
    run_dir: str = _knob(
        "",
        "directory of the control sockets; empty takes /run/roce-ring (root), $XDG_RUNTIME_DIR/roce-ring or "
        "/tmp/roce-ring-UID",
    )

    def __post_init__(self) -> None:
        """Values given in code are checked like all others. Raises ConfigError with every problem."""
        problems = []
        for key in KNOBS:
            value = getattr(self, key)
            if value != _DEFAULTS[key]:
                try:
                    object.__setattr__(self, key, _check(key, value))
                except ValueError as error:
                    problems.append(f"{key}: {error}")
        if problems:
            raise ConfigError("settings: " + "; ".join(problems), _LISTED)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], base: Settings | None = None) -> Settings:
        """Settings of an environment, over `base` (for example a file's). Names that neither begin with ROCE_RING_ nor
        are an alias belong to somebody else and are not looked at."""
        names = {alias: key for key, knob in KNOBS.items() for alias in knob.aliases}
        names |= {PREFIX + key.upper(): key for key in KNOBS}
        problems: list[str] = []
        given: dict[str, dict[str, Value]] = {}
        for name in sorted(environ):
            if name in names:
                try:
                    given.setdefault(names[name], {})[name] = parse(names[name], environ[name])
                except ValueError as error:
                    problems.append(f"{name}: {error}")
            elif name.startswith(PREFIX) and name not in OWN:
                problems.append(f"{name} is not a setting{did_you_mean(name, (*names, *OWN))}")
        for values in given.values():
            if len(set(values.values())) > 1:
                said = " and ".join(f"{name}={value}" for name, value in values.items())
                problems.append(f"{said} are two names of one setting with different values: keep one of them")
        return cls._build(
            {key: next(iter(values.values())) for key, values in given.items()}, problems, base, "environment"
        )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], source: str, base: Settings | None = None) -> Settings:
        """Settings from parsed YAML or JSON; `source` is what error messages call it."""
        problems: list[str] = []
        given: dict[str, Value] = {}
        for key, raw in mapping.items():
            if key not in KNOBS:
                problems.append(f"{key} is not a setting{did_you_mean(str(key), KNOBS)}")
                continue
            try:
                given[key] = _check(key, raw)
            except ValueError as error:
                problems.append(f"{key}: {error}")
        return cls._build(given, problems, base, source)

    @classmethod
    def from_file(cls, path: str | Path, base: Settings | None = None) -> Settings:
        import yaml

        try:
            parsed = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read settings file {path}: {(error.strerror or str(error)).lower()}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"settings file {path} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(parsed, dict):
            seen = "is empty" if parsed is None else f"holds a {type(parsed).__name__}"
            raise ConfigError(f"settings file {path} {seen}, expected a mapping like max_bytes: 262144")
        return cls.from_mapping(parsed, str(path), base)

    @classmethod
    def _build(cls, given: Mapping[str, Value], problems: list[str], base: Settings | None, source: str) -> Settings:
        built = replace(base or cls(), **cast(dict[str, Any], given))
        if not problems:
            problems = _contradictions(built)
        if problems:
            raise ConfigError(f"{source}: " + "; ".join(problems), _LISTED)
        return built

    def agreement(self) -> dict[str, str | int]:
        """The settings that must be equal on all ranks, for exchange.agree()."""
        values = {key: getattr(self, key) for key, knob in KNOBS.items() if knob.agree}
        return {key: value if isinstance(value, int | str) else str(value) for key, value in values.items()}

    def hash(self) -> str:
        """12 hex digits over agreement()."""
        return hashlib.sha256(repr(sorted(self.agreement().items())).encode()).hexdigest()[:12]


def knob_of(one: Field[Any]) -> Knob:
    return cast(Knob, one.metadata["knob"])


KNOBS: dict[str, Knob] = {one.name: knob_of(one) for one in fields(Settings)}
_DEFAULTS: dict[str, Value] = {one.name: cast(Value, one.default) for one in fields(Settings)}
_TYPES: dict[str, type] = {key: type(value) for key, value in _DEFAULTS.items()}


def env_name(key: str) -> str:
    """max_bytes -> ROCE_RING_MAX_BYTES."""
    return PREFIX + key.upper()


def parse(key: str, text: str) -> Value:
    """A value from an environment variable's text. Raises ValueError with the sentence."""
    if not text.strip():
        raise ValueError("set but empty; unset it or give it a value")
    if _TYPES[key] is str:
        return _check(key, text)
    try:
        return _check(key, int(text) if _TYPES[key] is int else float(text), text)
    except (ValueError, OverflowError) as error:
        if error.args and str(error).startswith("expected"):
            raise
        raise ValueError(f"expected {_expected(key)}, got {text[:60]!r}") from error


def _check(key: str, raw: object, text: str = "") -> Value:
    """A value of the right type within its bounds. Raises ValueError with the sentence. `text`: what it was parsed
    from."""
    knob, want = KNOBS[key], _TYPES[key]
    typed = text or str(raw)
    if want is float and isinstance(raw, int) and not isinstance(raw, bool):
        raw = float(raw)
    fits = isinstance(raw, want) and not isinstance(raw, bool)
    if fits and isinstance(raw, str):
        fits = (
            bool(raw.strip())
            and (not knob.choices or raw in knob.choices)
            and (not knob.pattern or bool(re.fullmatch(knob.pattern, raw)))
        )
    elif fits:
        number = cast(float, raw)
        fits = (knob.low is None or number >= knob.low) and (knob.high is None or number <= knob.high)  # false for nan
    if not fits:
        raise ValueError(f"expected {_expected(key)}, got {typed[:60]!r}" + did_you_mean(typed, knob.choices))
    return cast(Value, raw)


def _expected(key: str) -> str:
    knob = KNOBS[key]
    if knob.choices:
        return "one of " + ", ".join(knob.choices)
    if _TYPES[key] is str:
        return knob.form or "text"
    kind = "a whole number" if _TYPES[key] is int else "a number"
    unit = _IN_WORDS.get(knob.unit, f" of {knob.unit}")
    return f"{kind}{unit} from {plain(knob.low)} to {plain(knob.high)}"


# Units that read badly in a sentence; a CPU is a number of its own, not a number of something.
_IN_WORDS = {"s": " of seconds", "us": " of microseconds", "CPU": ""}


def plain(number: float | None) -> str:
    return "any" if number is None else f"{number:g}" if number != int(number) else str(int(number))


def did_you_mean(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    return "".join(f"; did you mean {name}?" for name in known if close and name.lower() == close[0])


def _contradictions(settings: Settings) -> list[str]:
    """Pairs of settings that are fine alone and wrong together."""
    wrong = []
    if settings.late_s >= settings.peer_timeout_s:
        wrong.append(
            f"late_s {settings.late_s:g} is not below peer_timeout_s {settings.peer_timeout_s:g}: "
            "a late peer would be given up before it is reported"
        )
    if settings.peer_hca_maps and not settings.hca:
        wrong.append("peer_hca_maps is set without hca, whose order it counts in: set both or neither")
    if 0 < settings.forward_window_bytes < settings.forward_chunk_bytes:
        wrong.append(
            f"forward_window_bytes {settings.forward_window_bytes} is below "
            f"forward_chunk_bytes {settings.forward_chunk_bytes}, so not one chunk fits"
        )
    return wrong
