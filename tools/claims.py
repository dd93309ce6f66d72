"""Write claims.md from the tables in experiments/: `python -m tools.claims`.

The words are in tools/claims.md.j2; every number among them, and every verdict, is computed here.
"""

import math
from functools import cache
from itertools import pairwise
from pathlib import Path

import jinja2
import torch

from softattn_lib import equations, num_features, order_for_tolerance, softmax_attention, taylor
from softattn_lib.llama import capture_attention
from softattn_lib.parallel import parallel_attention
from softattn_lib.tasks.records import Summary, read_rows, summarize
from softattn_lib.tasks.text import embedded_text
from softattn_lib.tasks.training import load_trained

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "experiments"
PAGE = ROOT / "claims.md"
NORMS = ("l2", "rms", "layer")
WITHOUT_NORM = ("gate", "gate_without_1_over_t", "1_over_t", "no_denominator")
GATE_OR_NOT = (("gate", "1_over_t"), ("gate_without_1_over_t", "no_denominator"))
CLAMPED = tuple(f"{name}_clamp5" for name in WITHOUT_NORM)
EVEN_ORDERS = tuple(f"taylor_{order}" for order in (2, 4, 6, 8, 10))
LINEAR = ("linear_relu", "linear_elu", "linear_cosine", "cosine")
WARMUP = 50  # steps, of all presets here


class Table:
    """One number of a table by variant, and comparisons seed by seed.

    Variants with the same seed share their first weights and their batches, so that they are
    compared in pairs.

    >>> runs = (("a", 0, 1), ("b", 0, 3), ("a", 1, 2), ("b", 1, 4))
    >>> rows = [{"variant": name, "seed": seed, "loss": loss} for name, seed, loss in runs]
    >>> table = Table(rows, "loss")
    >>> table.mean("a"), table.is_higher("b", "a")
    ('1.500', True)
    """

    def __init__(self, rows, column, by="variant"):
        self.summaries = summarize(sorted(rows, key=lambda row: int(row["seed"])), column, by)

    def __getitem__(self, name) -> Summary:
        return self.summaries[name]

    def mean(self, name) -> str:
        mean = self[name].mean
        return "diverged on some seed" if math.isnan(mean) else f"{mean:.3f}"

    def means(self, names) -> str:
        return ", ".join(f"`{name}` {self.mean(name)}" for name in names)

    def range(self, name) -> str:
        x = self[name]
        return f"{x.mean:.3f} ({x.lowest:.3f} to {x.highest:.3f})"

    def is_higher(self, name, other) -> bool:
        """On every seed."""
        pairs = list(zip(self[name].values, self[other].values, strict=True))
        return all(a > b for a, b in pairs)

    def is_not_higher(self, name, other) -> bool:
        """On some seed at least, and no run of the two has diverged."""
        means = (self[name].mean, self[other].mean)
        return not (self.is_higher(name, other) or any(map(math.isnan, means)))

    def are_all_higher(self, names, other) -> bool:
        return all(self.is_higher(name, other) for name in names)

    def compared(self, name, other) -> str:
        """The comparison in words."""
        by = f"by {abs(self[name].mean - self[other].mean):.3f} on average"
        if self.is_higher(name, other):
            return f"`{name}` is above `{other}` on every seed, {by}"
        if self.is_higher(other, name):
            return f"`{name}` is below `{other}` on every seed, {by}"
        return f"of `{name}` and `{other}`, which is lower depends on the seed"

    def all_compared(self, names, other) -> str:
        """A list in Markdown."""
        return "\n".join(f"- {self.compared(name, other)}" for name in names)

    def from_lowest(self) -> list[str]:
        """Names by their mean, those that diverged last."""
        means = {name: self[name].mean for name in self.summaries}
        return sorted(means, key=lambda name: (math.isnan(means[name]), means[name]))


def verdict(*facts: bool) -> str:
    """What observed facts make of a claim.

    >>> verdict(True, True), verdict(True, False), verdict(False)
    ('holds', 'holds in part', 'does not show here')
    """
    return "holds" if all(facts) else "holds in part" if any(facts) else "does not show here"


def read_tables(folder: Path = TABLES) -> dict[str, Table]:
    """The tables that the claims are about, and what else is computed from their rows."""
    rows = {
        name: read_rows(folder / f"{name}.csv")
        for name in ("recall", "recall_one_head", "small", "stability", "truncation", "curves")
    }
    cut_after = [row for row in rows["truncation"] if row["trained"] == "softmax"]
    cut_within = [row for row in rows["truncation"] if row["trained"] == row["tested"]]
    return {
        "recall": Table(rows["recall"], "accuracy"),
        "one_head": Table(rows["recall_one_head"], "accuracy"),
        "small": Table(rows["small"], "held_out_loss"),
        "stress": Table(rows["stability"], "held_out_loss"),
        "largest_norms": Table(largest_norms(rows["curves"]), "norm"),
        "cut_after": Table(cut_after, "held_out_loss", by="tested"),
        "cut_within": Table(cut_within, "held_out_loss", by="tested"),
    }


def largest_norms(curves) -> list[dict]:
    """Of each run under stress the largest gradient norm after the warm-up; NaN if there is one."""
    norms = {}
    for row in curves:
        if row["sweep"] == "stability" and int(row["step"]) > WARMUP:
            run = (row["variant"], row["seed"])
            norms.setdefault(run, []).append(float(row["largest_gradient_norm"]))
    return [
        {"variant": name, "seed": seed, "norm": torch.tensor(values).max().item()}  # NaN and all
        for (name, seed), values in norms.items()
    ]


def verdicts(recall, small, largest_norms, **_) -> dict[str, str]:
    """What became of each claim that the tables can speak to."""
    clamp_is_harmless = [small.is_not_higher(f"{name}_clamp5", name) for name in WITHOUT_NORM]
    norms_do = [small.is_not_higher(name, "softmax") for name in NORMS]
    gate_is_worse = [small.is_higher("gate", other) for other in ("softmax", "l2")]
    return {
        "C6": verdict(*norms_do),
        "C8": verdict(
            *(small.are_all_higher(LINEAR, name) for name in ("softmax", "l2", *EVEN_ORDERS[1:])),
            all(recall.is_higher("taylor_2", name) for name in LINEAR),
            *(small[a].mean > small[b].mean for a, b in pairwise(EVEN_ORDERS[:3])),
        ),
        "C9": verdict(*gate_is_worse, small.is_higher("gate_clamp5", "softmax"), norms_do[0]),
        "C10": verdict(
            *(small.is_higher(odd, "taylor_2") for odd in ("taylor_1", "taylor_3")),
            *(recall.is_higher("taylor_2", odd) for odd in ("taylor_1", "taylor_3")),
        ),
        "C12": verdict(gaussian_above_five() < 1e-4, *clamp_is_harmless),
        "F1": verdict(*gate_is_worse, norms_do[0]),
        "F2": verdict(*(largest_norms.is_higher("gate", other) for other in ("softmax", "l2"))),
        "F4": verdict(
            small.is_higher("taylor_2", "taylor_4"),
            small["taylor_2"].mean - small["taylor_4"].mean
            > small["taylor_4"].mean - small["taylor_10"].mean,
            small["taylor_10"].overlaps(small["softmax"]),
        ),
        "F5": verdict(*(small.is_higher(name, "softmax") for name in LINEAR)),
        "F6": verdict(
            *(small.is_higher(name, "softmax") for name in WITHOUT_NORM),
            *norms_do,
            *(small.is_not_higher(plain, gate) for gate, plain in GATE_OR_NOT),
        ),
    }


def page(tables: dict[str, Table]) -> str:
    """The whole of claims.md."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string((ROOT / "tools" / "claims.md.j2").read_text("utf-8"))
    return template.render(
        **tables,
        verdicts=verdicts(**tables),
        groups={"norms": NORMS, "without": WITHOUT_NORM, "clamped": CLAMPED}
        | {"even": EVEN_ORDERS, "linear": LINEAR},
        check=equations.check,
        num_features=num_features,
        order_for_tolerance=order_for_tolerance,
        log=math.log,
        truncation_errors=truncation_errors(),
        norm_difference=norm_difference(),
        denominators=denominators(),
        gate_before_a_norm=gate_before_a_norm(),
        gaussian_above_five=gaussian_above_five(),
        trained_above_five=trained_above_five(),
    )


# --- What needs no table --------------------------------------------------------------------------


def truncation_errors() -> dict[int, float]:
    """Mean relative distance to softmax attention, by the order kept in both sums."""
    q, k, v = _gaussian(tokens=32, d=4, seed=0)
    exact, errors = softmax_attention(q, k, v), {}
    for order in (0, 1, 2, 3, 4, 6, 8, 10):
        weights = taylor(order)(q @ k.mT * 4**-0.5).tril()
        out = weights @ v / weights.sum(-1, keepdim=True)
        errors[order] = ((out - exact).norm(dim=-1) / exact.norm(dim=-1)).mean().item()
    return errors


def norm_difference() -> float:
    """Between the normalized numerator and the normalized softmax attention."""
    q, k, v = _gaussian(tokens=64, d=16, seed=1)
    norm, _ = parallel_attention(q, k, v, kernel="exp", normalizer="l2")
    softmax = softmax_attention(q, k, v)
    return (norm - softmax / softmax.norm(dim=-1, keepdim=True)).abs().max().item()


def denominators() -> dict[int, float]:
    """G_t by t: its mean over 20 draws of Gaussian queries and keys, d = 64."""
    draws = [_gaussian(tokens=1024, d=64, seed=seed) for seed in range(20)]
    inverses = torch.stack([1 / (q @ k.mT / 8).exp().tril().sum(-1) for q, k, _ in draws]).mean(0)
    return {t: inverses[t - 1].item() for t in (2, 17, 128, 1024)}


def gate_before_a_norm() -> float:
    """The larger of what the gate changes in the outputs, and of its gradient."""
    q, k, v = _gaussian(tokens=16, d=8, seed=2)
    gate = torch.linspace(0.1, 0.9, 16, dtype=torch.float64, requires_grad=True)
    options = {"kernel": "exp", "normalizer": "l2"}
    gated, _ = parallel_attention(q, k, v, output_gate=gate, gate_position="before", **options)
    plain, _ = parallel_attention(q, k, v, **options)
    (gated * v).sum().backward()
    return max((gated - plain).abs().max().item(), gate.grad.abs().max().item())


@cache
def gaussian_above_five() -> float:
    """Share of scores above 5, Gaussian queries and keys, d = 64."""
    q, k, _ = _gaussian(tokens=4096, d=64, seed=3)
    return (q @ k.mT / 8 > 5).double().mean().item()


def trained_above_five() -> float:
    """The same of a trained model on text that it was not trained on."""
    model, tokenizer = load_trained(TABLES / "trained" / "softmax")
    held_out = tokenizer.encode(embedded_text())[-20 * 96 :]  # the end is not trained on
    captured = [capture_attention(model, None, ids) for ids in held_out.split(96)]
    scores = [layer.scores()[:, layer.visible] for c in captured for layer in c.layers.values()]
    return (torch.stack(scores) > 5).double().mean().item()


def _gaussian(tokens, d, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, tokens, d, generator=generator, dtype=torch.float64)


if __name__ == "__main__":
    PAGE.write_text(page(read_tables()), encoding="utf-8")
    print(PAGE.name)
