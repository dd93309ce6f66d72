# %% [markdown]
# # Looking back
#
# **Minutes:** 15
#
# **Goals:** after this notebook you can
#
# - tell true statements about softmax attention and its recurrences from false ones that sound as good
# - refute each false one with a counter-example of a few lines
# - say which of your guesses in this course were right, and why the others were not
#
# **Before:** the notebooks 01 to 05; some statements come from [06](06_a_real_model.ipynb), [07](07_denominator_gate_norm.ipynb), [09](09_expressiveness.ipynb), [11](11_what_it_costs.ipynb) and [12](12_beyond_taylor.ipynb). The small model is not needed.
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import torch

from softattn_lib import attention, doctor, num_features, parallel_attention, taylor
from softattn_lib.predictions import predict, reveal, summary

doctor.check()
YES_NO = ["true", "false"]

# %% [markdown]
# Eleven statements follow, some true, some not. Commit to "true" or "false" before you run the cell below.
#
# All use these random queries, keys and values of one head: 64 tokens of width 8, with scores of standard deviation 1.

# %%
generator = torch.Generator().manual_seed(0)
q, k, v = torch.randn(3, 64, 8, generator=generator, dtype=torch.float64)  # (T, d) each
scores = (q @ k.T / 8**0.5).masked_fill(torch.ones(64, 64).triu(1).bool(), -torch.inf)
print(f"standard deviation of the visible scores: {scores[scores.isfinite()].std():.1f}")


# %%
def misplaced(order, scores):
    """Weight of the series that lies on other keys than with softmax, mean over the rows."""
    series = taylor(order)(scores.where(scores > -torch.inf, 0)).where(scores > -torch.inf, 0)
    weights = series / series.sum(-1, keepdim=True)
    return ((weights - scores.softmax(-1)).abs().sum(-1) / 2).mean().item()


# %% [markdown]
# ## 1. "Linear attention is softmax attention with a small error"

# %% tags=["nbval-ignore-output"]
predict("13-small-error", "Linear attention is softmax attention with a small error.", YES_NO)

# %%
sizes = (0.1, 1, 4)
errors = [misplaced(1, size * scores) for size in sizes]  # order 1, 1 + s
for size, error in zip(sizes, errors, strict=True):
    print(f"scores times {size:3}: {error:7.3f} of the weight misplaced")
reveal("13-small-error", "false" if max(errors) > 0.5 else "true", "the error of order 1 is small "
       "only where all scores are. Feature maps such as relu are not even then close: they make "
       "another similarity (04).")

# %% [markdown]
# ## 2. "Subtracting the maximum of a row changes nothing"

# %% tags=["nbval-ignore-output"]
predict("13-shift", "Subtracting the maximum of a row changes nothing, in softmax and in its "
        "series alike.", YES_NO)

# %%
row = scores[-1]
for name, function in ("softmax", torch.exp), ("order 4", taylor(4)):
    a, b = function(row), function(row - row.max())
    print(f"{name}: weights change by up to {(a / a.sum() - b / b.sum()).abs().max():.3f}")
changes = (a / a.sum() - b / b.sum()).abs().max() > 0.01
reveal("13-shift", "false" if changes else "true", "exp(s - m) = exp(s) exp(-m), and the factor "
       "cancels. A polynomial has no such rule (02).")

# %% [markdown]
# ## 3. "An even order never gives a negative weight"

# %% tags=["nbval-ignore-output"]
predict("13-even", "An even order of the series never gives a negative weight.", YES_NO)

# %%
s = torch.linspace(-30, 30, 6001, dtype=torch.float64)
lowest = [taylor(order)(s).min().item() for order in range(1, 9)]
print("lowest value of orders 1 to 8:", *(f"{x:.3g}" for x in lowest))
is_true = min(lowest[1::2]) > 0 and max(lowest[0::2]) < 0
reveal("13-even", "true" if is_true else "false", "at a minimum the derivative, which is the order "
       "below, is 0; so the value there is the last term alone, an even power (02).")

# %% [markdown]
# ## 4. "More orders are always better"

# %% tags=["nbval-ignore-output"]
predict("13-more", "More orders are always better.", YES_NO)

# %%
score = torch.tensor(-8.0)
exact = score.double().exp()
for order in (2, 4, 8, 16, 32, 60):
    off = (taylor(order)(score) - exact) / exact
    print(f"order {order:2} at -8, float32: off by {off:12.2g} times exp(-8)")
errors = [abs(taylor(order)(score) - exact) for order in (2, 4, 6, 8)]
reveal("13-more", "false" if errors[1] > errors[0] else "true", "far below zero the next even "
       "order is worse than the last, until the order passes the score; and float32 never gets "
       "there, since large terms must cancel (02).")

# %% [markdown]
# ## 5. "A recurrent network has a small state"

# %% tags=["nbval-ignore-output"]
predict("13-state", "Written as a recurrent network, attention needs little memory.", YES_NO)

# %%
for order in (1, 2, 4, 6):
    numbers = num_features(64, order) * 65
    print(f"order {order} at d = 64: {numbers:14,} numbers, as {numbers // 128:12,} cached tokens")
reveal("13-state", "false" if num_features(64, 4) * 65 > 128 * 100_000 else "true", "a state of "
       "constant size is not a small one: order 4 holds more than the keys and values of a hundred "
       "thousand tokens (03, 11).")

# %% [markdown]
# ## 6. "The denominator is a detail"

# %% tags=["nbval-ignore-output"]
predict("13-denominator", "The denominator of softmax attention is a detail.", YES_NO)

# %%
lengths = {}  # with values of one sign; of both signs they would cancel in part
for normalizer in ("sum", "none"):
    out, _ = parallel_attention(q, k, v.abs(), kernel="exp", normalizer=normalizer)
    longer = lengths[normalizer] = (out[-1].norm() / out[0].norm()).item()
    print(f"normalizer {normalizer:4}: output 64 is {longer:5.1f} times as long as output 1")
reveal("13-denominator", "false" if lengths["none"] > 10 else "true", "without it the output is a "
       "sum that grows with the text. Something must take its place, and a norm can (07).")

# %% [markdown]
# ## 7. "A gate before a norm does nothing"

# %% tags=["nbval-ignore-output"]
predict("13-gate", "A positive gate before an L2 norm does nothing.", YES_NO)

# %%
gate = torch.rand(64, generator=generator, dtype=torch.float64)
options = {"kernel": "exp", "normalizer": "l2", "gate_position": "before"}
plain, _ = parallel_attention(q, k, v, **options)
gated, _ = parallel_attention(q, k, v, output_gate=gate, **options)
reveal("13-gate", "true" if torch.allclose(plain, gated) else "false", "the norm divides by the "
       "length, and with it by the gate (07).")

# %% [markdown]
# ## 8. "The mask may come at any time before the softmax"

# %% tags=["nbval-ignore-output"]
predict("13-mask", "A mask can be applied at any time before the weights are normalised.", YES_NO)

# %%
row, hidden = torch.tensor([0.0, 1.0, 2.0, 200.0]), torch.tensor([False, False, False, True])
early = row.masked_fill(hidden, -torch.inf)
early = (early - early.max()).exp()
late = (row - row.max()).exp().masked_fill(hidden, 0)
print("mask, then maximum:", [f"{x:.2f}" for x in early / early.sum()])
print("maximum, then mask: weights", late.tolist(), "and a sum of", late.sum().item())
reveal("13-mask", "false" if late.sum() == 0 else "true", "the hidden score is the maximum, and "
       "beside it all visible weights vanish in float32. First the mask, then the maximum (01).")

# %% [markdown]
# ## 9. "Any polynomial of the score has a recurrent form"

# %% tags=["nbval-ignore-output"]
predict("13-any", "Any polynomial in place of exp has a recurrent form.", YES_NO)

# %%
from softattn_lib.polynomials import Polynomial

odd_one = Polynomial((0.3, -1.0, 0.0, 2.0, 0.7))  # no one's choice
options = {"kernel": odd_one, "normalizer": "none"}
pair = [attention(q, k, v, form=form, **options)[0] for form in ("parallel", "recurrent")]
reveal("13-any", "true" if torch.allclose(*pair) else "false", "the states hold powers of the "
       "keys, and the coefficients come in when the query reads (12).")

# %% [markdown]
# ## 10. "Softmax attention is a recurrent network with a finite state"

# %% tags=["nbval-ignore-output"]
predict("13-finite", "Softmax attention is a recurrent network with a state of some finite "
        "size.", YES_NO)

# %%
keys, queries = torch.randn(2, 40, 2, generator=generator, dtype=torch.float64)
ranks = []
for weights in (taylor(4)(queries @ keys.T), (queries @ keys.T).exp()):
    singular = torch.linalg.svdvals(weights)  # (40,)
    ranks.append((singular > 1e-10 * singular[0]).sum().item())
print("order 4 has a state of", num_features(2, 4), "rows and weights of rank", ranks[0])
print("weights of exp have a larger rank:", ranks[1] > ranks[0])
reveal("13-finite", "false" if ranks[1] > num_features(2, 4) else "true", "a state of D rows gives "
       "weights of rank D at most, and exp has no such bound: equality for all inputs takes "
       "infinitely many orders. Cut at an order it is finite, and no longer softmax (05, 09).")

# %% [markdown]
# ## 11. "The recurrent form approximates the parallel form"

# %% tags=["nbval-ignore-output"]
predict("13-forms", "The recurrent form of a polynomial is an approximation of its parallel "
        "form.", YES_NO)

# %%
forms = ("parallel", "recurrent", "chunked")
outs = [attention(q, k, v, kernel=taylor(4), form=form)[0] for form in forms]
gap = max((out - outs[0]).abs().max().item() for out in outs)
print("the three forms agree to 1e-12:", gap < 1e-12)
reveal("13-forms", "false" if gap < 1e-12 else "true", "only the order of summation differs. The "
       "approximation is the cut after order N, and all three forms share it (04, 05).")

# %% [markdown]
# ## Your guesses
#
# All that you have guessed in the course, on this machine. (The stored page shows an empty list.)

# %%
summary()

# %% [markdown]
# And the exercises: which are solved, and with how many hints?

# %%
from softattn_lib import exercises

exercises.progress()

# %% [markdown]
# ## What you saw
#
# - False statements often hold in a corner: for small scores, for exp but not for its series, in float64 but not in float32. A counter-example finds the corner's edge.
# - Of eleven statements three are true, and each of them has a proof of two lines.

# %% [markdown]
# Back to [12 Beyond Taylor](12_beyond_taylor.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
