# %% [markdown]
# # What it costs
#
# **Minutes:** 25
#
# **Goals:** after this notebook you can
#
# - count what a token costs, by all pairs and by a state, and say where the two meet
# - measure both on your machine, and compare with a prediction
# - say what has to be kept for the next token: a state, or keys and values
# - decode with a state at a cost that does not grow
# - tell when softmax attention is the better choice
#
# **Before:** [03](03_powers_of_an_inner_product.ipynb) (how many features an order has) and [04](04_linear_attention_is_an_rnn.ipynb) (the parallel, the recurrent and the chunked form). The small model is not needed.
#
# **You know most of this?** Read [Where the lines cross](#Where-the-lines-cross), [When to use which](#When-to-use-which), then [What you saw](#What-you-saw).
#
# **Notation:** $T$ number of tokens; $t$ step of the query; $d$ width of a query or key; $e$ width of a value, or the base of exp; $D$ features of a key; $N$ the highest order kept ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import time
from functools import partial
from math import comb
from statistics import median

import torch
from torch.nn.functional import scaled_dot_product_attention

from softattn_lib import attention, crossover, doctor, explain, figures, taylor
from softattn_lib.predictions import predict, reveal

doctor.check()


# %% [markdown]
# ## Counting
#
# What does one token cost, in one head? Count multiplications and additions, and leave small change aside.
#
# - **By all pairs** the token looks at every token so far, $T/2$ of them on average over a text of $T$. Each takes a score, $2d$ operations, and adds its weighted value, $2e$.
# - **By a state** of $D$ rows and $e + 1$ columns, the token writes once and reads once. Either goes through the whole state, $2D(e + 1)$ operations.
#
# $$ \underbrace{T\,(d + e)}_{\text{all pairs}} \quad \text{against} \quad \underbrace{4\,D\,(e + 1)}_{\text{a state}}, \qquad D = \binom{d + N}{N} $$
#
# One side grows with $T$, the other does not. So there always is a length from which on the state needs fewer operations.

# %%
def state_operations(d, order):
    """Of one token in one head, with e = d."""
    return 4 * comb(d + order, order) * (d + 1)


# %% [markdown]
# Which length is it for $d = e = 16$ and order $N = 2$? (And for $d = 64$, order 4?)

# %% tags=["nbval-ignore-output"]
predict(
    "11-equal-operations",
    "d = e = 16, order 2: from how many tokens on does the state need fewer operations?",
    low=10, high=100_000, step=2, log=True, unit="tokens",
)

# %%
for d in (16, 64):
    for order in (1, 2, 3, 4):
        D, equal = comb(d + order, order), state_operations(d, order) / (2 * d)
        print(f"d = {d}, order {order}: {D:7,} features, equal at T = {equal:9,.0f}")
reveal("11-equal-operations", state_operations(16, 2) / (2 * 16), "the sides meet at a little more "
       f"than T = 2 D, and D, the number of products of up to two of 16 entries, is {comb(18, 2)}.")


# %% [markdown]
# With $e = d$ they meet at a little more than $T = 2D$: a few hundred tokens at $d = 16$ and order 2, and more than a million at $d = 64$ and order 4.
#
# The library counts more carefully, and `explain` tells what a call would cost without running it. It looks at sizes only, so we hand it tensors of the device "meta", which have a shape and no numbers.

# %%
def plan_for(T, order=2, d=16, heads=1, **options):
    """What the library expects of a causal call on T tokens."""
    q, k, v = torch.empty(3, 1, heads, T, d, device="meta")
    return explain(q, k, v, kernel=taylor(order), return_state=False, **options)


# %%
plan, D = plan_for(4096), comb(16 + 2, 2)
a_token = plan.costs["recurrent"].flops / 4096
print(f"recurrent: {a_token:,.0f} operations a token")
print("  4 D (e + 1), and 2 D for the features:", a_token == state_operations(16, 2) + 2 * D)
print("softmax: T (d + e), up to a fifth more:", 1 <= plan.softmax.flops / 4096**2 / 32 < 1.2)

# %% [markdown]
# (A fast softmax kernel skips the future by whole blocks of keys, and computes a few pairs that it then masks: that is the fifth. In a short text they weigh more.)
#
# The chunked form does a little of both: all pairs *inside* a chunk, a state *between* chunks. Which of the four columns below grow with $T$?

# %% tags=["nbval-ignore-output"]
predict(
    "11-growing",
    "For which forms does one token need more operations when the text is longer?",
    ["softmax", "softmax, parallel", "softmax, parallel, chunked",
     "softmax, parallel, recurrent, chunked"],
)

# %%
forms, a_token = ("parallel", "recurrent", "chunked"), []
print("operations a token   softmax   parallel  recurrent    chunked")
for T in (256, 1024, 4096, 16384):
    plan = plan_for(T, chunk_size=64)
    counts = [plan.softmax, *(plan.costs[form] for form in forms)]
    a_token.append([cost.flops / T for cost in counts])
    print(f"T = {T:6,}        ", *(f"{count:10,.0f}" for count in a_token[-1]))
columns = zip(("softmax", *forms), a_token[0], a_token[-1], strict=True)
growing = [name for name, short, long in columns if long > 1.01 * short]
reveal("11-growing", ", ".join(growing), "they look at all pairs, and a later token has more of "
       "them. A state, and a chunk, are as large as they were.")


# %% [markdown]
# The parallel form computes all pairs, also those of the future, which it masks afterwards: about twice as many as softmax, which skips the future by blocks. It is for understanding and for short texts. Of the other two the chunked form needs *more* operations than the recurrent one. Still it is the fast one, as you will see now.
#
# ## Time against length
#
# Operations are not seconds. A processor runs large matrix products close to its peak, and goes far below it where it makes features, or calls many small functions. So we measure: order 2, $d = 16$, four heads, one thread, and softmax from torch's own fast kernel.

# %%
def medians(*functions, rounds=15):
    """Median seconds of each function, called in turn: what else the machine does hits all."""
    times = [[] for _ in functions]
    for _ in range(rounds + 1):
        for function, mine in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            mine.append(time.perf_counter() - start)
    return [median(mine[1:]) for mine in times]  # the first round warms up


# %%
threads = torch.get_num_threads()
torch.set_num_threads(1)
lengths, measured = [256, 512, 1024, 2048, 4096], []
for T in lengths:
    q, k, v = torch.randn(3, 1, 4, T, 16)
    by_pairs = partial(scaled_dot_product_attention, q, k, v, is_causal=True)
    by_chunks = partial(attention, q, k, v, kernel=taylor(2), form="chunked", return_state=False)
    measured.append(medians(by_pairs, by_chunks))
softmax, chunked = torch.tensor(measured).T  # (5,) each
torch.set_num_threads(threads)

# %% [markdown]
# **Predict** two slopes before you look: $T$ doubles. What happens to either time?

# %% tags=["nbval-ignore-output"]
lead = softmax / chunked
figures.lines_figure(
    lengths, {"softmax": 1000 * softmax, "chunked, order 2": 1000 * chunked},
    log_x=True, log_y=True,
    title="Time of a call, measured here", x_title="T (tokens)", y_title="milliseconds",
    caption=f"Softmax takes {lead[0]:.1f} times as long as the chunked form at T = 256, and "
    f"{lead[-1]:.1f} times at T = 4,096.",
).update_xaxes(tickvals=lengths)

# %% [markdown]
# For softmax the time goes up about fourfold with each doubling, for the chunked form about twofold, once $T$ is large enough to drown the fixed cost of a call. That fixed cost is why short texts are softmax's.
#
# The library has a model of this: the operations above, divided by a few rates that were measured once, on the one machine that `softattn_lib/cost.py` names. Your machine has other seconds. The *ratio* of the two forms should carry over better:

# %% tags=["nbval-ignore-output"]
plans = [plan_for(T, heads=4) for T in lengths]
model = torch.tensor([plan.softmax.seconds / plan.costs["chunked"].seconds for plan in plans])
figures.lines_figure(
    lengths, {"measured here": lead, "model": model, "equal": torch.ones(5)},
    log_x=True, log_y=True,
    title="Time of softmax over time of chunked", x_title="T (tokens)", y_title="ratio",
    caption="Above 1 the state wins. A model of a few rates gives the slope, and no more than a "
    "rough idea of the height.",
).update_xaxes(tickvals=lengths).update_yaxes(dtick="D2")

# %% [markdown]
# (Has the measured curve a kink? Ours has, where a call begins to ask the system for fresh memory thousands of times; that is probably the reason. The model knows nothing of it.) What the model says of longer texts, and what `attention` makes of it:

# %%
long = [plan_for(T, heads=4) for T in (2**18, 2**19)]
softmax_growth = long[1].softmax.seconds / long[0].softmax.seconds
chunked_growth = long[1].costs["chunked"].seconds / long[0].costs["chunked"].seconds
growth = f"softmax {softmax_growth:.1f} times, chunked {chunked_growth:.1f} times as long"
print(f"model, T doubled: {growth}")
print("softmax faster at T = 256: ", model[0].item() < 1)
print("chunked faster at T = 4096:", model[-1].item() > 1)
print("form that attention() takes at T = 4096:", plans[-1].form)

# %% [markdown]
# What of the recurrent form, which has the fewest operations? It goes through the state token by token, in steps too small for a processor to get going. For a whole text the model puts it far behind:

# %%
plan = plan_for(65536, heads=4)
recurrent, chunked_cost = plan.costs["recurrent"], plan.costs["chunked"]
print("fewer operations than chunked:", recurrent.flops < chunked_cost.flops)
print("more than 5 times as slow:    ", recurrent.seconds > 5 * chunked_cost.seconds)

# %% [markdown]
# ## Memory against length
#
# What has to be kept when the text goes on? Softmax needs every key and value so far, $d + e$ numbers a token: the KV cache. The state has $D(e + 1)$ numbers, at any length. **Predict:** $d = e = 16$, order 2, eight heads, float32: at which length are the two equal?

# %%
print("state of D (e + 1) numbers:", comb(18, 2) * 17, "in a head")
for T in (64, 128, 1024, 65536):
    plan = plan_for(T, heads=8)
    state, cache = plan.costs["chunked"].state_bytes, plan.softmax.state_bytes
    print(f"T = {T:6,}: state {state / 1e3:6.1f} kB, KV cache {cache / 1e3:9.1f} kB")
print(f"equal at T = {comb(18, 2) * 17 / 32:.1f}")

# %% [markdown]
# Equal at $T = D(e + 1)/(d + e)$, about $D/2$: in memory a state pays four times earlier than in operations.
#
# A call also needs room to work in, beyond its inputs and results. The parallel form as we wrote it lays out a $T \times T$ matrix, the chunked form never does:

# %%
lengths_of_memory = [2**n for n in range(6, 17)]
plans = [plan_for(T, heads=8) for T in lengths_of_memory]
work = {form: [p.costs[form].bytes for p in plans] for form in ("parallel", "chunked")}
for form, num_bytes in work.items():
    print(f"{form:8}: T doubled at the end: {num_bytes[-1] / num_bytes[-2]:.0f} times the room")

# %% tags=["nbval-ignore-output"]
kept = {"KV cache": [p.softmax.state_bytes for p in plans]}
kept["state, order 2"] = [p.costs["chunked"].state_bytes for p in plans]
room = {f"to work in, {form}": num_bytes for form, num_bytes in work.items()}
figures.lines_figure(
    lengths_of_memory, {**kept, **room}, log_x=True, log_y=True,
    title="Memory, 8 heads of d = 16", x_title="T (tokens)", y_title="bytes",
    caption="Only the state is constant. All pairs laid out in memory grow like the square.",
)

# %% [markdown]
# (Softmax's own kernel is not in this figure: it works on blocks too and needs next to no room. Its price is the cache.)
#
# ## Where the lines cross
#
# Now all of it for other widths, orders and lengths: predicted times for eight heads on the left, and on the right the length from which the chunked form leads. The crosses were measured on one machine (`benchmarks/crossovers.csv`, up to 65,536 tokens). **Predict:** at $d = 64$, the width of many models, does order 2 lead at 4,096 tokens?

# %% tags=["nbval-ignore-output"]
from softattn_lib.tasks.records import read_rows
from softattn_lib.widgets import crossover as crossover_widget

table = read_rows("../benchmarks/crossovers.csv")
widget = crossover_widget.mount(table)
widget

# %% [markdown]
# The same without the mouse. Trace 5 is the predicted crossover of the chosen order, trace 7 holds the measured ones of all orders.

# %%
limits = {16: (2000, 2000, 2000, 2000), 64: (2000, 4096, 65536, 10**6)}
for widget.d.value, at_width in limits.items():
    for widget.order.value, limit in zip((1, 2, 3, 4), at_width, strict=True):
        which = f"d = {widget.d.value}, order {widget.order.value}"
        print(f"{which}: crossover beyond {limit:9,} tokens:", widget.figure.data[5].x[0] > limit)
print("measured at d = 64:", sum(at is not None for at in widget.figure.data[7].y), "of 4 orders")

# %% [markdown]
# It does not lead there. And how far may one trust the prediction, where there is a measurement?

# %%
off = []
for row in table:
    if row["tokens"]:
        predicted = crossover(int(row["d"]), int(row["order"]), heads=int(row["heads"]))
        off.append(max(predicted / int(row["tokens"]), int(row["tokens"]) / predicted))
without = len(table) - len(off)
print(len(table), "combinations of width and order, all but", without, "with a crossover")
print("prediction within a factor of 2 of every one:", max(off) < 2)

# %% [markdown]
# A factor of 2, on the machine whose rates went into it. For a decision that is enough, because the crossovers themselves lie between less than 2,000 tokens and more than a million.
#
# ## One token at a time
#
# Text is written token by token, and here the recurrent form comes into its own. With a KV cache of $t$ tokens a new token costs $2t(d + e)$ operations, more with every token. `Decoder` keeps one state, updates it in place and pays $4D(e + 1)$ each time. First: are these the numbers of the other forms?

# %%
from softattn_lib import Decoder

q, k, v = torch.randn(3, 8, 600, 16, generator=torch.Generator().manual_seed(0))
decoder = Decoder(taylor(2), d=16, e=16, batch_shape=(8,))
outs = torch.stack([decoder.step(q[:, t], k[:, t], v[:, t]) for t in range(600)], dim=1)
whole, _ = attention(q, k, v, kernel=taylor(2))  # (heads, T, e)
print("600 steps give the output of one call:", torch.allclose(outs, whole, atol=1e-4))
print("numbers in the state:", f"{decoder.state.sums.numel():,}")

# %% [markdown]
# **Predict:** by operations, at how many cached tokens does a step of the decoder cost as much as softmax? And by numbers read?

# %%
print(f"operations equal at t = {4 * D * 17 / (2 * 32):.1f}, numbers read at t = {D * 17 / 32:.1f}")
for t in (100, 1000, 10000, 100000):
    print(f"t = {t:7,}: cache {64 * t:9,} operations, state {state_operations(16, 2):,}")

# %% [markdown]
# And in seconds? A step of either kind is so small that much of it is the calling of functions, and the decoder calls more of them. So the cache should win for longer than the count says.

# %%
cached_tokens, times = [64, 256, 1024, 4096, 16384, 65536], []
step = partial(decoder.step, q[:, 0], k[:, 0], v[:, 0])  # (heads, d) each
torch.set_num_threads(1)
for t in cached_tokens:
    keys, values = torch.randn(2, 1, 8, t, 16)
    read_cache = partial(scaled_dot_product_attention, q[None, :, :1], keys, values)
    times.append([*medians(read_cache, rounds=50), *medians(step, rounds=50)])
by_cache, by_state = 1e6 * torch.tensor(times).T  # (6,) each
torch.set_num_threads(threads)

# %% tags=["nbval-ignore-output"]
figures.lines_figure(
    cached_tokens, {"KV cache": by_cache, "Decoder, order 2": by_state}, log_x=True, log_y=True,
    title="One more token, measured here", x_title="tokens so far", y_title="microseconds",
    caption=f"At 64 tokens the cache takes {by_cache[0] / by_state[0]:.1f} times as long as the "
    f"decoder, at 65,536 tokens {by_cache[-1] / by_state[-1]:.0f} times.",
)

# %% [markdown]
# ## When to use which
#
# **Below the crossover softmax attention is faster, and there it is also exact.** That is no small region. Here is $d = 64$, with eight heads in float32:

# %%
for order in (1, 2, 3, 4):
    plan = plan_for(4096, order, d=64, heads=8)
    chunked_cost, cache = plan.costs["chunked"], plan.softmax
    print(f"order {order}: state {chunked_cost.state_bytes / 1e6:8.2f} MB,", end=" ")
    print(f"cache of 4,096 tokens {cache.state_bytes / 1e6:.2f} MB;", end=" ")
    print("faster there:", chunked_cost.seconds < cache.seconds)

# %% [markdown]
# - **Order 1** is cheap. [04](04_linear_attention_is_an_rnn.ipynb) and [10](10_training_the_ablations.ipynb) show what it cannot do.
# - **Order 2** leads before 2,000 tokens at $d = 16$ with eight heads (with the four of above, near them), and not yet at 4,096 at $d = 64$.
# - **Order 4**, where our trained models come close to softmax, is for narrow heads. At $d = 64$ its crossover lies beyond a million tokens, and one layer of eight heads keeps 1.7 GB: beyond any practical length.
# - **Above the crossover** the lead grows without bound, like $T$, and the state stays as it is. Long streams and narrow heads are where the view of the paper is more than a view.
#
# So the sum of recurrent networks is first of all a way to *understand* softmax attention. It becomes a way to *compute* it where $d$ is small or $T$ is large.
#
# **And on a GPU?** This notebook does not measure one. What to expect: operations in large products become much cheaper there, moving numbers and starting small functions do not. Softmax kernels on a GPU keep the pairs on the chip, so the crossover of the chunked form probably moves to longer texts. Decoding is bound by the numbers read, so state against cache is the better guess for it. `python -m benchmarks.gpu` checks and times every form on a GPU at hand.
#
# ## Try it
#
# 1. By operations, which is the largest order at $d = 8$ that pays before 10,000 tokens? What does `crossover(8, order)` say of it? (5 minutes, easy)
# 2. What does `chunk_size=1024` do to the operations of a token, and to the room that the chunked form needs? Use `plan_for`. (5 minutes, easy)
# 3. Measure `attention(q, k, v, kernel=taylor(3))` against softmax at $d = 16$. Between which of our lengths do they cross on your machine? (10 minutes, medium)
#
# <details><summary>What to expect</summary>
#
# 1. Order 6: 3,003 features. The prediction in seconds is later than the count of operations.
# 2. More pairs inside a chunk, several times the operations; and more room.
# 3. The prediction, for eight heads, lies between 2,048 and 4,096.
#
# </details>

# %%
pays = [order for order in range(1, 10) if state_operations(8, order) / 16 < 10_000]
print(f"1: order {pays[-1]}, {comb(8 + pays[-1], pays[-1]):,} features, later in seconds:", end=" ")
print(crossover(8, pays[-1]) > state_operations(8, pays[-1]) / 16)
costs = [plan_for(16384, chunk_size=size).costs["chunked"] for size in (64, 1024)]
print("2:", *(f"{cost.flops / 16384:,.0f} operations a token," for cost in costs), end=" ")
print("more room:", costs[1].bytes > costs[0].bytes)
print("3: predicted between 2,048 and 4,096:", 2048 < crossover(16, 3) < 4096)

# %% [markdown]
# ## What you saw
#
# - A token costs $T(d + e)$ operations by all pairs and $4D(e + 1)$ by a state. They meet near $T = 2D$; in memory state and cache meet near $D/2$.
# - Measured, softmax grows like $T^2$ and the chunked form like $T$. Fixed costs and rates shift the crossover, and a small model predicts it within a factor of 2 on its machine.
# - For a whole text the chunked form is the fast one, with more operations than the recurrent form; for one token at a time the recurrent form has a constant cost.
# - The number of features decides: order 2 pays at moderate lengths, order 4 for narrow heads only. Below the crossover softmax attention wins.

# %% [markdown]
# Back to [10 Training the ablations](10_training_the_ablations.ipynb) · On to [12 Beyond Taylor](12_beyond_taylor.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
