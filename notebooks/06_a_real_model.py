# %% [markdown]
# # A real model
#
# **Minutes:** 25
#
# **Goals:** after this notebook you can
#
# - say how large the scores of a trained model are, and find the heads where they are small
# - read off which orders of the series carry the weight, and name the trap in that read-out
# - measure how far order $N$ is from softmax in each of 270 heads
# - explain where the series is hopeless, and which shift of the scores helps
# - say why cutting the series after training is not what the paper did
#
# **Before:** [02](02_exp_as_a_series.ipynb) (Poisson shares, cancellation, shifts) and [05](05_softmax_attention_is_a_sum_of_rnns.ipynb). Needs the small model, which `make model` fetches once. Without it, read on: all outputs are stored.
#
# **You know most of this?** Read [Where the series is hopeless](#Where-the-series-is-hopeless), [A shift that a recurrence can have](#A-shift-that-a-recurrence-can-have), [The lesson](#The-lesson), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $d$ width of a query or key; $e$ width of a value, or the base of exp; $Q$ queries; $K$ keys; $V$ values; $n$ an order; $N$ the highest order kept ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import torch

from softattn_lib import doctor, figures, num_features, taylor
from softattn_lib.predictions import predict, reveal

doctor.check(model=True)

# %% [markdown]
# ## Two texts and a model
#
# We take the beginning of *Alice's Adventures in Wonderland* (1865), and keep that of *Pride and Prejudice* (1813) for later. The model is SmolLM2-135M-Instruct, a Llama of 30 layers and 9 heads. Its weights were stored in about 4 bits each; it computes in float32, and we go on from its queries and keys in float64.

# %%
from softattn_lib.llama import capture_attention, load_small_model

model, tokenizer = load_small_model()
alice = """Alice was beginning to get very tired of sitting by her sister on the bank, and of
having nothing to do: once or twice she had peeped into the book her sister was reading, but it had
no pictures or conversations in it.""".replace("\n", " ")
austen = """It is a truth universally acknowledged, that a single man in possession of a good
fortune, must be in want of a wife.""".replace("\n", " ")
captured = capture_attention(model, tokenizer, alice)

# %% [markdown]
# A score is $Q_t K_s^\top / \sqrt{d}$, after the rotation by position (RoPE). Where a query does not see a key it is minus infinity.

# %%
from softattn_lib.scores import all_scores, score_range

scores = all_scores(captured)  # (layers, heads, T, T)
lowest, highest = score_range(scores)  # (layers, heads) each
print("layers, heads, T, T:", tuple(scores.shape))

# %% [markdown]
# ## How large are the scores?
#
# On the toy of 01 to 05 the last query scores its keys between $-2$ and $3$.
#
# **Predict:** what is the largest score in the trained model, and what the lowest? Does it have more large positive or more large negative ones?

# %%
visible = scores[scores.isfinite()]
print("lowest below -40:", visible.min().item() < -40)
print("highest above 18:", visible.max().item() > 18)
for name, share in ("above 5", visible > 5), ("below -5", visible < -5):
    print(f"{name}: {100 * share.double().mean().item():.0f} % of the scores")

# %% [markdown]
# More than half of the large ones are negative. Here is the whole distribution:

# %% tags=["nbval-ignore-output"]
figures.histogram_figure(
    {"all 270 heads": visible},
    title="Scores of a trained model",
    caption="Most lie within 5 of zero. The left tail is the long one: it reaches beyond -40.",
    x_title="score",
    log_y=True,
)

# %% [markdown]
# A score of $-40$ is a firm "never": $e^{-40}$ is as good as nothing, and softmax does not mind how firm. A polynomial minds: none stays near zero as its argument runs away.
#
# Heads differ widely. The **radius** of a head is its largest score in size, the number that decides how many orders a series about 0 needs.

# %%
from softattn_lib.scores import rank_heads

ranked = rank_heads(captured)
for name, head in ("smallest", ranked[0]), ("median", ranked[135]), ("largest", ranked[-1]):
    print(f"{name:8} radius {head.radius:.0f}")
print("the largest is in layer", ranked[-1].layer)

# %% [markdown]
# ## Which orders carry the weight?
#
# For a single score $x > 0$, order $n$ has the share $\frac{x^n / n!}{e^x}$ of its weight: a Poisson law that peaks at $x$, rounded down ([02](02_exp_as_a_series.ipynb)). The paper's repository turns this into a read-out: it averages $|x^n / n!|$ over the scores of a layer and calls the largest entry the **dominant order**.
#
# **Predict:** what will the dominant order of a layer be close to?

# %%
from softattn_lib.scores import order_sizes

sizes = order_sizes(scores, 60)  # (layers, heads, 61)
dominant = sizes.mean(1).argmax(-1)  # (layers,)
print("dominant order of layers 0 to 29:", dominant.tolist())
radius = torch.maximum(highest, -lowest)  # (layers, heads)
print("never above the head's radius:", (sizes.argmax(-1) <= radius).all().item())

# %% [markdown]
# It follows the largest scores, and it cannot exceed them: once $n > |x|$ for every score, all terms shrink. It stays below where only few scores are that large. So the read-out measures the size of scores, by another name.

# %% tags=["nbval-ignore-output"]
figures.lines_figure(
    range(30),
    {
        "dominant order": dominant,
        "highest score": highest.amax(1),
        "lowest score, in size": -lowest.amin(1),
    },
    title="The dominant order follows the largest score",
    caption="Where it is above 20, as in layer 18, the lowest score leads it, not the highest.",
    x_title="layer",
)

# %% [markdown]
# The paper's repository did this for Llama-3-8B, over the keys and queries of a hundred generated tokens. From its plot (the numbers below are read off by eye, within 1 or so) we see dominant orders of a similar size on a larger model.

# %%
llama_3_8b = [19, 16, 18, 12, 15, 16, 10, 13, 11, 15, 8, 9, 10, 5, 20, 23]
llama_3_8b += [15, 7, 8, 8, 7, 10, 7, 9, 10, 17, 7, 8, 15, 21, 7, 74]
print("Llama-3-8B:", min(llama_3_8b), "to", max(llama_3_8b[:-1]), "and", llama_3_8b[-1], "at last")
print("SmolLM2-135M:", dominant.min().item(), "to", dominant.max().item())

# %% [markdown]
# ## The trap in that read-out
#
# Layer 18 of our model reads 41.
#
# **Predict:** does softmax attention in layer 18 put its weight on keys that score about 41?

# %%
positive = scores.masked_fill(scores <= 0, -torch.inf)
of_positive = order_sizes(positive, 60).nanmean(1).argmax(-1)  # (layers,)
print("layer 18, dominant order:", dominant[18].item())
print("highest score below 9:", highest[18].max().item() < 9)
print("of positive scores alone:", of_positive[18].item())

# %% [markdown]
# No. The absolute value hides the sign. The 41 comes from keys that score about $-42$ and get no weight at all; the keys that do get weight need orders around 7. But a series *must* go through those large terms to cancel them. A high dominant order can mean "attention is sharp here" or "the series has to work hard to say never". From the paper's plot we cannot tell which of the two the 74 of Llama-3-8B is. (This distinction is ours.)
#
# ## How far is order N from softmax?
#
# Let $p_s$ be the weights of order $N$ in a row and $w_s$ those of softmax. The **misplaced weight** $\frac12 \sum_s |p_s - w_s|$ is the part that lies on other keys than it should, between 0 and 1 for even orders. Twice that, times the largest $|V_s|$, bounds the error of the output. We average it over the queries of a head.
#
# The paper's model, trained with about 10 orders, ends at the loss of softmax (read off a figure by eye).

# %% tags=["nbval-ignore-output"]
predict(
    "06-good-heads",
    "In how many of our 270 heads does order 10 misplace at most 1 %?",
    low=0, high=270, step=15, unit="heads",
)

# %%
from softattn_lib.scores import misplaced_weight

orders = list(range(0, 42, 2))
misplaced = torch.stack([misplaced_weight(scores, n).mean(-1) for n in orders])
misplaced = misplaced.flatten(1)  # (orders, layers * heads)
for order in (2, 6, 10, 20, 40):
    good = (misplaced[orders.index(order)] <= 0.01).sum().item()
    print(f"order {order:2}: at most 1 % misplaced in {good:3} of 270 heads")
print("worst head, more than 80 % at every order:", misplaced.amax(1).min().item() > 0.8)
reveal("06-good-heads", (misplaced[orders.index(10)] <= 0.01).sum().item(), "the scores of most "
       "heads leave the range in which ten orders are enough, above all on the negative side.")

# %% [markdown]
# Order 10, so good in the paper's training, is close in fewer than a quarter of the heads. The heads differ by an enormous factor:

# %% tags=["nbval-ignore-output"]
figures.lines_figure(
    orders,
    {
        "worst head": misplaced.amax(1),
        "median head": misplaced.median(1).values.clamp(min=1e-8),
        "best head": misplaced.amin(1).clamp(min=1e-8),
    },
    title="Misplaced weight against order",
    caption="The best head is below 1 % from order 6 on, the median from 14, the worst nowhere.",
    x_title="order N",
    y_title="misplaced weight (or 1e-8, if less)",
    log_y=True,
)

# %% [markdown]
# The same for each head: the smallest even order that misplaces at most 1 %. The darkest cells are the heads where not even order 40 does.

# %% tags=["nbval-ignore-output"]
from softattn_lib.scores import smallest_order

needed = smallest_order(scores, tolerance=0.01, max_order=40)  # (layers, heads)
figures.heatmap_figure(
    needed.clamp(max=42),
    title="Smallest order within 1 % of softmax",
    caption="Light heads are easy. The darkest, 42, need more than order 40.",
    x_title="head",
    y_title="layer",
)

# %%
print("median over the heads:", needed.median().item())
print("smallest:", needed.min().item())
print("beyond 40:", needed.isinf().sum().item(), "heads")
print("of these in layer 18:", needed[18].isinf().sum().item())

# %% [markdown]
# ## Where the series is hopeless
#
# Take the head with the largest radius and its last query. Softmax has a favourite key. Which one is the favourite of order 10?
#
# **Predict** before you run it: what score will that key have?

# %%
row = scores[ranked[-1].layer, ranked[-1].head, -1]  # (T,)
order_10 = taylor(10)(row) / taylor(10)(row).sum()  # (T,)
for name, weights in ("softmax", row.softmax(-1)), ("order 10", order_10):
    best = weights.argmax().item()
    place = row.argsort(descending=True).tolist().index(best) + 1
    print(f"{name:8} prefers {captured.tokens[best].strip()!r}, score rank {place} of {len(row)}")
print("softmax on scores below -20: under 1e-9:", row.softmax(-1)[row < -20].sum().item() < 1e-9)
print("order 10 on them: over 95 %:", order_10[row < -20].sum().item() > 0.95)

# %% [markdown]
# The series looks at the wrong end. For a strongly negative score the highest even power kept wins, $s^{10}/10!$, and it is huge and positive: the key that softmax ignores most becomes the favourite.
#
# Enough orders mend that, in principle: far beyond order 42 the terms cancel. That takes digits.

# %%
coefficients = torch.tensor(taylor(120).coefficients)  # (121,) in float32
print("1/n! is 0 in float32 for n = 40:", coefficients[40].item() == 0)
for dtype in (torch.float64, torch.float32):
    worst = misplaced_weight(scores[18].to(dtype), 120).mean(-1).max().item()
    print(dtype, "order 120, every head of layer 18 within 1 %:", worst < 0.01)

# %% [markdown]
# Float64 gets there at last. In float32 no order helps, for two reasons that the cell does not separate: huge terms would have to cancel to nearly nothing, which seven digits do not allow, and the later coefficients are not even there.
#
# Two lessons. Large **positive** scores are milder: a cut series flattens their shares but keeps their ranking. Large **negative** scores are poison.
#
# ## Softmax ignores a shift, the series does not
#
# Adding the same number to all scores of a row changes nothing in softmax. A series about 0 sees other numbers. So we may choose the shift.
#
# Every softmax in practice subtracts the row's maximum. Is that good for the series? What would be better?

# %% tags=["nbval-ignore-output"]
predict(
    "06-maximum",
    "The row's maximum is subtracted. Order 10 now suffices ...",
    ["in more heads than before", "in as many heads as before", "in fewer heads than before"],
)

# %%
suffices = {}  # order 10, in how many heads
floor = scores.masked_fill(scores == -torch.inf, torch.inf).amin(-1, keepdim=True)
ceiling = scores.amax(-1, keepdim=True)  # (layers, heads, T, 1), as floor
for name, shift in ("nothing", 0), ("maximum", ceiling), ("middle", (floor + ceiling) / 2):
    found = smallest_order(scores - shift, tolerance=0.01, max_order=20)
    counts = [(found <= order).sum().item() for order in (10, 20)]
    suffices[name] = counts[0]
    print(f"subtract {name:7}: order 10 suffices in {counts[0]:3} heads, order 20 in {counts[1]:3}")
gain = suffices["maximum"] - suffices["nothing"]
how_many = "more" if gain > 0 else "fewer" if gain < 0 else "as many"
reveal("06-maximum", f"in {how_many} heads {'than' if gain else 'as'} before", "it leaves no score "
       "above 0 and makes the lowest lower still, and there a series is at its worst.")

# %% [markdown]
# The maximum is the worst of the three. The middle makes the radius as small as a shift can, and order 10 suffices three times as often. But only who has all scores of a row knows their middle. A recurrent network keeps no keys to score: it has its state.
#
# ## A shift that a recurrence can have
#
# Subtract one fixed vector $m$ from every key. The scores of a query all move by the same amount,
#
# $$Q_t (K_s - m)^\top = Q_t K_s^\top - Q_t m^\top,$$
#
# so softmax stays exactly as it was, and the state simply stores powers of $K_s - m$. Is there an $m$ that removes the negative scores? The obvious candidate is the head's mean key. We take it from the *other* text, so that nothing of this one is used.

# %%
from softattn_lib.scores import center_keys

reference = capture_attention(model, tokenizer, austen)
centered = all_scores(center_keys(captured, reference))  # (layers, heads, T, T)
change = (centered.softmax(-1) - scores.softmax(-1)).abs().max().item()
print("softmax is the same to 1e-5:", change < 1e-5)
found = smallest_order(centered, tolerance=0.01, max_order=40)
for order in (10, 20, 40):
    print(f"order {order} suffices in {(found <= order).sum().item()} of 270 heads")

# %% [markdown]
# Order 10 used to suffice in 62 heads. Both maps side by side:

# %% tags=["nbval-ignore-output"]
figures.heatmap_figure(
    {"keys as they are": needed.clamp(max=42), "mean key subtracted": found},
    title="Smallest order within 1 % of softmax",
    caption="The darkest heads are gone, and most are lighter than before.",
    x_title="head",
    y_title="layer",
)

# %%
visible = centered[centered.isfinite()]
print("lowest score now above -25:", visible.min().item() > -25)
print("highest score now above 35:", visible.max().item() > 35)

# %% [markdown]
# The range did not shrink. It moved: what was far below zero is now nearer, what is above zero went up, and above zero the series does less harm.
#
# ## What the whole model says
#
# Errors in 270 heads may add up or cancel. Let the model predict each next token of the Alice sentence while *all* its attention is the cut series, and measure the mean loss, with the keys as they are and with the mean key subtracted.
#
# **Predict:** softmax attention has a loss of 3.6, and blind averaging (order 0) one of 7.9. Where will order 10 be?

# %%
from softattn_lib.scores import next_token_loss

token_ids = torch.tensor(tokenizer(alice)["input_ids"])  # (T,)
print(f"softmax:  loss {next_token_loss(model, token_ids):.1f}")
print(f"order  0: loss {next_token_loss(model, token_ids, taylor(0)):.1f}")
for order in (2, 6, 10):
    plain = next_token_loss(model, token_ids, taylor(order))
    shifted = next_token_loss(model, token_ids, taylor(order), reference)
    print(f"order {order:2}: loss {plain:.1f}, with the mean key subtracted {shifted:.1f}")

# %% [markdown]
# Cut at order 10, this model has all but stopped reading, and from order 2 to 6 it even gets *worse*: more orders are not always better. With one fixed vector a head subtracted, order 10 is close to softmax. (One sentence, one small model, no training: our measurement, not a claim of the paper.)
#
# ## The lesson
#
# None of this contradicts the paper. It did not cut a trained model: it **trained with the cut in place**, and such a network can adapt to the cut. In its figure, whose axis is the logarithm of the loss, orders 8 and 10 end on top of softmax (read off by eye). (Whether "10 orders" counts order 0 we do not know.) Equal loss is not equal attention: whether its scores become small, or it computes something else as useful, is not measured here.
#
# And nobody runs order 10 as a recurrence at $d = 64$:

# %%
features = num_features(64, 10)
print(f"order 10, one head: {features:.1e} features, each with 65 sums")
print(f"a KV cache is smaller up to {features * 65 / 128:.0e} tokens")

# %% [markdown]
# The series tells us what softmax attention *is*. What one builds from it keeps few orders, small heads, or both, and trains with them.
#
# ## What you saw
#
# - Scores of a trained model run from below $-40$ to above 18, and differ widely between heads.
# - The dominant order reads off the size of the largest scores, whatever their sign.
# - Order 10 is within 1 % of softmax in 62 of 270 heads; large negative scores ruin many of the others.
# - Softmax ignores a shift and the series does not: the row's maximum is the worst of three shifts, and a fixed mean key subtracted from all keys is one that a recurrence can have.
# - Cutting a trained model and training a cut model are two different experiments.
#
# **Try it:**
#
# - Put in two texts of your own. Which counts move, which do not? (5 minutes, easy)
# - The first token attracts much of the attention (a "sink"), and its key is unlike the others. Leave it out of the mean key: with `replace` from `dataclasses`, make `replace(reference, layers={n: replace(layer, key=layer.key[:, 1:]) for n, layer in reference.layers.items()})`, and hand that to `center_keys` and to `next_token_loss`. Does the loss at order 6 improve? (10 minutes, medium)
# - `swap_attention(model, "taylor_10")` from `softattn_lib.llama` puts the cut series into the model for good. Let it generate a sentence, then `restore_attention(model)`. (10 minutes, medium)

# %% [markdown]
# **Exercises** to this notebook: [06](exercises/06_a_real_model.ipynb)
#
# Back to [05 Softmax attention is a sum of RNNs](05_softmax_attention_is_a_sum_of_rnns.ipynb) · On to [07 Denominator, gate, norm](07_denominator_gate_norm.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
