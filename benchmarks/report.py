"""The tables of a run as Markdown."""

from dataclasses import asdict

from .peers import LEFT_OUT, LENGTHS, PeerResult
from .targets import Result
from .timing import Machine

METHOD = """\
One process per number of threads; float32, causal, batch 1; ours and rival in turn, medians after a
warm-up. Ratios count, not milliseconds. Targets: 'at least' for times (rival / ours) and for the
share of the matrix-product rate, 'at most' for memory, decoding and errors (ours / rival)."""


def markdown(machine: Machine, results: list[Result], peers: list[PeerResult]) -> str:
    """The page of one machine."""
    lines = [
        f"# Measured on {machine.name}",
        "",
        f"`make bench`: {machine}.",
        "",
        METHOD,
        "",
        table(
            ["work", "threads", "ours", "rival", "ratio", "target", ""],
            [
                (r.work, str(r.threads), r.ours, r.rival, r.ratio, r.goal, r.verdict)
                for r in results
            ],
        ),
    ]
    if peers:
        lines += [
            "",
            "The series of order 2, 4 heads, d=16, one thread: time relative to SDPA (below 1 is",
            "faster), and the error against float64 of the same function.",
            "",
            table(
                ["peer", *(f"T={n}" for n in LENGTHS), "error", ""],
                [(p.name, *p.times, p.error, p.note) for p in peers],
            ),
            "",
            LEFT_OUT,
        ]
    return "\n".join(lines) + "\n"


def table(header, cells) -> str:
    """Rows of text as a Markdown table."""
    rows = [header, ["---"] * len(header), *cells]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows)


def as_json(machine: Machine, results: list[Result], peers: list[PeerResult]) -> dict:
    """The same numbers for programs."""
    return {
        "machine": asdict(machine),
        "targets": [asdict(result) for result in results],
        "peers": [asdict(peer) for peer in peers],
    }
