# %% [markdown]
# # Denominator, gate, norm
#
# **Minutes:** 50
#
# **Goals:** after this notebook you can
#
# - say what the softmax denominator does to a row, and what it never does
# - explain when $G_t$ falls like $1/t$, and show trained attention where it does not
# - write the paper's two replacements, Gate and Norm, as recurrences
# - prove in two lines that the Norm form is softmax attention without its length
# - predict which gates do nothing, and check it on their gradients
#
# **Before:** [01](01_softmax_attention.ipynb) (the denominator $G_t$) and [05](05_softmax_attention_is_a_sum_of_rnns.ipynb). Three tiny trained models come with the repository. The small model is not needed.
#
# **You know most of this?** Read [The Gate form](#The-Gate-form), [The Norm form](#The-Norm-form), [What the paper found](#What-the-paper-found), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $e$ width of a value, or the base of exp; $D$ features of a key; $Q$ queries; $K$ keys; $V$ values; $O$ outputs; $G$ one over the denominator; $n$ an order; $H$ states; $z$ states of the denominator ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import math

import torch

from softattn_lib import doctor, equations, figures, parallel_attention, softmax_attention, toy
from softattn_lib.predictions import predict, reveal

doctor.check()
q, k, v = toy.q, toy.k, toy.v  # (T, d), (T, d), (T, e) with T = 4 and d = e = 2, in float64

# %% [markdown]
# ## What the denominator does
#
# In 01 softmax attention became $O_t = G_t \sum_{s \le t} e^{Q_t K_s^\top} V_s$: a numerator, and one positive number per token.

# %% tags=["nbval-ignore-output"]
predict(
    "07-what-it-changes",
    "What of the numerator, a vector, can the denominator change?",
    ["its length", "its direction", "both"],
)

# %%
weights = (q @ k.T).exp().tril()  # (T, T)
numerator, G = weights @ v, 1 / weights.sum(-1)  # (T, e), (T,)
print("G", G.numpy().round(4))
for name, y in ("numerator", numerator), ("output", G[:, None] * numerator):  # (T, e)
    print(name, y.numpy().round(2).tolist())
    print("  length", y.norm(dim=-1).numpy().round(2))
    print("  slope ", (y[:, 1] / y[:, 0]).numpy().round(2))
turned = torch.cosine_similarity(numerator, y).min() < 1 - 1e-9
scaled = not torch.allclose(numerator.norm(dim=-1), y.norm(dim=-1))
result = "both" if turned and scaled else "its direction" if turned else "its length"
reveal("07-what-it-changes", result, "it is one positive number for all entries of the vector, "
       "and such a factor does not turn it.")

# %% [markdown]
# The third row by hand: the weights are $e, e, 1$, so the numerator is $e\,(1,0) + e\,(0,1) + (2,1) = (4.72, 3.72)$, the denominator $2e + 1 = 6.44$, and their ratio has the same slope.
#
# So the denominator sets lengths. And it does a second thing: it removes whatever is common to the weights of a row. Add 2 to all scores of the third query:

# %%
shifted = (q[2] @ k[:3].T + 2).exp()  # (3,)
print("numerator grows by", ((shifted @ v[:3]) / numerator[2]).numpy().round(3))
print("denominator too:  ", (shifted.sum() * G[2]).numpy().round(3))
print("output unchanged: ", torch.allclose(shifted @ v[:3] / shifted.sum(), G[2] * numerator[2]))

# %% [markdown]
# Softmax attention is free to let its scores drift: a shift costs nothing. Keep that in mind. What replaces the denominator below will either share this freedom (the norm) or not (the gate).
#
# ## How large is $G_t$?
#
# The denominator sums $t$ weights, so compare it with $t$ times their mean. (Ours; the factor $t$ is what the paper's $1/t$ is about.)
#
# $$ t\, G_t = \Big( \frac{1}{t} \sum_{s \le t} e^{Q_t K_s^\top} \Big)^{-1}, \qquad e^{-\max_{s \le t} Q_t K_s^\top} \le t\, G_t \le e^{-\min_{s \le t} Q_t K_s^\top} \tag{7.1} $$
#
# A mean lies between the smallest and the largest weight. So as long as the scores stay in a fixed range, $t\,G_t$ does too, and $G_t$ falls like $1/t$.

# %% tags=["eq-7-1"]
for t in range(4):
    row = q[t] @ k[: t + 1].T  # (t + 1,)
    lowest, highest = (-row.max()).exp(), (-row.min()).exp()
    print(f"t = {t + 1}: {lowest:.3f} <= t G = {(t + 1) * G[t]:.3f} <= {highest:.3f}")
print(equations.check("7.1"))

# %% [markdown]
# Four tokens are few. Now 1,024 random ones of width 64, all entries normal, with the usual scale $1/8$.

# %%
generator = torch.Generator().manual_seed(0)
Q, K, V = torch.randn(3, 1024, 64, generator=generator, dtype=torch.float64)  # (T, d) each
random_weights = (Q @ K.T / 8).exp().tril()  # (T, T)
steps, random_G = torch.arange(1, 1025), 1 / random_weights.sum(-1)  # (T,) each

# %% [markdown]
# **Predict:** for a query of squared length 64, the score of a random key is normal with variance 1, and $e^{\text{score}}$ has the mean $e^{1/2}$. Where will $t\,G_t$ settle?

# %%
for t in (1, 4, 16, 64, 256, 1024):
    print(f"t = {t:4}: G {random_G[t - 1]:.5f}, t G {t * random_G[t - 1]:.2f}")
print(f"median of t G from 17 on: {(steps * random_G)[16:].median():.2f}")
print(f"e^(-1/2): {math.exp(-0.5):.2f}")

# %% tags=["nbval-ignore-output"]
some = (2 ** torch.arange(0, 10.01, 0.125)).round().long().unique()  # steps 1 to 1024 for figures
curves = {"t times G": steps * random_G, "G": random_G}
figures.lines_figure(
    some, {name: y[some - 1] for name, y in curves.items()}, log_x=True, log_y=True,
    title="Random queries and keys", x_title="t (tokens seen)",
    caption="G falls more than a thousandfold; t times G settles near 0.6.",
)

# %% [markdown]
# ## Trained attention is less neat
#
# Random queries do not look for anything. So take models that were trained: a Llama of two layers and four heads that reads 96 characters of the King James Bible, with softmax attention, and one like it with the gate that we come to below. (Notebook 10 says how they were trained, one run each.) We look at 32 held-out passages.

# %%
from softattn_lib.llama import capture_attention
from softattn_lib.scores import all_scores
from softattn_lib.tasks.presets import PRESETS
from softattn_lib.tasks.training import build_model, corpus_for, load_trained

# %% [markdown]
# A third model is not trained at all, for comparison, and a fourth, for later, was trained with the norm.

# %%
corpus = corpus_for(PRESETS["small"])
texts = torch.stack([corpus.held_out[n] for n in range(32)])  # (texts, T + 1)
models = {n: load_trained(f"../experiments/trained/{n}")[0] for n in ("softmax", "l2", "gate")}
with torch.random.fork_rng():
    torch.manual_seed(0)
    models["untrained"] = build_model("softmax", PRESETS["small"], corpus.tokenizer.size).eval()


# %% [markdown]
# Of each model we keep the scores of every layer and head, and the values.

# %%
def look_inside(model):
    """Scores (texts, layers, heads, T, T) and values (texts, layers, heads, T, e), float64."""
    captured = [capture_attention(model, None, ids[:-1]) for ids in texts]
    values = [torch.stack([layer.value for layer in c.layers.values()]) for c in captured]
    return torch.stack([all_scores(c) for c in captured]), torch.stack(values).double()


inside = {name: look_inside(model) for name, model in models.items()}
t_times_G = {  # (texts, layers, heads, T) each
    name: torch.arange(1, 97) * (-scores.logsumexp(-1)).exp()
    for name, (scores, _) in inside.items()
}

# %% [markdown]
# **Predict:** the median of $t\,G_t$ over texts and heads at $t = 4$, and at $t = 96$. Untrained, and trained with softmax: flat as for random numbers, or not? If $G_t$ falls like $1/t$, it falls by a factor of 24 between the two.

# %%
for name in ("untrained", "gate", "softmax"):
    median = t_times_G[name].flatten(0, 2).median(0).values  # (T,)
    fall = 24 * median[3] / median[95]
    print(f"{name:9}: t G = {median[3]:.2f} at t = 4, {median[95]:.2f} at 96: G fell by {fall:.0f}")

# %% tags=["nbval-ignore-output"]
shown = {name: t_times_G[name].flatten(0, 2) for name in ("untrained", "gate", "softmax")}
figures.lines_figure(
    range(1, 97), {name: x.median(0).values for name, x in shown.items()}, log_y=True,
    title="t times G, median over heads and texts", x_title="t (tokens seen)", y_title="t times G",
    caption="Flat before training, near 1 in the model with the gate, and rising with softmax.",
)

# %% [markdown]
# Untrained attention behaves like random numbers. In the model with the gate $t\,G_t$ starts lower, with 0.55 at $t = 4$, and then stays near 1. In the softmax model it *rises*, so the denominator hardly grows. The reason is that trained attention looks for something. If a few keys carry the sum, new keys that do not match add nothing to it.

# %%
for name in ("untrained", "softmax"):
    share = inside[name][0].softmax(-1)  # (texts, layers, heads, T, T)
    keys = 1 / share.square().sum(-1)  # as many equal weights would give the same sum of squares
    at = [keys[..., t - 1].median().item() for t in (16, 96)]
    print(f"{name:9}: the weight lies on about {at[0]:.0f} keys at t = 16, {at[1]:.0f} at t = 96")

# %% [markdown]
# That is the median. How far do single rows spread, and does a sigmoid, which lies between 0 and 1, reach them?

# %%
x = t_times_G["softmax"]
below, above = (x < 1e-5).any().item(), (x > 5).any().item()
print("softmax, t G: below 1e-5 somewhere:", below, " above 5:", above)
print(f"above 1, where no sigmoid reaches by itself: {100 * (x > 1).double().mean():.0f} %")

# %% [markdown]
# They spread over more than five orders of magnitude. A common factor may go into the output projection and bring the largest into a sigmoid's reach; the spread stays. Softmax does not mind: it may shift the scores of a row at will. (And (7.1) holds, since the scores themselves spread that far.)
#
# So: $1/t$ describes $G_t$ where the scores are moderate and many keys count. For our trained softmax model it is a poor description.
#
# ## The Gate form
#
# Recurrent cells often have a learned multiplicative gate at their output. The paper therefore asks: may a learned number play the part of $G_t$? A sigmoid of the layer's input $x_t$, one for each head and token, and $1/t$ so that the sum does not grow:
#
# $$ O_t = \frac{\sigma_t}{t} \sum_{s \le t} e^{Q_t K_s^\top} V_s, \qquad \sigma_t = \mathrm{sigmoid}(x_t w + b) \tag{7.2} $$
#
# (The equation is the paper's. It keeps the letter $G_t$ for the learned gate; we write $\sigma_t$, so that $G_t$ stays the denominator's. That the gate is a sigmoid of $x_t$, with a learned column $w$ and number $b$, is what its code does.) On the toy, with all gates at ½, work out the third row by hand:

# %% tags=["eq-7-2"]
half = torch.full((4,), 0.5, dtype=torch.float64)  # (T,)
options = {"normalizer": "visible_keys", "output_gate": half, "scale": 1.0}
gated, _ = parallel_attention(q, k, v, kernel="exp", **options)
print(gated.numpy().round(2).tolist())
print("numerator / 2t:", torch.allclose(gated.mT, numerator.mT / (2 * torch.arange(1, 5))))
print(equations.check("7.2"))

# %% [markdown]
# $(4.72, 3.72) / 6 = (0.79, 0.62)$. The last row, $(5.29, 2.60)$, is far longer than any value: this is no average any more.
#
# **Why not the sigmoid alone?** It would have to follow $G_t$, which for random tokens falls more than a thousandfold, and all it reads is $x_t$. The first layer shows that best: there $x_t$ comes from the character alone.

# %%
seen = []  # (heads, T) each, layer after layer, text after text
for layer in models["gate"].model.layers:
    layer.self_attn.output_gate.register_forward_hook(
        lambda module, args, out: seen.append(out.detach().sigmoid()[0].T)
    )
look_inside(models["gate"])
gates = torch.stack(seen).unflatten(0, (32, 2)).double()  # (texts, layers, heads, T)
is_space = texts[:, :-1] == corpus.tokenizer.encode(" ")  # (texts, T)
for layer in (0, 1):
    of_spaces = gates[:, layer, 0][is_space]
    lowest, highest = of_spaces.min(), of_spaces.max()
    print(f"layer {layer}, head 0, {is_space.sum()} spaces: {lowest:.3f} to {highest:.3f}")

# %% [markdown]
# In layer 0 a head gives every space the same gate, wherever it stands. (In layer 1 it varies: $x_t$ has heard of the context by then, and could have heard of the position.) Had we to replace $G_t$ by a single number, how far off would the best one be?

# %%
for name, x in ("G", random_G[16:]), ("t G", (steps * random_G)[16:]):
    off = (x.max() / x.min()).sqrt().item()  # the geometric middle is best
    best = f"the best constant for {name:3} is off by up to {off:.1f} times"
    print(f"random tokens from 17 on: {best}")

# %% [markdown]
# That is the case for the factor $1/t$. It is a good prior where the last section found $t\,G_t$ to be flat.
#
# ## The gate is recurrent
#
# Gate and $1/t$ stand outside the sum, so the numerator's states are those of (5.1), untouched:
#
# $$ O_t = \frac{\sigma_t}{t} \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} H_t^{n} \tag{7.3} $$
#
# The paper's formula multiplies the gate into $H_t^n$, with the same result. We keep it outside, since only then is $H_t^n$ a running sum that the next token can add to. (The cell cuts the series at order 4.) **Predict:** which column of the state is no longer needed?

# %% tags=["eq-7-3"]
from softattn_lib import chunked_attention, recurrent_attention, taylor

attend = (parallel_attention, recurrent_attention, chunked_attention)
options = {"normalizer": "visible_keys", "output_gate": half, "scale": 1.0}
forms = [f(q, k, v, kernel=taylor(4), **options)[0] for f in attend]
print("three forms, one result:", all(torch.allclose(forms[0], out) for out in forms[1:]))
polynomial = taylor(4)(q @ k.T).tril() @ v  # (T, e)
print("the same by scores:", torch.allclose(forms[1].mT, polynomial.mT / (2 * torch.arange(1, 5))))
print(equations.check("7.3"))

# %% [markdown]
# The column of ones (5.5): without a denominator there is nothing to count but $t$.
#
# ## What a trained gate does
#
# The model with the gate was trained so from the start. **Predict:** does its gate imitate the $t\,G_t$ of its own scores, larger where that is larger?

# %%
own = t_times_G["gate"]  # (texts, layers, heads, T)
for layer in (0, 1):
    for head in range(4):
        g, target = gates[:, layer, head].flatten(), own[:, layer, head].flatten()
        r = torch.corrcoef(torch.stack([g.log(), target.log()]))[0, 1]
        medians = f"gate {g.median():.1f}, t G {target.median():.1f}"
        print(f"layer {layer} head {head}: {medians}, r = {r:.1f}")
print(f"all gates: {gates.min():.3f} to {gates.max():.3f}")
print(f"t G between 0.01 and 100: {100 * ((own > 0.01) & (own < 100)).double().mean():.1f} %")

# %% tags=["nbval-ignore-output"]
figures.histogram_figure(
    {"the learned gate": gates.log10(), "t times G of the same rows": own.log10()},
    title="The gate, and what it stands for",
    caption="The gate stays between 0.06 and 0.74; t times G spreads far wider, to both sides.",
    x_title="logarithm to base 10 (shown from -2 to 2)", bins=torch.linspace(-2, 2, 41).numpy(),
)

# %% [markdown]
# Hardly. The gate is several times smaller (a common factor the output projection could make up for), and the correlation of the logarithms is weak and of either sign. The gate is no estimate of the denominator; it is another way to set lengths, learned together with the scores. The scores adapted to $\sigma_t / t$ (to the $1/t$ alone, by number 3 of *Try it*): this model's $t\,G_t$ stays near 1, the softmax model's does not. (One small model, one seed.)
#
# ## The Norm form
#
# The paper's second replacement has nothing to learn: divide the numerator by its own length, as $\mathcal{N}$ does with any row $y$.
#
# $$ O_t = \mathcal{N}\Big( \sum_{s \le t} e^{Q_t K_s^\top} V_s \Big) = \mathcal{N}\Big( \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} H_t^{n} \Big), \qquad \mathcal{N}(y) = \frac{y}{\|y\|_2} \tag{7.4} $$
#
# (The equation is the paper's, which writes $\|y\|$ for our $\mathcal{N}(y)$; in its code each head is divided by its own length.) The toy's third row: $(4.72, 3.72)$ has the length $6.01$.

# %% tags=["eq-7-4"]
options = {"normalizer": "l2", "scale": 1.0}
normed, _ = parallel_attention(q, k, v, kernel="exp", **options)
print(normed.numpy().round(3).tolist())
print("numerator / length:", torch.allclose(normed.mT, numerator.mT / numerator.norm(dim=-1)))
forms = [f(q, k, v, kernel=taylor(4), **options)[0] for f in attend]
print("three forms at order 4:", all(torch.allclose(forms[0], out) for out in forms[1:]))
print(equations.check("7.4"))


# %% [markdown]
# ## A positive number cancels in a norm
#
# **A common belief: "the norm replaces the denominator."** It sounds as if one way to normalize had been exchanged for another. But take any $c > 0$:
#
# $$ \mathcal{N}(c\,y) = \frac{c\,y}{\|c\,y\|_2} = \frac{c\,y}{c\,\|y\|_2} = \mathcal{N}(y). $$
#
# The denominator is such a number, $c = G_t > 0$. Put it in:
#
# $$ \mathcal{N}\Big( \sum_{s \le t} e^{Q_t K_s^\top} V_s \Big) = \mathcal{N}\big( \mathrm{softmax}(Q_t K_{1:t}^\top)\, V_{1:t} \big) \tag{7.5} $$
#
# (Two lines, and ours; as far as we know the paper does not spell them out.) The Norm form *is* softmax attention, denominator and all, of which only the direction is kept.

# %% tags=["eq-7-5"]
def direction(y):
    return y / y.norm(dim=-1, keepdim=True)


print("toy:   ", torch.allclose(normed, direction(softmax_attention(q, k, v, scale=1.0))))
from_numerator = parallel_attention(Q, K, V, kernel="exp", normalizer="l2")[0]
print("random:", torch.allclose(from_numerator, direction(softmax_attention(Q, K, V))))
scores, values = inside["l2"]  # the model that was trained with the norm
trained = direction(scores.exp() @ values), direction(scores.softmax(-1) @ values)
print("trained:", torch.allclose(*trained))
print(equations.check("7.5"))

# %% [markdown]
# This is what an experiment with the norm can show, then: whether a model can do without the *length* of the attention output. It cannot show that the denominator is dispensable in the direction, where it never was at work.
#
# ## What is inert
#
# The same line says more. The paper's code has variants with a learned gate, and $1/t$ (below: $1/n_t$, with $n_t$ for the number of visible keys), on the numerator *before* an L2 norm. What can that gate learn?
#
# We put it into the model trained with the norm, freshly initialized, and look at logits and gradients. For contrast, the same gate *after* the norm.

# %% tags=["nbval-ignore-output"]
predict(
    "07-gate",
    "A gate before the norm, or after it: where does it change the logits?",
    ["before it only", "after it only", "at both places", "at neither place"],
)

# %%
from softattn_lib.llama import swap_attention
from softattn_lib.tasks.training import next_token_losses

norm_model, inputs = models["l2"], texts[:, :-1]  # (texts, T)
before, acts = norm_model(inputs).logits.detach(), []  # (texts, T, characters)
for place in "out_gate", "post_out_gate":
    swap_attention(norm_model, f"gated_softmax_{place}_L2norm_nodivS_noclamp")
    change = (norm_model(inputs).logits - before).abs().max().item()
    acts.append(change > 1e-3)
    print(f"{place:13}: logits change by more than 0.001: {change > 1e-3}")
one = "before it only" if acts[0] else "after it only"
result = {0: "at neither place", 1: one, 2: "at both places"}[sum(acts)]
reveal("07-gate", result, "a positive factor of the numerator is a factor "
       "of its length too, and the norm divides by that length.")

# %% [markdown]
# Now the gradients of the gate's weights, next to those of the value projection of the same layer.

# %%
for place in "out_gate", "post_out_gate":
    swap_attention(norm_model, f"gated_softmax_{place}_L2norm_nodivS_noclamp")
    layer = norm_model.model.layers[0].self_attn
    learned = (layer.output_gate.weight, layer.v_proj.weight)
    gate, value = torch.autograd.grad(next_token_losses(norm_model, texts).mean(), learned)
    ratio = (gate.norm() / value.norm()).item()
    print(f"{place:13}: less than 1e-5 of the gradient of the values: {ratio < 1e-5}")

# %% [markdown]
# A gate before the norm gets no gradient beyond rounding, so it never learns anything, and the model is the model without it. The library knows such pairs:

# %%
from softattn_lib import equivalents

for name, reason in equivalents("l2").items():
    print(name, "\n ", reason)

# %% [markdown]
# [08](08_what_the_names_hide.ipynb) goes through all of the paper's names in this way.
#
# **A second belief: "then all norms are the same."** RMS norm divides by the root of the mean square, so it is $\sqrt{e}$ times $\mathcal{N}$ ($e$ the width, 64 here, so 8), up to its learned weights and its eps. Layer norm first subtracts the mean of the entries, and that turns the vector.

# %%
out = softmax_attention(Q, K, V)  # (T, e) with e = 64
for name in ("l2", "rms", "layer"):
    y, _ = parallel_attention(Q, K, V, kernel="exp", normalizer=name)  # (T, e)
    cosine = torch.cosine_similarity(y, out).min().item()
    print(f"{name:5}: length {y[99].norm():.2f}, lowest cosine with softmax {cosine:.3f}")

# %% [markdown]
# On the toy one can see what layer norm does. **Predict** it: two entries, minus their mean, divided by their spread.

# %%
toy_layer, _ = parallel_attention(q, k, v, kernel="exp", normalizer="layer", scale=1.0)
print(toy_layer.numpy().round(2).tolist())

# %% [markdown]
# Of every row just the sign of a difference is left. At $e = 64$ layer norm turns the vector by less. Either way a $G_t$ before it cancels, up to its eps: it is inert before *any* of the three.
#
# ## What is thrown away
#
# What did the length say? Softmax averages values. Where they agree, or one key takes all, the average is long; where they point apart, it is short. **Predict** the output of the norm for two equal weights on the values $(1, 0)$ and $(-1, 0.1)$.

# %%
mean = torch.tensor([[1.0, 0.0], [-1.0, 0.1]]).mean(0)
print("softmax:", mean.numpy().round(3), " norm:", direction(mean).numpy().round(3))


# %% [markdown]
# The average says "nothing much". The norm says "$(0, 1)$", at full length, a value that nobody sent. In the trained softmax model the length is related to how sharp the attention is:

# %%
def lengths(name):
    """Of softmax outputs, and the largest share of each row: two of (texts, layers, heads, T)."""
    scores, values = inside[name]
    share = scores.softmax(-1)
    return (share @ values).norm(dim=-1), share.amax(-1)


length, top = (x[..., 16:].flatten() for x in lengths("softmax"))
print(f"mean length where one key has more than half the weight: {length[top > 0.5].mean():.1f}")
print(f"mean length where none has more than a quarter:          {length[top < 0.25].mean():.1f}")
r = torch.corrcoef(torch.stack([length, top]))[0, 1]
print(f"correlation of length and largest share: {r:.1f}")


# %% [markdown]
# Does a model miss it? **Predict:** the held-out loss of the softmax model when we fix all its lengths to 1 after training, and of a model that was trained so from the start.

# %%
def loss(name, variant):
    swap_attention(models[name], variant)
    with torch.no_grad():
        return next_token_losses(models[name], texts).mean().item()


print(f"trained with softmax, run with softmax: {loss('softmax', 'softmax'):.2f}")
print(f"trained with softmax, run with the norm: {loss('softmax', 'l2'):.2f}")
print(f"trained with the norm, run with the norm: {loss('l2', 'l2'):.2f}")
print(f"trained with the norm, run with softmax:  {loss('l2', 'softmax'):.2f}")

# %% [markdown]
# A model that has learned with lengths uses them, and one that has learned without gets along without. (32 passages, one training run each.) That a model can be *trained* without them is the point of the paper's Norm form. The model trained with the norm also has lengths of its own to throw away:

# %% tags=["nbval-ignore-output"]
figures.histogram_figure(
    {"trained with softmax": lengths("softmax")[0], "trained with the norm": lengths("l2")[0]},
    title="How long the softmax average is",
    caption="The model with the norm makes longer averages, and sets every length to 1.",
    x_title="length of the softmax output of a head",
)

# %% [markdown]
# ## All magnitudes in one picture
#
# Back to the random tokens. **Predict** for each of four outputs whether its length grows, shrinks or stays as $t$ grows: the bare numerator, softmax, the gate at ½ with $1/t$, the norm.

# %%
bare = parallel_attention(Q, K, V, kernel="exp", normalizer="none")[0]  # (T, e)
outputs = {
    "numerator": bare,
    "gate ½, 1/t": 0.5 * bare / steps[:, None],
    "softmax": out,
    "norm": from_numerator,
}
for name, y in outputs.items():
    print(f"{name:11}", [round(y[t - 1].norm().item(), 2) for t in (4, 16, 64, 256, 1024)])

# %% tags=["nbval-ignore-output"]
figures.lines_figure(
    some, {name: y.norm(dim=-1)[some - 1] for name, y in outputs.items()}, log_x=True, log_y=True,
    title="Length of the output, random tokens", x_title="t (tokens seen)", y_title="length",
    caption="The numerator grows, softmax and the gate shrink side by side, the norm is 1.",
)

# %% [markdown]
# The numerator grows like a random walk, $\sqrt{t}$, later on. Averages of random values shrink like $1/\sqrt{t}$. The gate is near softmax since $t\,G_t$ is near 0.6, but each row misses by its own factor, which the gate would have to know.
#
# ## Running the norm
#
# The Norm form needs no denominator, so the column of $z$ can go: $D \times e$ numbers in place of $D \times (e + 1)$. (The library keeps the column, so that a state serves every normalizer.) We erase it after three tokens and take the fourth:

# %%
from dataclasses import replace

from softattn_lib import attention_step

_, state = recurrent_attention(q[:3], k[:3], v[:3], kernel=taylor(4), scale=1.0)
sums = state.sums.clone()  # (D, e + 1)
sums[:, -1] = 0
for normalizer in ("l2", "sum"):
    options = {"kernel": taylor(4), "normalizer": normalizer, "scale": 1.0}
    kept, _ = attention_step(q[3], k[3], v[3], state, **options)
    erased, _ = attention_step(q[3], k[3], v[3], replace(state, sums=sums), **options)
    print(f"{normalizer:3}: the same without the column: {torch.allclose(kept, erased)}")

# %% [markdown]
# What of the row's maximum, which every softmax subtracts so that exp cannot overflow (01)? It is one more positive factor. So the parallel form of the norm may subtract it, and the library does. The gate may not: a common factor changes its output. **Predict:** which of the two forms survives scores up to about 150 in float32, where exp overflows at 89?

# %%
large = [x.float() for x in (40 * Q[:50], K[:50], V[:50])]
print(f"largest score: {(large[0] @ large[1].T / 8).tril().max():.0f}")
for normalizer in ("l2", "visible_keys"):
    try:
        y, _ = parallel_attention(*large, kernel="exp", normalizer=normalizer)
        print(f"{normalizer}: finite, length {y[9].norm():.2f}")
    except OverflowError as error:
        print(f"{normalizer}: {str(error).split(';')[0]}")

# %% [markdown]
# (No recurrence can use that trick: nobody knows the row's maximum without the keys, and a cut series does not survive a shift, as 02 and 06 show.)
#
# ## The clamp at 5
#
# Without a norm the weights of exp meet nothing that tames them. Most variants in the paper's code therefore use $e^{\min(\text{score}, 5)}$; its README says that this does no harm and steadies runs without a norm. **Predict:** how many scores lie above 5 for random tokens, in the untrained model, in the trained ones? And how many *queries* have most of their weight there?

# %%
visible = torch.ones(1024, 1024).tril() == 1
random_scores = (Q @ K.T / 8).masked_fill(~visible, -torch.inf)  # (T, T)
by_name = {"random": random_scores, **{name: scores for name, (scores, _) in inside.items()}}
for name in ("random", "untrained", "softmax", "gate"):
    scores = by_name[name]
    above = (scores[scores.isfinite()] > 5).double().mean()
    weight = (scores.softmax(-1) * (scores > 5)).sum(-1)  # of each query, on keys above 5
    print(f"{name:9}: {100 * above:.2f} % of the scores above 5,", end=" ")
    print(f"{100 * (weight > 0.5).double().mean():.0f} % of the queries mostly there")
counts = [(by_name[name] > 5).sum().item() for name in ("random", "untrained")]
print("how many, random and untrained:", counts)

# %% [markdown]
# On the untrained model the clamp does nothing, on random tokens it changes a single score. The trained softmax model, free to shift its scores, has few above 5, but they carry most of the weight for a large part of the queries. (The model with the gate keeps its scores small by itself. One that trains *with* the clamp will arrange itself with it; these have not.) Where the clamp bites, it does three things:

# %%
score = torch.tensor([4.0, 6.0, 9.0], dtype=torch.float64, requires_grad=True)
weight = score.clamp(max=5).exp()
print("weights:  ", weight.detach().numpy().round(1))
print("gradients:", torch.autograd.grad(weight.sum(), score)[0].numpy().round(1))
x = torch.randn(12, 2, generator=generator, dtype=torch.float64)
scores = 4 * x @ x.T  # (12, 12), of rank 2
for name, argument in ("1 + score", scores), ("1 + min(score, 5)", scores.clamp(max=5)):
    print(f"rank of {name}: {torch.linalg.matrix_rank(taylor(1)(argument)).item()}")

# %% [markdown]
# It makes all large scores alike, it stops their gradient, and it leaves the world of polynomials: $1 + \text{score}$ is read from a state of 3 rows, and its clamped version is of rank 12 on twelve tokens, so from no state of fewer rows (05 has the argument). A function that is constant above 5 is no power series at all. So the clamped variants, most of the paper's runs, have no recurrence of the kind derived here; the paper's two equations (7.3) and (7.4) are for the unclamped ones. (This is our remark.)
#
# ## What the paper found
#
# The paper trained models of about 300 million and 2 billion parameters with softmax, norm and gate. Its figures plot the logarithm of the test loss. The numbers below are **read off the figures by eye** (within 0.005), one run for each curve.

# %%
read_off = {"300M, The Pile, 90k steps": (0.945, 0.946, 0.962)}  # softmax, norm, gate
read_off["2B, FineWeb, 60k steps"] = (0.960, 0.963, 0.987)
for name, log_losses in read_off.items():
    losses = [f"{math.exp(x):.2f}" for x in log_losses]
    print("{}: softmax {}, norm {}, gate {}".format(name, *losses))

# %% [markdown]
# The norm ends level with softmax, the gate a little worse, with spikes during training in the larger model. The abstract concludes that a plain vector norm can take over the denominator's part, empirically. By (7.5) that is the statement that *these models trained as well without the length of the attention output*. (If the norm runs were clamped, as [08](08_what_the_names_hide.ipynb) infers, (7.5) holds with clamped scores on both sides, and the clamp is a second difference from softmax.) The comparison with the gate is not quite even: according to the paper only gated models had their gradients clipped, and its gate is one scalar for each head and token.
#
# At our size, three seeds each, on the whole held-out text (the models above are seed 0). **Predict:** is the norm above or below softmax, and the gate?

# %%
from softattn_lib.tasks.records import read_rows, summarize

table = summarize(read_rows("../experiments/small.csv"), "held_out_loss")
for name in ("softmax", "l2", "gate"):
    loss = table[name]
    gaps = [a - b for a, b in zip(loss.values, table["softmax"].values, strict=True)]
    print(f"{name:7}: mean {loss.mean:.3f}, from {loss.lowest:.3f} to {loss.highest:.3f};", end=" ")
    print("minus softmax, seed by seed:", ", ".join(f"{gap:+.3f}" for gap in gaps))

# %% [markdown]
# The gate is above softmax on all three seeds, by more than 0.1, while the seeds of one form differ by less than 0.04: at this scale it costs something, as in the paper. The norm is below softmax on all three, by little. If the two were equal, three of three on one side would still happen by chance in one case of four. So our runs show no cost of the norm, and do not decide whether there is a gain. ([10](10_training_the_ablations.ipynb) has all variants.)
#
# ## Try it
#
# 1. Put the factor $-1$ before the norm. Is it inert too? (3 minutes, easy)
# 2. Which of `rms` and `layer` on the toy give the same result with `gate_position="before"` and any `output_gate`? Try gates near 0 and an `RMSNormalizer(eps=1e-2)`. (10 minutes, medium)
# 3. Train a model with $1/t$ and no gate at all, `model = train("1_over_t", "small").model` with `train` from `softattn_lib.tasks.training`, and compare its $t\,G_t$ with that of the model with the gate. `look_inside(model)` gives the scores. (10 minutes, about one of them training)
#
# <details><summary>What to expect</summary>
#
# 1. No: $\mathcal{N}(-y) = -\mathcal{N}(y)$. What cancels is the size of a factor, not its sign; a sigmoid is never negative.
# 2. Both, with `eps=0`. With an eps, a gate near 0 makes the numerator small next to it, and then the gate shows.
# 3. In our run it stayed near 1 there too, a little above: the scores adapt to the fixed $1/t$.
#
# </details>

# %%
from softattn_lib import RMSNormalizer

y = numerator[2]
print("1:", torch.equal(direction(-y), -direction(y)))
for eps in (0.0, 1e-2):
    options = {"kernel": "exp", "normalizer": RMSNormalizer(eps=eps), "scale": 1.0}
    outs = [
        parallel_attention(q, k, v, output_gate=g, gate_position="before", **options)[0]
        for g in (0.02 * half, 2 * half)
    ]
    print(f"2: eps {eps}: a gate of 0.01 is inert: {torch.allclose(*outs)}")

# %% [markdown]
# ## What you saw
#
# - The denominator is one positive number a row: it sets the length and removes common factors. It never turns the output.
# - $t\,G_t$ is one over the mean weight (7.1): flat for random and untrained attention, in our trained softmax model rising, as few keys carry the sum, and widely spread, as a shift of the scores is free.
# - The Gate form (7.2, 7.3) puts a learned $\sigma_t / t$ in its place. Our trained gate does not imitate the denominator.
# - The Norm form (7.4) *is* softmax attention without its length (7.5). Any positive factor before a norm is inert; after the norm it is not.
# - A clamp does nothing at the start, bites where trained scores are large, and ends the recurrence.

# %% [markdown]
# **Exercises** to this notebook: [07](exercises/07_denominator_gate_norm.ipynb)
#
# Back to [06 A real model](06_a_real_model.ipynb) · On to [08 What the names hide](08_what_the_names_hide.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
