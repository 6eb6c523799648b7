"""Read facts (one YAML or JSON file, or a directory with one per node) and plans, and say what is wrong with them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from .checks import MAX_NODES
from .facts import Common, Facts, FactsFile, NodeEntry, resolve
from .finding import Finding, Refused, finding, raise_errors
from .model import SCHEMA, Plan, plan_hash
from .strict import convert, suggest
from .words import check_words

_SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(frozen=True)
class Kind:
    """What a file should be, in words: what one holds, and where to get one."""

    holds: str
    fix: str


_FACTS = Kind("a mapping with 'nodes'", "start from a file in mesh/examples, or write one with 'roce-ring inventory'")
_PLAN = Kind("a plan", "name the plan.json that 'roce-ring plan --out' wrote, or write it again with this version")
PLAN_FILE, FACTS_FILE = "plan.json", "facts.json"  # in a directory that --out wrote
MOST_BYTES = 1 << 20  # the plan of sixteen nodes is half as large as JSON, and more would take long to parse
_BASE: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # the C parser is about ten times faster; not every wheel has it


class _Loader(_BASE):  # type: ignore[misc]
    """Safe YAML that refuses a key written twice (PyYAML keeps the last one silently) and places every bad value."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep=True)  # deep: what is inside fails here and not later
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # PyYAML lets through what int(), float() and date() raise: '0b_', 5000 digits, the 45th of a month
            shown = repr(node.value[:60]) if isinstance(node, yaml.ScalarNode) else "this"
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown} is not a value of the kind it looks like", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                problem = "'<<' is not read here; put shared values under 'common'"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key}' is written twice (first on line {seen[key]})", key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen[key] = line
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def load_facts(path: Path, order: tuple[str, ...] = ()) -> Facts:
    """Facts from ``path``, ranks numbered as listed (a directory: by file name) or by ``order`` (host names).

    A directory that ``--out`` wrote gives the facts that its plan was made from.
    Raises :class:`Refused` with every problem of every file.
    """
    if os.path.isfile(path / PLAN_FILE):  # noqa: PTH113 (as in _is_directory)
        path = path / FACTS_FILE
    nodes, common = _load_directory(path) if _is_directory(path) else _load_file(path)
    return resolve(put_in_order(nodes, order), common)


def put_in_order(nodes: tuple[NodeEntry, ...], order: tuple[str, ...]) -> tuple[NodeEntry, ...]:
    """``nodes`` sorted so that rank r is the node called ``order[r]``; an empty order keeps them as they are."""
    by_host = {node.host: node for node in nodes}
    if not order or not nodes or len(by_host) < len(nodes):  # the checks say what is wrong with such nodes
        return nodes
    problems: list[Finding] = []
    for host in order:
        if host not in by_host:
            problems.append(_order_problem(f"host '{host}' is not in the facts", suggest(host, by_host)))
        elif order.count(host) > 1:
            problems.append(_order_problem(f"host '{host}' is listed {order.count(host)} times", "list it once"))
    for host in by_host:
        if host not in order:
            problems.append(_order_problem(f"host '{host}' is left out", f"add {host} to the order"))
    if problems:
        raise Refused(dict.fromkeys(problems))
    return tuple(by_host[host] for host in order)


def _order_problem(seen: str, fix: str) -> Finding:
    return finding("bad-order", "tensor-parallel order", seen, "every host exactly once, rank 0 first", fix)


def node_from_json(raw: object, where: str) -> NodeEntry:
    """One node's inventory as a :class:`NodeEntry`."""
    return convert(raw, NodeEntry, where)


def read_document(path: Path, wanted: Kind) -> object:
    """The parsed content of a YAML or JSON file; every way it can fail is a finding."""
    where = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Refused([_missing(path, error)]) from None
    if len(content) > MOST_BYTES:
        expected = f"at most {MOST_BYTES} bytes, more than sixteen nodes need"
        raise Refused([finding("file-large", where, "the file is larger", expected, wanted.fix)])
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused([_not_yaml(where, "is not UTF-8 text", "save the file as UTF-8 text")]) from None
    try:
        raw: object = yaml.load(text, Loader=_Loader)  # noqa: S506 (a subclass of the safe loader)
    except yaml.YAMLError as error:
        raise Refused([_not_yaml(where, _yaml_reason(error, text), "correct the file at that place")]) from None
    except RecursionError:
        raise Refused([_not_yaml(where, "is nested too deeply", wanted.fix)]) from None
    if raw is None:
        raise Refused([finding("file-empty", where, "the file holds nothing", wanted.holds, wanted.fix)])
    return raw


def what_it_is(raw: object) -> str:
    """A document of ours in words, for whoever was given one in the place of another."""
    first = raw[0] if isinstance(raw, list) and raw else raw
    schema = first.get("schema") if isinstance(first, dict) else None
    if isinstance(schema, str) and schema in _DOCUMENTS:
        return _DOCUMENTS[schema]
    if isinstance(raw, dict) and schema is not None:
        return f"schema {str(schema)!r}"
    if isinstance(raw, dict):
        return "facts" if "nodes" in raw else "a mapping without 'schema'"
    return "a list" if isinstance(raw, list) else "neither a mapping nor a list"


_DOCUMENTS = {  # schema -> what has it
    SCHEMA: "a plan",
    "roce-ring/plan/v1": "what 'roce-ring plan --json' printed",
    "roce-ring/inventory/v1": "the inventory of one node",
    "roce-ring/evidence/v1": "the doctor's evidence",
    "roce-ring/doctor/v1": "what 'roce-ring doctor --json' printed",
}


def load_plan(path: Path) -> Plan:
    """A plan that ``--out`` wrote, or that directory; :class:`Refused` if it is none, of another schema, or edited."""
    if _is_directory(path):
        path = path / PLAN_FILE
    return _plan(read_document(path, _PLAN), str(path))


def plan_text(plan: Plan) -> str:
    """The JSON that :func:`plan_from_json` takes."""
    return msgspec.json.encode(plan).decode()


def plan_from_json(document: str, where: str) -> Plan:
    """The same for a plan that is at hand as JSON text."""
    try:
        raw: object = msgspec.json.decode(document)
    except msgspec.DecodeError as error:
        fix = "send the plan.json that --out wrote, as it is"
        raise Refused([finding("file-not-yaml", where, f"is not JSON ({error})", "a plan", fix)]) from None
    return _plan(raw, where)


def _plan(raw: object, where: str) -> Plan:
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise Refused([finding("bad-value", where, f"holds {what_it_is(raw)}", f"a plan ({SCHEMA})", _PLAN.fix)])
    try:
        plan = msgspec.convert(raw, Plan)
    except msgspec.ValidationError as error:
        raise Refused([finding("wrong-type", where, str(error), "a plan", _PLAN.fix)]) from None
    if plan_hash(plan) != plan.hash:
        seen = f"the content hashes to {plan_hash(plan)[:12]}, the file says {plan.hash[:12]}"
        raise Refused([finding("bad-value", where, seen, "an unedited plan", _PLAN.fix)])
    raise_errors(check_words(plan, where))
    return plan


def _load_file(path: Path) -> tuple[tuple[NodeEntry, ...], Common]:
    raw = read_document(path, _FACTS)
    _refuse_others(raw, str(path))
    if isinstance(raw, dict) and "host" in raw and "nodes" not in raw:
        fix = f"put the inventories of all nodes in one directory and plan that: {path.parent}"
        raise Refused([finding("node-count", str(path), "holds the inventory of one node", "2 to 16 nodes", fix)])
    facts = convert(raw, FactsFile, str(path))
    unknown = _unknown_netdevs(facts.nodes, facts.common, str(path))
    if unknown:
        raise Refused(unknown)
    return facts.nodes, facts.common


def _refuse_others(raw: object, where: str) -> None:
    """Raises Refused for a document of ours that holds no facts: field by field nobody would see that."""
    if (what := what_it_is(raw)) in _DOCUMENTS.values() and what != _DOCUMENTS["roce-ring/inventory/v1"]:
        fix = "name the facts it came from: the directory that 'roce-ring plan --out' wrote has them in facts.json"
        raise Refused([finding("wrong-type", where, f"holds {what}", f"facts: {_FACTS.holds}", fix)])


def _load_directory(path: Path) -> tuple[tuple[NodeEntry, ...], Common]:
    try:
        files = sorted((entry for entry in path.iterdir() if entry.suffix in _SUFFIXES), key=_natural)
    except OSError as error:
        raise Refused([_missing(path, error)]) from None
    if not files:
        expected = "one JSON or YAML file per node"
        fix = "write each with 'roce-ring inventory > HOST.json' on its node, or use --ssh HOST..."
        raise Refused([finding("file-missing", str(path), "the directory has no facts", expected, fix)])
    if len(files) > MAX_NODES:
        fix = "keep one file per node of the ring there, and nothing else"
        raise Refused([finding("node-count", str(path), f"{len(files)} files", f"at most {MAX_NODES}", fix)])
    nodes, problems = [], []
    for file in files:
        try:
            raw = read_document(file, _FACTS)
            _refuse_others(raw, str(file))
            nodes.append(node_from_json(raw, str(file)))
            problems += _unknown_netdevs(nodes[-1:], Common(), str(file))
        except Refused as refused:
            problems += refused.findings
    if problems:
        raise Refused(problems)
    return tuple(nodes), Common()


def _unknown_netdevs(nodes: tuple[NodeEntry, ...] | list[NodeEntry], common: Common, where: str) -> list[Finding]:
    problems = []
    for node in nodes:
        known = [port.netdev for port in node.ports or common.ports]
        if not known and (node.ipv4 or node.mac):
            fix = "copy 'ports' from mesh/examples, or take the facts with 'roce-ring inventory'"
            expected = "the network functions, under 'common' or on the node"
            problems.append(
                finding("missing-field", f"{where} ({node.host})", "no 'ports' are given", expected, fix),
            )
            continue
        for field, addresses in (("ipv4", node.ipv4), ("mac", node.mac)):
            for netdev in addresses:
                if netdev not in known:
                    seen = f"'{field}' names netdev '{netdev}', which is none of the node's ports"
                    problems.append(
                        finding(
                            "unknown-field",
                            f"{where} ({node.host})",
                            seen,
                            "the netdevs listed under 'ports'",
                            suggest(netdev, known),
                        )
                    )
    return problems


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts s2 before s10."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", path.name)]


def _not_yaml(where: str, seen: str, fix: str) -> Finding:
    return finding("file-not-yaml", where, seen, "YAML or JSON", fix)


def _yaml_reason(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, column = error.problem_mark.line, error.problem_mark.column
        rest = "".join(text.split("\n")[line : line + 1])[column:]  # nothing where YAML counts other line ends too
        problem = "a tab, where YAML takes blanks only" if rest.startswith("\t") else error.problem
        return f"line {line + 1}, column {column + 1}: {problem}"
    return " ".join(str(error).split())


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises where a directory on the way is closed to us)


def _missing(path: Path, error: OSError) -> Finding:
    seen = f"cannot be read ({error.strerror})"
    return finding("file-missing", str(path), seen, "a readable YAML or JSON file", _near(path))


def _near(path: Path) -> str:
    """A fix for a path that cannot be read: the name most like the first part of it that does not exist."""
    for part in (*reversed(path.parents), path):
        try:
            names = {entry.name for entry in part.parent.iterdir()}
        except OSError:
            break
        if part.name and part.name not in names:
            near = difflib.get_close_matches(part.name, sorted(names), n=1)
            return f"in {part.parent}: did you mean '{near[0]}'?" if near else f"check the path: there is no {part}"
    return "check the path and its permissions"
