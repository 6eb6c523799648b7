"""The modes over peers' memory against NCCL, on a machine with several GPUs: one call, one report.

    python tests/gpu/several.py [--ranks N] [--sizes 1K,...] [--replays N] [--quick] --report DIR

One process a GPU; with fewer GPUs than ranks they share them under MPS, and NCCL, which takes no two ranks on one GPU,
is left out and said to be. Every time is that of one operation in a graph of 40: the slowest rank of each replay, by
events of the GPU; ours and NCCL's interleaved. Multicast is left as the machine has it, and off for NCCL.

Writes DIR/report.md and DIR/several.png: the topology, the peer access that was found, p50 and p99 of each side for
each size and dtype, where we lose, ten seconds of the stall harness, a quick sweep, and ranks that are killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing.connection
import os
import socket
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

OPS = 40
SIZES = [1 << n for n in range(10, 24)]  # 1 KiB to 8 MiB
DTYPES = ("bfloat16", "float32")
PROGRAM = [sys.executable, "-m", "roce_ring.cli.main"]
# NCCL as it comes, and as a knowing user would set it on PCIe. A process has one setting, so each is a job of its own.
NCCL = {
    "nccl": {},
    "nccl sys": {"NCCL_P2P_LEVEL": "SYS"},
    "nccl ring ll": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
}
LIMIT_S = 500.0


class Job:
    """One rank. `nccl`: a group of it too, with this job's environment."""

    def __init__(self, rank: int, world: int, port: int, gpus: int, largest: int, nccl: bool) -> None:
        import torch
        import torch.distributed as dist

        from roce_ring import AllReduce
        from roce_ring.settings import Settings

        self.rank, self.world = rank, world
        self.device = torch.device("cuda", rank % gpus)
        torch.cuda.set_device(self.device)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        self.meeting = dist.group.WORLD
        self.nccl = dist.new_group(backend="nccl") if nccl else None
        settings = Settings(provider="pcie", max_bytes=largest, name=f"several-{port}")
        self.ours = AllReduce.from_torch(self.meeting, settings=settings, device=str(self.device), serve=False)
        self.stream = torch.cuda.Stream(self.device)
        self.x = torch.empty(largest, dtype=torch.uint8, device=self.device)
        self.y = torch.empty(largest, dtype=torch.uint8, device=self.device)

    def sides(self) -> dict[str, Any]:
        """By name: one operation, from a tensor into another."""
        import torch.distributed as dist

        from roce_ring.modes import modes

        found: dict[str, Any] = {"auto": lambda x, y: self.ours.all_reduce(x, y)}
        for name, mode in modes().items():
            if not mode.refusal(self.world, access=self.ours.session.access):
                found[name] = lambda x, y, name=name: self.ours.all_reduce(x, y, mode=name)
        if self.nccl is not None:

            def nccl(x: Any, y: Any) -> None:
                dist.all_reduce(x, group=self.nccl)  # in place, as engines call it

            found["nccl"] = nccl
        return found

    def cell(self, size: int, dtype: str, replays: int) -> dict[str, dict[str, Any]]:
        """Every side's times of one size (us, the slowest rank of each replay) and wrong values."""
        import torch
        import torch.distributed as dist

        kind = getattr(torch, dtype)
        x, y = (one[:size].view(kind) for one in (self.x, self.y))
        graphs, answers = {}, {}
        with torch.cuda.stream(self.stream):
            for name, side in self.sides().items():
                x.copy_(self.numbers(self.rank, x.numel()).to(kind))
                y.fill_(float("nan"))
                side(x, y)
                total = sum(self.numbers(rank, x.numel()) for rank in range(self.world)).to(kind)  # type: ignore[attr-defined]
                answers[name] = int((~torch.eq(x if name == "nccl" else y, total)).sum())
                x.zero_()
                side(x, y)
                self.stream.synchronize()
                dist.barrier(self.meeting)
                graphs[name] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[name], stream=self.stream, capture_error_mode="thread_local"):
                    for _ in range(OPS):
                        side(x, y)
            samples: dict[str, list[float]] = {name: [] for name in graphs}
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for replay in range(replays + 2):
                for name, graph in graphs.items():
                    dist.barrier(self.meeting)
                    begin.record(self.stream)
                    graph.replay()
                    end.record(self.stream)
                    self.stream.synchronize()
                    self.ours.check()
                    if replay >= 2:
                        samples[name].append(begin.elapsed_time(end) * 1000 / OPS)
        mine = torch.tensor([*(one for name in graphs for one in samples[name]), *map(float, answers.values())])
        dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=self.meeting)
        values = mine.tolist()
        return {
            name: {"us": values[n * replays : (n + 1) * replays], "wrong": int(values[len(graphs) * replays + n])}
            for n, name in enumerate(graphs)
        }

    def numbers(self, rank: int, count: int) -> Any:
        """Small whole numbers, whose sum is exact in any order and dtype."""
        import torch

        return (torch.arange(count, device=self.device) * 7 + rank * 3) % 11 - 5.0


def rank_process(rank: int, pipe: Any, job: dict[str, Any], environ: dict[str, str]) -> None:
    os.environ.update(environ)
    try:
        mine = Job(rank, job["world"], job["port"], job["gpus"], max(job["sizes"]), job["nccl"])
        for dtype in job["dtypes"]:
            for size in job["sizes"]:
                found = mine.cell(size, dtype, job["replays"])
                if rank == 0:
                    pipe.send({"size": size, "dtype": dtype, "ladder": mine.ours.choose_mode(size), "sides": found})
        pipe.send(None)
        mine.ours.close()
    except BaseException:
        pipe.send({"error": f"rank {rank}: {traceback.format_exc()}"})
    os._exit(0)  # NCCL's own way down waits for ranks that have gone


def run(job: dict[str, Any], environ: dict[str, str]) -> list[dict[str, Any]]:
    """What rank 0 found, cell by cell. Raises RuntimeError with the first rank's traceback."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        job = {**job, "port": one.getsockname()[1]}
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(job["world"])]
    ranks = [
        spawn.Process(target=rank_process, args=(rank, pipes[rank][1], job, environ), daemon=True)
        for rank in range(job["world"])
    ]
    for one_rank in ranks:
        one_rank.start()
    cells, deadline, open_pipes = [], time.monotonic() + LIMIT_S, [ours for ours, _ in pipes]
    try:
        while open_pipes:
            ready = multiprocessing.connection.wait(open_pipes, max(0.1, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"no answer within {LIMIT_S:g} s")
            for pipe in ready:
                said = pipe.recv()  # type: ignore[union-attr]
                if said is None:
                    open_pipes.remove(pipe)  # type: ignore[arg-type]
                elif "error" in said:
                    raise RuntimeError(said["error"])
                else:
                    cells.append(said)
                    best = min(said["sides"], key=lambda name: statistics.median(said["sides"][name]["us"]))
                    print(f"{said['dtype']} {said['size']}: fastest is {best}", flush=True)
    finally:
        for one_rank in ranks:
            one_rank.kill()
    return cells


def p(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def table(cells: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Markdown lines, and how many values were wrong. Ratios: ours over NCCL, so below 1 is a win."""
    lines = [
        "| dtype | bytes | ladder | auto p50 | p99 | fastest | p50 | p99 | NCCL p50 | p99 | auto / NCCL p50 | p99 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    wrong = 0
    for cell in cells:
        sides = cell["sides"]
        wrong += sum(one["wrong"] for one in sides.values())
        modes = {name: one["us"] for name, one in sides.items() if not name.startswith("nccl") and name != "auto"}
        best = min(modes, key=lambda name: statistics.median(modes[name]))
        auto, nccl = sides["auto"]["us"], sides.get("nccl", {}).get("us")
        row = [cell["dtype"], f"{cell['size']}", cell.get("ladder", ""), f"{p(auto, 50):.1f}", f"{p(auto, 99):.1f}"]
        row += [best, f"{p(modes[best], 50):.1f}", f"{p(modes[best], 99):.1f}"]
        if nccl:
            row += [f"{p(nccl, 50):.1f}", f"{p(nccl, 99):.1f}"]
            row += [f"{p(auto, 50) / p(nccl, 50):.2f}", f"{p(auto, 99) / p(nccl, 99):.2f}"]
        else:
            row += ["", "", "", ""]
        lines.append("| " + " | ".join(row) + " |")
    return lines, wrong


def plot(cells: list[dict[str, Any]], file: Path) -> str:
    """A line for the report."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return "(no matplotlib: no plot)"
    figure, axes = plt.subplots(figsize=(8, 5))
    first = cells[0]["dtype"]
    for name in cells[0]["sides"]:
        points = [(one["size"], statistics.median(one["sides"][name]["us"])) for one in cells if one["dtype"] == first]
        axes.plot(*zip(*points, strict=True), label=name, linewidth=3 if name in ("auto", "nccl") else 1)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us an operation, median", title=f"all-reduce, {first}")
    axes.legend(fontsize=7)
    figure.savefig(file)
    return f"![medians by size]({file.name})"


def command(title: str, argv: list[str], limit_s: float = 90.0) -> list[str]:
    """A section of the report with what a program says."""
    print(f"## {title}", flush=True)
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
        said, how = done.stdout + done.stderr, f"exit status {done.returncode}"
    except FileNotFoundError:
        said, how = "", f"no {argv[0]} here"
    except subprocess.TimeoutExpired as late:
        said, how = str(late.stdout or ""), f"no end within {limit_s:g} s"
    return [f"## {title}", "", "```", said.rstrip(), "```", "", how, ""]


def main() -> int:
    import torch

    from roce_ring.bench.mps import mps

    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=max(2, gpus))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, joined by commas")
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="bfloat16 only, and NCCL as it comes only")
    parser.add_argument("--report", type=Path, required=True, metavar="DIR")
    given = parser.parse_args()
    given.report.mkdir(parents=True, exist_ok=True)
    shared = gpus < given.ranks
    name = f"{min(gpus, given.ranks)} x {torch.cuda.get_device_name(0)}, {given.ranks} ranks"
    versions = f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    lines = [
        "# All-reduce over peers' memory against NCCL",
        "",
        f"- {name}{', sharing under MPS' if shared else ''}; {versions}",
        f"- {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
        f"- command: python tests/gpu/several.py {' '.join(sys.argv[1:])}",
        "",
    ]
    lines += command("nvidia-smi topo -m", ["nvidia-smi", "topo", "-m"])
    lines += command("roce-ring topo --p2p", [*PROGRAM, "topo", "--p2p"])
    job = {
        "world": given.ranks,
        "gpus": gpus,
        "sizes": [int(one) for one in given.sizes.split(",")],
        "dtypes": DTYPES[:1] if given.quick else DTYPES,
        "replays": given.replays,
    }
    failed = 0
    with mps() if shared else contextlib.nullcontext():
        for what, environ in (
            {"ours": {}}.items() if shared else dict(list(NCCL.items())[: 1 if given.quick else None]).items()
        ):
            print(f"## {what}", flush=True)
            lines += [f"## {what}", ""]
            try:
                cells = run({**job, "nccl": not shared}, {"NCCL_NVLS_ENABLE": "0", **environ})
            except RuntimeError as error:
                failed += 1
                lines += ["```", str(error), "```", ""]
                print(error, flush=True)
                continue
            rows, wrong = table(cells)
            failed += wrong > 0
            picture = given.report / f"several-{what.replace(' ', '-')}.png"
            lines += [*rows, "", f"wrong values: {wrong}", "", plot(cells, picture), ""]
            (given.report / f"several-{what.replace(' ', '-')}.json").write_text(json.dumps(cells))
            (given.report / "report.md").write_text("\n".join(lines))
    if shared:
        lines += ["NCCL was not run: it takes no two ranks on one GPU.", ""]
    record = [*PROGRAM, "stall", "record", "--device", "cuda", "--pattern", "all", "--seconds", "0.6"]
    lines += command("stall record", record)
    share = ["--share", "mps"] if shared else []
    sweep = [*PROGRAM, "ladder", "sweep", "--quick", "--provider", "pcie", "--device", "cuda", *share, "--sizes", "4K"]
    lines += command("ladder sweep --quick", sweep, 120.0)
    lines += command(
        "bounds: killed, late and aborted ranks", [sys.executable, "tests/gpu/bounds.py", "--provider", "pcie"]
    )
    (given.report / "report.md").write_text("\n".join(lines))
    print(f"several: {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
