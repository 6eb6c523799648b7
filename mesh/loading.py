"""Read facts (one YAML or JSON file, or a directory with one per node) and plans, and say what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from .facts import Common, Facts, FactsFile, NodeEntry, resolve
from .finding import Finding, Refused, finding
from .model import SCHEMA, Plan, plan_hash
from .strict import convert, suggest

_SUFFIXES = (".json", ".yaml", ".yml")
_BASE: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # the C parser is about ten times faster; not every wheel has it


class _Loader(_BASE):  # type: ignore[misc]
    """Safe YAML that refuses a key written twice (PyYAML keeps the last one silently)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(key, Hashable) and key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key}' is written twice (first on line {seen[key]})", key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen[key] = line
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def load_facts(path: Path, order: tuple[str, ...] = ()) -> Facts:
    """Facts from ``path``, ranks numbered as listed (a directory: by file name) or by ``order`` (host names).

    Raises :class:`Refused` with every problem of every file.
    """
    nodes, common = _load_directory(path) if path.is_dir() else _load_file(path)
    return resolve(put_in_order(nodes, order), common)


def put_in_order(nodes: tuple[NodeEntry, ...], order: tuple[str, ...]) -> tuple[NodeEntry, ...]:
    """``nodes`` sorted so that rank r is the node called ``order[r]``; an empty order keeps them as they are."""
    if not order:
        return nodes
    by_host = {node.host: node for node in nodes}
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


def read_document(path: Path) -> object:
    """The parsed content of a YAML or JSON file; every way it can fail is a finding."""
    where = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        near = (
            [entry.name for entry in path.parent.iterdir() if entry.suffix in _SUFFIXES] if path.parent.is_dir() else []
        )
        fix = f"in {path.parent}: {suggest(path.name, near)}" if near else "check the path"
        raise Refused(
            [
                finding(
                    "file-missing",
                    where,
                    f"cannot be read ({error.strerror})",
                    "a YAML or JSON file, or a directory of them",
                    fix,
                )
            ]
        ) from None
    except UnicodeDecodeError:
        raise Refused([_not_yaml(where, "is not UTF-8 text", "save the file as UTF-8 text")]) from None
    try:
        raw: object = yaml.load(text, Loader=_Loader)  # noqa: S506 (a subclass of the safe loader)
    except yaml.YAMLError as error:
        raise Refused([_not_yaml(where, _yaml_reason(error), "correct the file at that place")]) from None
    if raw is None:
        fix = "start from a file in mesh/examples, or write one with 'roce-ring inventory'"
        raise Refused([finding("file-empty", where, "the file holds nothing", "a mapping with 'nodes'", fix)])
    return raw


def load_plan(path: Path) -> Plan:
    """A plan written by ``--out``; raises :class:`Refused` if it is none, of another schema, or was edited."""
    raw = read_document(path)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    fix = "name the plan.json or plan.yaml that --out wrote, or write it again with this version"
    if schema != SCHEMA:
        raise Refused([finding("bad-value", str(path), f"schema {schema!r}", SCHEMA, fix)])
    try:
        plan = msgspec.convert(raw, Plan)
    except msgspec.ValidationError as error:
        raise Refused([finding("wrong-type", str(path), str(error), "a plan", fix)]) from None
    if plan_hash(plan) != plan.hash:
        seen = f"the content hashes to {plan_hash(plan)[:12]}, the file says {plan.hash[:12]}"
        raise Refused([finding("bad-value", str(path), seen, "an unedited plan", fix)])
    return plan


def _load_file(path: Path) -> tuple[tuple[NodeEntry, ...], Common]:
    raw = read_document(path)
    if isinstance(raw, dict) and "host" in raw and "nodes" not in raw:
        fix = f"put the inventories of all nodes in one directory and plan that: {path.parent}"
        raise Refused([finding("node-count", str(path), "holds the inventory of one node", "2 to 16 nodes", fix)])
    facts = convert(raw, FactsFile, str(path))
    unknown = _unknown_netdevs(facts.nodes, facts.common, str(path))
    if unknown:
        raise Refused(unknown)
    return facts.nodes, facts.common


def _load_directory(path: Path) -> tuple[tuple[NodeEntry, ...], Common]:
    files = sorted((entry for entry in path.iterdir() if entry.suffix in _SUFFIXES), key=_natural)
    if not files:
        expected = "one JSON or YAML file per node"
        fix = "write each with 'roce-ring inventory > HOST.json' on its node, or use --ssh HOST..."
        raise Refused([finding("file-missing", str(path), "the directory has no facts", expected, fix)])
    nodes, problems = [], []
    for file in files:
        try:
            nodes.append(node_from_json(read_document(file), str(file)))
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


def _yaml_reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
    return str(error).replace("\n", " ")
