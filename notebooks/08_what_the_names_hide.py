# %% [markdown]
# # What the names hide
#
# **Minutes:** 35
#
# **Goals:** after this notebook you can
#
# - read any of the paper's 38 variants as one formula with three parts
# - say from the parts which variants are the same function, and check it
# - tell "equal", "equal up to an eps" and "equal on these numbers" apart
# - name the places where the paper, its README and its code disagree, and say what each one means for a comparison
#
# **Before:** [05](05_softmax_attention_is_a_sum_of_rnns.ipynb) and [07](07_denominator_gate_norm.ipynb), which introduces gate and norm. The small model is not needed.
#
# **You know most of this?** Read [One formula, three parts](#One-formula,-three-parts), [What they mean](#What-they-mean), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $d$ width of a query or key; $e$ width of a value, or the base of exp; $Q$ queries; $K$ keys; $V$ values; $O$ outputs; $G$ one over the denominator; $n$ an order ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import warnings

import torch

from softattn_lib import VARIANTS, doctor, equations, parallel_attention, toy
from softattn_lib.predictions import predict, reveal

doctor.check()
torch.set_default_dtype(torch.float64)
warnings.simplefilter("ignore")  # weights of both signs over their sum; we know, and look at it
q, k, v = toy.q, toy.k, toy.v  # (T, d), (T, d), (T, e) with T = 4 and d = e = 2

# %% [markdown]
# ## One formula, three parts
#
# The paper asks which parts of softmax attention matter, and its code holds 38 ways to do attention, each under a name. Nearly all of them are this:
#
# $$ O_t = \sigma_t\; \mathcal{N}\Big( \sum_{s \le t} \kappa(Q_t, K_s)\, a_{s..t}\, \iota_s\, V_s \Big) \tag{8.1} $$
#
# - $\kappa$, the **kernel**: what stands where exp stood.
# - $\mathcal{N}$, the **normalizer**: what stands where the denominator stood. (A sum or $1/t$ also looks at the weights, or at $t$.)
# - the **gates**: $\sigma_t$ on the output (some names put it inside $\mathcal{N}$), $\iota_s$ on the values, and a decay $a_{s..t}$, the product of the decays of the steps after $s$ up to $t$. A decay acts on the sum of the weights too, an input gate on the values alone.
#
# (Writing it as one formula is ours.)

# %% tags=["eq-8-1"]
output_gate = torch.tensor([0.9, 0.5, 0.1, 0.8])  # (T,)
input_gate = torch.tensor([1.0, 0.2, 0.5, 0.7])  # (T,)
weights = (q @ k.T).exp().tril()  # (T, T)
visible = torch.arange(1, 5).unsqueeze(-1)  # (T, 1): the query at t sees t keys
by_hand = output_gate.unsqueeze(-1) * (weights * input_gate @ v) / visible  # (T, e)
gates = {"input_gate": input_gate, "output_gate": output_gate}
out, _ = parallel_attention(q, k, v, kernel="exp", normalizer="visible_keys", scale=1.0, **gates)
print("last output:", out[3].numpy().round(4), " the same:", torch.allclose(out, by_hand))
print(equations.check("8.1"))

# %% [markdown]
# In this library a variant is a value that names its parts. Here are four of the paper's names. **Predict** from the names alone: in which part does each differ from the first?

# %%
for name in ("softmax", "softmax_gate", "softmax_divS_gate", "gated_softmax_no_gate"):
    entry = VARIANTS[name]
    print(f"{name}: {entry.kernel}, {type(entry.normalizer).__name__}")
    print(f"    gates {entry.input_gate}, {entry.output_gate}; learns {entry.learnables}")

# %% [markdown]
# Did you expect the clamp? Most of the paper's runs, says the README of its code, cut the scores off at 5 before exp, to keep runs without a norm from overflowing. The name says nothing of it. And `gated_softmax_no_gate` has no gate; it is the layer norm of a mean.
#
# ## All 38
#
# Scores are $l = Q_t K_s^\top / \sqrt d$ after rotary embedding, clamped scores $c = \min(l, 5)$, and $n_t$ is the number of keys that the query sees. The table says what the code of each name computes: we read it there. (That names are equal, below, we also saw by running that code.) The last column counts the numbers in a state of constant size at $d = e = 64$, as the library stores it, with the column of ones whether or not there is a denominator; where there is no such state, every key and value is kept.
#
# Letters: $v$ is $V_s$, $g$ is the $x_t w + b$ of (7.2) before any sigmoid, $m$ a learned number of each head, $\mathrm{sg}$ lets no gradient pass, L2, RMS and LN are the norms of 07, $P_{79}$ has the orders 0 to 79 of exp, and a hat is a vector divided by its length. In number 34 the decay of step $t$ is $e^{g_{t-1}/1024}$, which may also be above 1.

# %%
from IPython.display import Markdown

paper = [entry for entry in VARIANTS.values() if entry.number]
table = ["| | name | output of one head | learns | state |"]
table += ["|---|---|---|---|---|"]
for entry in paper:
    size = entry.state_size(64, 64)
    state = "cannot be built" if entry.unavailable else "none"
    if size:
        state = f"{size:,}" if size < 1e6 else f"{size:.0e}"
    formula = "" if entry.unavailable else f"${entry.formula}$"
    learns = ", ".join(entry.learnables)
    table.append(f"| {entry.number} | {entry.name} | {formula} | {learns} | {state} |")
Markdown("\n".join(table))

# %%
names = [entry.name for entry in paper if not entry.unavailable]
print(len(paper), "names,", len(names), "can be built here")
print("with a state of constant size:", [entry.number for entry in paper if entry.is_recurrent])
clamped = VARIANTS["softmax_gate"].kernel
print("with exp clamped at 5:", sum(entry.kernel == clamped for entry in paper))

# %% [markdown]
# Five have a state of constant size, and number 10 only on paper: 80 orders at width 64 are about $10^{43}$ numbers. Those that keep exp unclamped are the *infinite* sum of notebook 05. A clamped exp is neither: $\min(l, 5)$ is no polynomial of the score and no limit of the series.
#
# Five cannot be built here, because they need a module that is not part of (8.1). They say so:

# %%
from softattn_lib import SoftAttention, VariantUnavailableError

for name in ("gated_softmax_plusplus", "gated_softmax_plusplus_mamba", "linear_mamba"):
    try:
        SoftAttention(name, hidden_size=32, num_heads=4)
    except VariantUnavailableError as error:
        print(error)


# %% [markdown]
# ## Predict which coincide
#
# To compare two names fairly we give them the same weights: parameters called alike get the same random numbers in every layer.

# %%
def build(name, size=0.3):
    """A layer of 4 heads of width 8; a parameter's random values depend on its own name alone."""
    layer = SoftAttention(name, hidden_size=32, num_heads=4)
    for key, weight in layer.named_parameters():
        generator = torch.Generator().manual_seed(sum(map(ord, key)))
        weight.data = size * torch.randn(weight.shape, generator=generator)
    return layer


x = torch.randn(1, 12, 32, generator=torch.Generator().manual_seed(0))  # (B, T, width)

# %% [markdown]
# Do the scores reach beyond 5, so that the clamp has something to do?

# %%
from softattn_lib.layers import rotary_embedding, rotate


def largest_score(size=0.3):
    """Of the keys that are visible, in a layer of `build`."""
    layer = build("softmax", size)
    angles = rotary_embedding(12, 8, layer.rotary_base, like=x)
    projected = [p(x).unflatten(-1, (4, 8)) for p in (layer.q_proj, layer.k_proj)]
    queries, keys = (rotate(y.transpose(1, 2), *angles) for y in projected)  # (B, H, T, d) each
    return (queries @ keys.mT / 8**0.5).tril().max().item()


print(f"the largest score is {largest_score():.1f}")


# %% [markdown]
# **Predict, before you run the cell**, "same" or "different" for each pair:
#
# 1. `softmax_divS_gate` and `gated_softmax_no_in_gate_no_norm`
# 2. `softmax_gate` and `gated_softmax_no_in_gate_no_norm` (the README of the code says: the same)
# 3. `gated_softmax_out_gate_L2norm_nodivS_noclamp` and `gated_softmax_no_gate_L2norm_nodivS_noclamp`: with and without a gate (you know 3 and 4 from 07)
# 4. `gated_softmax_post_out_gate_L2norm_nodivS_noclamp` and `gated_softmax_no_gate_L2norm_nodivS_noclamp`
# 5. `gated_softmax_no_gate_rmsnorm` and `gated_softmax_no_gate_rmsnorm_nodivS`: with and without $1/n_t$
# 6. `gated_softmax_no_in_gate` and `gated_softmax_no_gate`: with and without a gate, under a layer norm
# 7. `softmax_clamp_denom` and `softmax_detach_denom`: with and without a gradient through the denominator

# %%
def difference(one, other, size=0.3):
    """Distance of the outputs of two layers, over the length of the longer one."""
    with torch.no_grad():
        a, b = (build(name, size)(x)[0] for name in (one, other))
    return ((a - b).norm() / torch.maximum(a.norm(), b.norm())).item()


pairs = [(7, 16), (6, 16), (22, 20), (23, 20), (24, 25), (13, 18), (2, 3)]  # numbers of the table
for n, (a, b) in enumerate(pairs, start=1):
    apart = difference(paper[a - 1].name, paper[b - 1].name)
    words = "equal to rounding" if apart < 1e-12 else f"{apart:.1g} apart"
    print(f"{n}. number {a} and number {b}: {words}")

# %% [markdown]
# How many did you get? Three kinds of answers:
#
# - **Equal.** 1 is one formula under two names. 3: a positive factor cancels inside a norm. 7: a gradient has no place in a formula of values.
# - **Different.** 2: number 6 has no $1/n_t$, so the README's line is a slip (the twin of 16 is 7). 4: behind the norm, a gate is free to act.
# - **Nearly.** 5 and 6 are apart by little, and for one reason: the `eps` inside the norm.
#
# ## A gate before a norm
#
# For a numerator $y$:
#
# $$ \mathcal{N}(\sigma_t\, y) = \begin{cases} \sigma_t\, \mathcal{N}(y) & \mathcal{N} \text{ a sum, } 1/t \text{ or nothing} \\ \mathcal{N}(y) & \mathcal{N} \text{ a norm, } \sigma_t > 0 \end{cases} \tag{8.2} $$
#
# ($\sigma_t$ multiplies the numerator; the sum of the weights stays as it is. A factor on the weights themselves would cancel, as in 07.) The second line holds for any positive factor of a query, $1/n_t$ and the softmax denominator included (that is (7.5)).

# %% tags=["eq-8-2"]
for normalizer in ("sum", "visible_keys", "none", "l2", "rms", "layer"):
    options = {"kernel": "exp", "normalizer": normalizer, "scale": 1.0}
    plain, _ = parallel_attention(q, k, v, **options)
    after, _ = parallel_attention(q, k, v, **options, output_gate=output_gate)
    options |= {"output_gate": output_gate, "gate_position": "before"}
    before, _ = parallel_attention(q, k, v, **options)
    same = [torch.allclose(before, other) for other in (after, plain)]
    print(f"{normalizer:12} before = after: {same[0]!s:5}  before = no gate: {same[1]}")
print(equations.check("8.2"))

# %% [markdown]
# **A common belief: "a parameter that is in the model is trained."** Number 22 learns a gate before an L2 norm, and in [07](07_denominator_gate_norm.ipynb) you saw what its gradient is: rounding. What moves that gate in training is rounding and weight decay, and wherever it goes, the outputs do not follow. An ablation "with gate" against "without gate" at this place compares a function with itself.
#
# ## Up to an eps
#
# Layer norm divides by $\sqrt{\mathrm{var} + 10^{-5}}$. In pair 6 the gate scales the variance and not the eps, so it shows where the variance is small. The cell makes the gate smaller by its bias.

# %% tags=["nbval-ignore-output"]
predict(
    "08-smaller-gate",
    "The gate becomes smaller. What does the difference between gated and plain do?",
    ["it shrinks", "it stays", "it grows"],
)

# %%
largest = []
plain = build("gated_softmax_no_gate")
gated = build("gated_softmax_no_in_gate")
for bias in (0.0, -2.0, -4.0):
    gated.output_gate.bias.data.fill_(bias)
    with torch.no_grad():
        a, b, gate = gated(x)[0], plain(x)[0], gated.output_gate(x).sigmoid()
    apart = (a - b).norm(dim=-1)[0] / b.norm(dim=-1)[0]  # (T,)
    largest.append(apart.max().item())
    distances = f"{apart.min():.5f} to {apart.max():.2f}"
    print(f"mean gate {gate.mean():.3f}: apart by {distances}, token by token")
growth = largest[-1] / largest[0]
result = "it grows" if growth > 1.01 else "it shrinks" if growth < 0.99 else "it stays"
reveal("08-smaller-gate", result, "the gate makes the signal small, and eps keeps its size.")

# %% [markdown]
# The smaller the signal, the larger the share of eps. "Equal up to an eps" is a statement about the formula with eps 0; how good it is depends on the numbers. At bias $-4$ some tokens do not notice and others are far off.

# %% [markdown]
# ## The same values, another gradient
#
# Pair 7 is the opposite case: outputs equal to the last bit, and training goes another way.

# %%
results = []
for name in ("softmax_clamp_denom", "softmax_detach_denom"):
    layer = build(name)
    out, _ = layer(x)
    out.square().sum().backward()
    results.append((out.detach(), layer.k_proj.weight.grad))
print("outputs equal:", torch.equal(results[0][0], results[1][0]))
print("gradients close:", torch.allclose(results[0][1], results[1][1], rtol=0.1))

# %% [markdown]
# ## All pairs at once
#
# The library keeps what we know in `equivalents(name)`: other names, each with its reason.

# %%
from softattn_lib import equivalents

for name in ("softmax_divS_gate", "gated_softmax_no_gate_rmsnorm", "softmax"):
    print(name)
    for other, reason in equivalents(name).items():
        print(f"    = {other}: {reason}")

# %% [markdown]
# Put names that are equal, an eps counted as 0, into one group.

# %% tags=["nbval-ignore-output"]
predict(
    "08-functions",
    "How many different functions are left of the 33 names?",
    low=3, high=33, step=3, unit="functions",
)

# %%
groups = []
for name in names:
    known = [group for group in groups if group[0] in equivalents(name)]
    if known:
        known[0].append(name)
    else:
        groups.append([name])
print(len(names), "names,", len(groups), "functions")
for group in [group for group in groups if len(group) > 1]:
    print([VARIANTS[name].number for name in group])
reveal("08-functions", len(groups), "a positive factor of a query cancels inside a norm, a "
       "gradient has no place in a formula of values, and some formulas have two names.")

# %% [markdown]
# Now the other way round: run all of them, and look. The cell builds all layers with the same weights, takes for every pair the distance of the two outputs over the length of the longer one, and counts the digits in which they agree: a distance of $10^{-5}$ is 5 digits, and 16 is equal to rounding. Names of one group are neighbours, and from 6 digits on all are drawn alike.

# %% tags=["nbval-ignore-output"]
from softattn_lib import figures

order = [name for group in sorted(groups, key=len, reverse=True) for name in group]
with torch.no_grad():
    outs = torch.stack([build(name)(x)[0].flatten() for name in order])  # (33, T * width)
lengths = outs.norm(dim=-1)
apart = (outs[:, None] - outs).norm(dim=-1) / torch.maximum(lengths[:, None], lengths)  # (33, 33)
digits = -apart.clamp(1e-16, 1).log10()
figure = figures.heatmap_figure(
    digits, limits=(0, 6),
    title="Digits in which two variants agree",
    caption="Dark blocks are one function under several names. What are the pale ones?",
    rows=[VARIANTS[name].number for name in order],
    columns=[VARIANTS[name].number for name in order],
)
figure.update_layout(height=640)


# %%
def count(tolerance):
    """How many groups there are if outputs closer than this are the same."""
    return len({tuple(row) for row in (apart < tolerance).tolist()})


print("equal to rounding, 1e-12:", count(1e-12), "functions")
close = sorted((apart[i, j].item(), order[i], order[j]) for i in range(33) for j in range(i))
for gap, one, other in [pair for pair in close if 1e-12 < pair[0] < 0.15]:
    stated = "equal up to eps" if other in equivalents(one) else "not equal"
    print(f"{gap:.1g} apart: numbers {VARIANTS[one].number}, {VARIANTS[other].number}, {stated}")

# %% [markdown]
# The first count is 27, since the eps still tells three names apart. The list has a trap: numbers 19 and 20 are as close as 11 and 14 are. But they are *not* one function: 19 clamps the scores, and 20 does not.
#
# **Predict:** smaller weights, so that no score exceeds 5. Which pair is then closer?

# %%
for size in (0.3, 0.25, 0.2):
    clamp = difference(paper[18].name, paper[19].name, size)
    eps = difference(paper[10].name, paper[13].name, size)
    print(f"weights of size {size}, largest score {largest_score(size):.1f}:", end=" ")
    print(f"19 and 20 apart by {clamp:.1g}, 11 and 14 by {eps:.1g}")

# %% [markdown]
# Where the clamp never bites, two different functions agree to the last bit, and two that are equal by the formula do not. **So a test on numbers cannot settle whether two variants are one.** It can refute, and it can find candidates. The reason has to come from the formula; that is why `equivalents` gives reasons.
#
# It also says something about clamped runs: as long as scores stay below 5, a clamp is not there. Do the scores of a trained model stay below? [07](07_denominator_gate_norm.ipynb#The-clamp-at-5) counted it in small ones, [06](06_a_real_model.ipynb) looks at a real one.

# %% [markdown]
# ## Put one together yourself
#
# Choose the three parts. Left are the weights on the values (before a norm), right the length of each output beside softmax attention's, below the formula, the state, and every name of the combination.
#
# **Before you play:** with L2 as the normalizer, which gate changes the outputs, and which does not?

# %% tags=["nbval-ignore-output"]
from softattn_lib.widgets import ablation_explorer

widget = ablation_explorer.mount()
widget

# %%
widget.normalizer.value = "l2"
for gates in ("none", "output_before", "output_after", "input"):
    widget.gates.value = gates
    lengths = widget.figure.data[1].y  # (T,)
    print(f"{gates:13} lengths of the last outputs {lengths[-3:].round(3).tolist()}")
    print("             ", widget.read_out.value.split("Direction:</b> ")[1])

# %% [markdown]
# **Finish the sentence:** "A gate before a norm changes ..., after it it changes ..., and an input gate changes ..."
#
# <details><summary>One way to finish it</summary>
#
# "... nothing, the length, and the direction." An input gate weighs the values against each other, and no norm can undo that.
#
# </details>
#
# The widget's names come from a rule of a few lines, `ablation_explorer.essence`: take the parts, and drop what cancels. It finds the groups above with no run and no list. Only pair 7 escapes it: a detached denominator is another part, so the rule counts one function more.

# %%
from collections import defaultdict

by_rule = defaultdict(list)
for name in names:
    by_rule[ablation_explorer.essence(VARIANTS[name])].append(name)
print(len(by_rule), "functions by the rule")
larger = [group for group in by_rule.values() if len(group) > 1]
print("every group of it is known:", all(group in groups for group in larger))

# %% [markdown]
# So there are three counts: 27 functions run apart, 24 if an eps counts as 0, and 25 if, besides, a detached denominator counts as a function of its own.
#
# ## The errata, one by one
#
# A word first. We can list these because the authors published their code, and code that grows with the research has such things. Most are small. Each line says how we know it: **here** means that a cell below computes it, **read** that we read it in the authors' code (the commit b039a8c), **run** that we ran their module on a CPU.
#
# ### 80 terms without a denominator (here, read, run)
#
# `softmax_taylor_80terms` computes the normalized weights and then goes on with those before the division. The orders are 0 to 79. On the toy:

# %%
from softattn_lib import softmax_attention, taylor

options = {"kernel": taylor(79), "scale": 1.0}
for normalizer in ("none", "sum"):
    out, _ = parallel_attention(q, k, v, normalizer=normalizer, **options)
    print(f"orders 0 to 79, normalizer {normalizer}:", out[3].numpy().round(4))
print("softmax:", softmax_attention(q, k, v, scale=1.0)[3].numpy().round(4))

# %% [markdown]
# With the division it is softmax to all digits shown. The number of terms is fixed in the code, so the paper's figure with the orders 2, 4, 6, 8 and 10 needed an edited copy. **Whether those runs had the division is not known to us**, nor whether "10" means the orders up to 10 or ten terms. (`taylor_N` in this library divides.)
#
# ### A cosine over heads (here, read, run)
#
# `linear_cosine` normalizes queries and keys with torch's `normalize` and leaves out the axis. Its default is axis 1, and that is the heads:

# %%
import torch.nn.functional as F

generator = torch.Generator().manual_seed(0)
queries, keys = torch.randn(2, 2, 4, 12, 8, generator=generator)  # (B, H, T, d) each
as_coded, as_meant = ([F.normalize(y, dim=axis) for y in (queries, keys)] for axis in (1, -1))
lengths = as_coded[0][0, :3, 0].norm(dim=-1)  # of three queries
print("length of a query over d, as coded:", [round(y.item(), 2) for y in lengths])
for name, (a, b) in (("as coded", as_coded), ("as meant", as_meant)):
    print(f"{name}: largest |q . k| {(a @ b.mT).abs().max():.2f}")

# %% [markdown]
# A cosine is never above 1; what the code multiplies is no cosine. `cosine` in this library is what the name says.
#
# In the same variant, a value is divided by a power of *its own* position, $n_s^{\mathrm{sigmoid}(m)}$, and not of the query's, $n_t$. **Predict:** in a row of equal scores, which values count more, early or late ones?

# %%
position = torch.arange(1.0, 5.0)  # (T,)
power = torch.tensor(0.5).sigmoid()  # the code's first value of sigmoid(m)
print("divided at the value:", (1 / position**power).numpy().round(3))
print("divided at the query:", (1 / position[-1] ** power).expand(4).numpy().round(3))

# %% [markdown]
# Early ones, at every query alike. The other divisor would treat all alike.
#
# ### A line of the README (here, run)
#
# It says that `softmax_gate` is `gated_softmax_no_in_gate_no_norm`. You saw that they differ; the cell says by what.

# %%
with torch.no_grad():
    ratio = build("softmax_gate")(x)[0] / build("gated_softmax_no_in_gate_no_norm")(x)[0]
print("one over the other, token by token:", ratio[0].mean(-1).numpy().round(6).tolist())

# %% [markdown]
# By $n_t$, exactly. ("Divide by the sequence length S", as the README has it, is a division by the number of *visible* keys, $t$ in a row without padding. The paper's formula says $1/t$, and the code does that.)
#
# ### A running sum that does not run (here, read, run)
#
# `cumulative_gated_softmax` is meant to accumulate its gate over the tokens. The sum goes along an axis of size 1:

# %%
gate = torch.randn(1, 4, 12, 1, generator=generator)  # (B, H, T, 1)
print("changed by the sum along the last axis:", not torch.equal(gate.cumsum(-1), gate))
print("changed by the sum along the tokens:   ", not torch.equal(gate.cumsum(-2), gate))

# %% [markdown]
# So the variant is number 29 of the table, $e^{-g_t}$ of the present token alone. Number 28, `gated_softmax_cumgate`, does accumulate.
#
# ### A norm of 64 instead of 8, and names that say "no" (here, read, run)
#
# `customnorm` multiplies the L2 norm by $d$. What RMS norm has there is $\sqrt d$. And two names with `nodivS` divide by $n_t$ all the same, which (8.2) makes harmless.

# %%
for name in ("gated_softmax_no_gate_customnorm", "gated_softmax_no_gate_rmsnorm"):
    layer = SoftAttention(name, hidden_size=256, num_heads=4)  # d = 64
    layer.o_proj = torch.nn.Identity()
    with torch.no_grad():
        heads = layer(torch.randn(1, 3, 256, generator=generator))[0].unflatten(-1, (4, 64))
    print(f"{name}: length of a head's output {heads.norm(dim=-1).mean():.2f}")
divides = [entry.number for entry in paper if "nodivS" in entry.name and "n_t" in entry.formula]
print("nodivS, and yet divided:", divides)

# %% [markdown]
# ### A learning rate that hardly decays (here, read)
#
# The paper's list has 100,000 steps and a linear decay. The code lets the rate fall towards step 1,000,000 and stops at 100,000:

# %%
from softattn_lib.tasks.presets import PRESETS

paper_run = PRESETS["paper-300m"]
for goal in (paper_run.decay_steps, paper_run.steps):
    left = (goal - paper_run.steps) / (goal - paper_run.warmup_steps)
    print(f"falling towards step {goal:,}: {left:.3f} of the peak at step {paper_run.steps:,}")

# %% [markdown]
# It is the same for all curves; whether it suits all of them alike, we do not know. (The test loss is computed every 10,000 steps, and training breaks off before the last one, so the last point is at 90,000: read; the authors say so in a later paper.)
#
# ### A "dominant order" that is an overflow (here; its cause is our inference)
#
# A notebook of the authors' repository shows, for a model with a *linear* kernel, bars of the order with the largest Taylor term, 14 to 24. The terms are powers in float32, and what overflows is set to 0. Take one score of 60:

# %%
n = torch.arange(100)  # orders
for dtype in (torch.float32, torch.float64):
    power = torch.tensor(60.0, dtype=dtype) ** n
    terms = power.masked_fill(power.isinf(), 0) / torch.lgamma(n + 1.0).exp()
    print(f"{dtype}: largest term at order {terms.argmax().item()}, {power.isinf().sum()} overflow")

# %% [markdown]
# The peak of $s^n / n!$ is near $n = s$. Float32 ends before, and the last order that fits looks like the peak. In their picture the curves still rise where they stop. (Their analysis of a pretrained Llama, which is another one, ran in float64 and has no such problem.)
#
# ### No recurrent implementation (read; ours here)
#
# Every variant of the authors' code builds the matrix of all pairs. The paper's claim is about the formula, and nothing in it needs a recurrent program. Those that have a finite state do run as networks, though:

# %%
for number in (21, 35, 36, 37):
    layer = build(paper[number - 1].name)
    with torch.no_grad():
        pairs_at_once, steps = (layer(x, form=form)[0] for form in ("parallel", "recurrent"))
    print(f"number {number}: step by step the same:", torch.allclose(pairs_at_once, steps))

# %% [markdown]
# ### The rest, in a table
#
# | what | how we know |
# |---|---|
# | Figure 1 draws order 0 as the constant 1; by the equations it is $G_t \sum V_s$ | shown in [05](05_softmax_attention_is_a_sum_of_rnns.ipynb) |
# | Without padding, transformers hands the layer no mask. Of the 33 names that run, 4 cope, 23 raise an error, and 6 (numbers 10, 19, 20, 21, 25, 28) return zeros without a word. Training is not affected: the trainer makes sure there is a mask, by masking one position of a batch without padding | run, on a tiny model; we only report it |
# | The three extra tokens of `plusplus_extratoks` are masked out, so nothing can attend to them | read |
# | `mlp_type` is stored and not used, `checkpoint_path` ignored, `finetune()` missing | read |
# | Batch size is 36 in the paper and 35 in names of runs; the default of `train.py` is a third model size, which is not documented | read |
# | Blocks are replaced after transformers' initialization, so weights start from torch's default: a standard deviation of 0.018 at width 1024, 0.010 at 3072, and not 0.02 | read; the numbers follow from torch's rule |
# | `linear_mamba` and other mamba variants import a folder that was removed | read |
#
# The cell has the one row that is a sum: torch's default is uniform up to $1/\sqrt{\text{width}}$.

# %%
for width in (1024, 3072):
    print(f"width {width}: standard deviation {(3 * width) ** -0.5:.4f}")

# %% [markdown]
# ## What they mean
#
# **What they do not mean.** Nothing in notebook 05 depends on any of them: the derivation is mathematics, and it holds. The comparison of softmax, norm and gate does not pass through the Taylor or the cosine variant. The learning rate is the same for all curves, whether or not it suits them alike.
#
# **What they do mean** for reading the ablations, as we see it:
#
# - *The grid is coarser than its names.* 33 names are 24 functions, with an eps counted as 0. Two rows that are one function, gradient included, are no evidence for or against a part; what separates their curves is chance, rounding and an eps. Seen that way they are useful: they would measure the noise of a single run.
# - *"Cosine" is not a cosine*, so that curve says nothing about cosine attention. elu and relu are as named.
# - *The Taylor curves* may or may not have had a denominator. We do not know, and our own runs in [10](10_training_the_ablations.ipynb) divide.
# - *Clamped variants* follow the theory while scores stay below 5, and leave it where they do not. The curves "norm" and "gate" of the paper's large model are probably numbers 19 and 8, both clamped (inferred from the code, not stated).
# - *A gate before an L2 norm* has no effect to measure; before an RMS or layer norm only the one through the eps.

# %% [markdown]
# ## Try it
#
# 1. Without running anything: which names are the same function as "RMS of the clamped sum, with an output gate before the norm"? Then choose it in the widget. (5 minutes, easy)
# 2. Make an `AttentionVariant` of your own that is none of the 33, for instance with an input gate under L2, and let `essence` confirm it. (10 minutes, medium)
# 3. Give `build` another seed rule and repeat the count of functions. Which of the numbers change, 27 or 24? (5 minutes, easy)
#
# <details><summary>What to expect</summary>
#
# 1. Numbers 9, 24 and 25: gate and $1/n_t$ both cancel.
# 2. See the cell.
# 3. Neither, as long as some scores exceed 5 (else 19 agrees with 20 and 22 to the last bit, see above) and the gates are not tiny. 24 comes from the formulas alone. The *distances* of the pairs in between do.
#
# </details>

# %%
from softattn_lib import AttentionVariant, ExpKernel

widget.kernel.value, widget.normalizer.value = "exp_clamp5", "rms"
widget.gates.value = "output_before"
shown = widget.read_out.value
print("1:", [entry.number for entry in paper if f"<code>{entry.name}</code>" in shown])
mine = AttentionVariant("mine", "", ExpKernel(), VARIANTS["l2"].normalizer, input_gate="sigmoid")
print("2: new:", ablation_explorer.essence(mine) not in by_rule)

# %% [markdown]
# ## What you saw
#
# - Every variant that can be built is one formula with three parts, a few with a small extension: 38 names, 33 that can be built, 24 functions if an eps counts as 0.
# - A positive factor of a query cancels inside a norm, up to the norm's eps (8.2). A gate there has no gradient.
# - Equal numbers do not prove equal functions, and equal functions may differ by an eps. The formula decides.
# - Most slips of the code are harmless. A few change what a curve can say, none touches the derivation.

# %% [markdown]
# **Exercises** to this notebook: [08](exercises/08_what_the_names_hide.ipynb)
#
# Back to [07 Denominator, gate, norm](07_denominator_gate_norm.ipynb) · On to [09 Expressiveness](09_expressiveness.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
