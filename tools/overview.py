"""Draw the README's pictures of the small model: `python -m tools.overview`.

notebooks/against_order.png is the loss against the order for the families of polynomials, from the
table of notebook 12; notebooks/overview.png the row of attention that notebook 00 looks at, order
by order. Like the pictures of `tools.notebooks` they need kaleido and a Chromium, and the second
one the small model.
"""

import base64

import torch

from softattn_lib import taylor
from softattn_lib.figures import heatmap_figure
from softattn_lib.llama import capture_attention, load_small_model
from softattn_lib.scores import rank_heads
from softattn_lib.tasks.beyond_taylor import loss_figure
from softattn_lib.tasks.records import read_rows
from tools.notebooks import FOLDER, draw

TEXT = "She poured the tea slowly, because the cup was old and the tea was hot."
ORDERS = (0, 1, 2, 3, 4, 6)


def overview():
    """The weights of the last token on all tokens, one row an order, softmax below."""
    captured = capture_attention(*load_small_model(), TEXT)
    calm = rank_heads(captured)[0]
    scores = captured.layers[calm.layer].scores()[calm.head, -1].double()
    weights = torch.stack([taylor(order)(scores) for order in ORDERS] + [scores.exp()])
    figure = heatmap_figure(
        weights / weights.sum(-1, keepdim=True),
        title="Order by order to softmax",
        caption="What the last token attends to, in one head of SmolLM2-135M. Order 0 is the "
        "average, each order is one more recurrent network.",
        rows=[f"order {order}" for order in ORDERS] + ["softmax"],
        columns=captured.tokens,
    )
    figure.update_layout(width=760, height=380, paper_bgcolor="white")
    figure.update_xaxes(tickangle=-60)
    return figure


def against_order():
    """The loss of the small model against the order, for each family of polynomials."""
    figure = loss_figure(read_rows(FOLDER.parent / "experiments" / "beyond_taylor.csv"))
    return figure.update_layout(width=760, height=460, paper_bgcolor="white")


if __name__ == "__main__":
    drawn = draw([make().to_plotly_json() for make in (against_order, overview)])
    for name, picture in zip(("against_order", "overview"), drawn, strict=True):
        (FOLDER / f"{name}.png").write_bytes(base64.b64decode(picture))
