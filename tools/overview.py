"""Draw the README's picture, notebooks/overview.png: `python -m tools.overview`.

The row of attention that notebook 00 looks at, order by order. Like the pictures of
`tools.notebooks` it needs kaleido and a Chromium, and the small model.
"""

import base64

import torch

from softattn_lib import taylor
from softattn_lib.figures import heatmap_figure
from softattn_lib.llama import capture_attention, load_small_model
from softattn_lib.scores import rank_heads
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


if __name__ == "__main__":
    (picture,) = draw([overview().to_plotly_json()])
    (FOLDER / "overview.png").write_bytes(base64.b64decode(picture))
