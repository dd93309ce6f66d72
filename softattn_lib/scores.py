"""How large the scores of a trained model are, and what a truncated series makes of them.

Scores are (..., T, T) and minus infinity where a query does not see a key, as
`softattn_lib.llama.LayerAttention.scores` gives them. Use float64: float32 has no digits left where
the series adds and subtracts terms as large as exp(40).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .llama import CapturedAttention, attention_function, capture_attention
from .numerics import safe_divide
from .parallel import parallel_attention
from .polynomials import taylor


@dataclass(frozen=True)
class HeadRange:
    """The lowest and the highest score that a query of one head gives a key, in one text."""

    layer: int
    head: int
    lowest: float
    highest: float

    @property
    def radius(self) -> float:
        """The largest |score|, which decides how many orders a series about 0 needs."""
        return max(-self.lowest, self.highest)


def rank_heads(captured: CapturedAttention) -> list[HeadRange]:
    """The score ranges of all captured heads, smallest radius first.

    Example:
        >>> from softattn_lib.llama import LayerAttention
        >>> x, visible = torch.tensor([[[1.0], [-2.0]]]), torch.ones(2, 2, dtype=torch.bool).tril()
        >>> layers = {n: LayerAttention(n, x, x, x, scale=1 / n, visible=visible) for n in (1, 2)}
        >>> for head in rank_heads(CapturedAttention(("one", "two"), layers)):
        ...     print(head, head.radius)
        HeadRange(layer=2, head=0, lowest=-1.0, highest=2.0) 2.0
        HeadRange(layer=1, head=0, lowest=-2.0, highest=4.0) 4.0
    """
    lowest, highest = score_range(all_scores(captured))  # (layers, heads) each
    heads = [
        HeadRange(layer, head, lowest[row, head].item(), highest[row, head].item())
        for row, layer in enumerate(captured.layers)
        for head in range(lowest.shape[1])
    ]
    return sorted(heads, key=lambda head: head.radius)


def all_scores(captured: CapturedAttention) -> Tensor:
    """(layers, heads, T, T) float64: the scores of all captured layers, in the model's order.

    Example:
        >>> from softattn_lib.llama import LayerAttention
        >>> x, visible = torch.tensor([[[1.0], [-2.0]]]), torch.ones(2, 2, dtype=torch.bool).tril()
        >>> layers = {5: LayerAttention(5, x, x, x, scale=1.0, visible=visible)}
        >>> all_scores(CapturedAttention(("one", "two"), layers))
        tensor([[[[ 1., -inf],
                  [-2.,  4.]]]], dtype=torch.float64)
    """
    return torch.stack([layer.scores().double() for layer in captured.layers.values()])


def batch_scores(model, token_ids: Tensor) -> Tensor:
    """(layers, heads, B, T, T) float64: the scores of a model in B texts of T tokens.

    Args:
        model: as in `capture_attention`, for instance one of `load_trained`, which keeps the
            attention of its variant.
        token_ids: (B, T) integers.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=12, intermediate_size=20, head_dim=4,
        ...     num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> batch_scores(model, torch.tensor([[7, 3, 9], [1, 4, 2]])).shape
        torch.Size([2, 6, 2, 3, 3])
    """
    texts = [all_scores(capture_attention(model, None, ids)) for ids in token_ids]
    return torch.stack(texts, dim=2)


def score_range(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(lowest, highest) over the visible pairs of scores (..., T, T), each (...).

    Example:
        >>> score_range(torch.tensor([[1.0, -torch.inf], [-2.0, 4.0]]))
        (tensor(-2.), tensor(4.))
    """
    lowest = scores.masked_fill(_hidden(scores), torch.inf).amin((-2, -1))
    return lowest, scores.amax((-2, -1))


def center_keys(captured: CapturedAttention, reference: CapturedAttention) -> CapturedAttention:
    """Subtract from every key the mean key of its head in a reference text.

    All scores of a query move by the same amount, which softmax does not notice and a truncated
    series does. The vector is fixed before the first token comes, so a recurrence stays one.

    Args:
        captured: whose keys to move.
        reference: what the same layers computed for another text (or the same one).

    Raises:
        KeyError: a captured layer is not in the reference.

    Example:
        >>> from softattn_lib.llama import LayerAttention
        >>> x, visible = torch.tensor([[[1.0], [-2.0]]]), torch.ones(2, 2, dtype=torch.bool).tril()
        >>> layers = {5: LayerAttention(5, x, x, x, scale=1.0, visible=visible)}
        >>> captured = CapturedAttention(("one", "two"), layers)
        >>> center_keys(captured, captured).layers[5].scores()  # the mean key is -0.5
        tensor([[[ 1.5000,    -inf],
                 [-3.0000,  3.0000]]])
    """
    layers = {
        index: replace(layer, key=layer.key - reference.layers[index].key.mean(-2, keepdim=True))
        for index, layer in captured.layers.items()
    }
    return replace(captured, layers=layers)


def order_sizes(scores: Tensor, max_order: int) -> Tensor:
    """(..., max_order + 1): the mean of |score^n / n!| over the visible pairs, for each order n.

    Source: the read-out in the paper's repository, whose largest entry it calls the dominant order.

    Example:
        >>> order_sizes(torch.tensor([[2.0, -torch.inf], [1.0, -3.0]]), 2)
        tensor([1.0000, 2.0000, 2.3333])
    """
    hidden = _hidden(scores)
    size, count = scores.masked_fill(hidden, 0).abs(), (~hidden).sum((-2, -1))
    means = []
    for n in range(max_order + 1):
        power = scores.new_tensor(float(n))
        terms = (torch.xlogy(power, size) - torch.lgamma(power + 1)).exp()
        means.append(terms.masked_fill(hidden, 0).sum((-2, -1)) / count)
    return torch.stack(means, dim=-1)


def series_weights(scores: Tensor, order: int) -> Tensor:
    """(..., T, T): attention weights when the series of exp, cut after `order`, stands for exp.

    Each row is divided by its sum, as softmax divides; hidden keys get 0.

    Example:
        >>> series_weights(torch.tensor([[2.0, -torch.inf], [1.0, -3.0]]), 2)
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    hidden = _hidden(scores)
    weights = taylor(order)(scores.masked_fill(hidden, 0)).masked_fill(hidden, 0)
    return safe_divide(weights, weights.sum(-1, keepdim=True))


def misplaced_weight(scores: Tensor, order: int) -> Tensor:
    """(..., T), one number a query: the part of its weight that lies elsewhere than softmax's.

    Half the sum of |difference|, the total variation distance: 0 where the weights are softmax's,
    and at most 1 for an even order, whose weights are positive.

    Example:
        >>> misplaced_weight(torch.tensor([[2.0, -torch.inf], [1.0, -3.0]]), 2)
        tensor([0.0000, 0.4820])
    """
    return (series_weights(scores, order) - scores.softmax(-1)).abs().sum(-1) / 2


def smallest_order(scores: Tensor, tolerance: float, max_order: int) -> Tensor:
    """(...) float: the smallest even order that misplaces at most `tolerance` of the weight.

    The misplaced weight is averaged over the queries of scores (..., T, T). Infinite where no even
    order up to `max_order` is enough.

    Example:
        >>> scores = torch.tensor([[2.0, -torch.inf], [1.0, -3.0]])
        >>> smallest_order(torch.stack([scores, 9 * scores]), tolerance=0.01, max_order=12)
        tensor([8., inf])
    """
    found = scores.new_full(scores.shape[:-2], torch.inf)
    for order in reversed(range(0, max_order + 1, 2)):
        found[misplaced_weight(scores, order).mean(-1) <= tolerance] = order
    return found


def next_token_loss(
    model, token_ids: Tensor, kernel="exp", reference: CapturedAttention | None = None
) -> float:
    """The mean loss (in nats) of a model that predicts each next token of a text.

    Args:
        model: a ``LlamaForCausalLM`` or a relative, causal and without a sliding window.
        token_ids: (T,) integers, T >= 2.
        kernel: what stands for exp in all its layers, as in `parallel_attention`.
        reference: where given, the mean keys to subtract first, as in `center_keys`.

    Raises:
        ValueError: the model masks more than the future, or has its attention swapped.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=12, intermediate_size=20, head_dim=4,
        ...     num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
        >>> model, token_ids = LlamaForCausalLM(config).eval(), torch.tensor([7, 3, 9, 1, 4])
        >>> plain = model(token_ids[None], labels=token_ids[None]).loss.item()
        >>> abs(next_token_loss(model, token_ids, taylor(20)) - plain) < 1e-4
        True
    """

    replaced = set()

    def attention(module, query, key, value, attention_mask, *, scaling, **kwargs):
        replaced.add(module.layer_idx)
        if attention_mask is not None:
            raise ValueError("model masks more than the future; a plainly causal one is needed")
        if reference is not None:
            key = key - reference.layers[module.layer_idx].key.mean(-2, keepdim=True)
        options = {"scale": scaling, "enable_gqa": True, "return_state": False}
        out, _ = parallel_attention(query, key, value, kernel=kernel, **options)
        return out.transpose(1, 2), None  # (batch, T, heads, e)

    with torch.no_grad(), attention_function(model, attention):
        loss = model(token_ids[None], labels=token_ids[None], use_cache=False).loss.item()
    if len(replaced) < model.config.num_hidden_layers:
        raise ValueError("model has layers of swapped attention; call restore_attention first")
    return loss


def _hidden(scores: Tensor) -> Tensor:
    return scores == -torch.inf
