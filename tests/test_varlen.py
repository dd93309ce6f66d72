"""Sequences end to end in one tensor: the numbers of one call for each."""

import pytest
import torch

from softattn_lib import attention, init_state, parallel_attention, taylor
from softattn_lib.varlen import buckets
from tests.reference import gates, inputs

LENGTHS = [3, 0, 1, 7, 8, 2, 5, 0]
TOTAL = sum(LENGTHS)
SAME = {"rtol": 1e-10, "atol": 1e-10}


def edges_of(lengths, dtype=torch.int64):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def one_by_one(q, k, v, *, states=None, **options):
    """(out, list of states): each sequence in a call of its own."""
    outs, finals, start = [], [], 0
    per_token = {"input_gate", "output_gate", "log_decay", "key_mask"} & options.keys()
    for i, length in enumerate(LENGTHS):
        piece = slice(start, start + length)
        own = {name: options[name][..., piece] for name in per_token}
        if states is not None:
            own["initial_state"] = states[i]
        qkv = (x[..., piece, :] for x in (q, k, v))
        out, final = parallel_attention(*qkv, **{**options, **own})
        outs.append(out)
        finals.append(final)
        start += length
    return torch.cat(outs, -2), finals


@pytest.mark.parametrize("form", ["auto", "parallel", "recurrent", "chunked"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_it_equals_one_call_for_each_sequence(form, is_causal, has_mask, groups):
    """With gates, states and gradients; the heads stand before the tokens."""
    q, k, v, generator = inputs(T=TOTAL, groups=groups)
    options = gates(generator, q, k, gate="after", decay=True, mask=has_mask)
    options.update(kernel=taylor(2), is_causal=is_causal, enable_gqa=groups > 1)
    first = [parallel_attention(q[..., :2, :], k[..., :2, :], v[..., :2, :] + i, kernel=taylor(2),
                                enable_gqa=groups > 1)[1] for i in range(len(LENGTHS))]  # fmt: skip
    stacked = init_state(taylor(2), 4, 5, dtype=torch.float64)
    stacked = type(stacked)(
        torch.stack([s.sums for s in first]),
        torch.stack([s.visible for s in first]),
        first[0].feature_set,
        first[0].scale,
    )
    leaves = [x.requires_grad_() for x in (q, k, v, options["input_gate"], options["log_decay"])]
    leaves.append(stacked.sums.requires_grad_())
    split = [type(stacked)(stacked.sums[i], s.visible, s.feature_set, s.scale)
             for i, s in enumerate(first)]  # fmt: skip
    out, state = attention(
        q, k, v, form=form, cu_seqlens=edges_of(LENGTHS), initial_state=stacked, **options
    )
    expected, finals = one_by_one(q, k, v, states=split, **options)
    torch.testing.assert_close(out, expected, **SAME)
    final = torch.stack([s.sums for s in finals])
    torch.testing.assert_close(state.sums, final, **SAME)
    assert torch.equal(state.visible, torch.stack([s.visible for s in finals]))
    weights = torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)
    gradients = [
        torch.autograd.grad((o * weights).sum() + s.square().sum(), leaves)
        for o, s in ((out, state.sums), (expected, final))
    ]
    for got, right in zip(*gradients, strict=True):
        torch.testing.assert_close(got, right, **SAME)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("normalizer", ["sum", "l2"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_softmax_too(is_causal, normalizer, dtype):
    q, k, v, _ = inputs(T=TOTAL)
    options = {"kernel": "exp", "is_causal": is_causal, "normalizer": normalizer}
    out, state = attention(q, k, v, cu_seqlens=edges_of(LENGTHS, dtype), **options)
    torch.testing.assert_close(out, one_by_one(q, k, v, **options)[0], **SAME)
    assert state is None


def test_no_leading_axes_and_no_state():
    q, k, v = (x[0, 0] for x in inputs(T=TOTAL)[:3])
    out, state = attention(
        q, k, v, kernel=taylor(2), cu_seqlens=edges_of(LENGTHS), return_state=False
    )
    torch.testing.assert_close(out, one_by_one(q, k, v, kernel=taylor(2))[0], **SAME)
    assert state is None


@pytest.mark.parametrize("form", ["auto", "parallel", "recurrent", "chunked"])
@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_tokens_leave_empty_states(form, lengths):
    q, k, v, _ = inputs(T=0)
    out, state = attention(q, k, v, kernel=taylor(2), form=form, cu_seqlens=edges_of(lengths))
    assert out.shape == (2, 3, 0, 5)
    assert state.sums.shape == (len(lengths), 2, 3, 15, 6)
    assert not state.sums.any()


def test_padding_is_less_than_the_tokens():
    lengths = [1, 2, 3, 4, 5, 7, 8, 100, 127, 128, 65, 64, 0, 33]
    made = buckets([0, *torch.tensor(lengths).cumsum(0).tolist()])
    assert sorted(i for bucket in made for i in bucket.sequences) == list(range(len(lengths)))
    assert len(made) == 8
    for bucket in made:
        for i in bucket.sequences:
            assert lengths[i] <= bucket.length < max(2 * lengths[i], 1)


@pytest.mark.parametrize(
    ("cu_seqlens", "error", "message"),
    [
        ([0, 5], TypeError, "cu_seqlens must be a tensor or None, got list"),
        (torch.tensor([0.0, 5.0]), TypeError, "cu_seqlens must be int32 or int64"),
        (torch.tensor([[0, 5]]), ValueError, r"must be \(N \+ 1,\), got shape \(1, 2\)"),
        (torch.tensor([], dtype=torch.int64), ValueError, r"got shape \(0,\)"),
        (torch.tensor([1, 5]), ValueError, "must start with 0, got 1"),
        (torch.tensor([0, 4, 3, 5]), ValueError, "must not decrease, got 4 before 3"),
        (torch.tensor([0, 4]), ValueError, "end with the number of tokens, 5, got 4"),
    ],
)
def test_bad_cuts_are_named(cu_seqlens, error, message):
    q, k, v, _ = inputs(T=5)
    with pytest.raises(error, match=message):
        attention(q, k, v, kernel=taylor(2), cu_seqlens=cu_seqlens)


def test_queries_and_states_must_fit_the_cut():
    q, k, v, _ = inputs(T=5)
    cut = torch.tensor([0, 2, 5])
    with pytest.raises(ValueError, match="T_q must equal T_k; got T_q=4, T_k=5"):
        attention(q[..., 1:, :], k, v, kernel=taylor(2), cu_seqlens=cut)
    state = init_state(taylor(2), 4, 5, batch_shape=(3, 2, 3), dtype=torch.float64)
    with pytest.raises(ValueError, match="each of the 2 sequences of cu_seqlens"):
        attention(q, k, v, kernel=taylor(2), cu_seqlens=cut, initial_state=state)
    with pytest.raises(TypeError, match="initial_state must be an AttentionState, got Tensor"):
        attention(q, k, v, kernel=taylor(2), cu_seqlens=cut, initial_state=state.sums)
