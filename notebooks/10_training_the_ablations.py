# %% [markdown]
# # Training the ablations
#
# **Minutes:** 35
#
# **Goals:** after this notebook you can
#
# - train a language model with any of the variants by one command, and watch it learn
# - read a table of ablations with its spread, and say which of its differences are ties
# - tell cutting the series after training from training with the cut
# - say which orders a trained model has large, and which it misses most
# - name what of the paper's gate and norm shows at this scale, and what does not
#
# **Before:** [05](05_softmax_attention_is_a_sum_of_rnns.ipynb) and [06](06_a_real_model.ipynb) (dominant order, misplaced weight), [07](07_denominator_gate_norm.ipynb) for gate and norm. One run of training takes seconds, the others are stored as tables. The small model is not needed.
#
# **You know most of this?** Read [The table](#The-table), [What this does not show](#What-this-does-not-show), then [What you saw](#What-you-saw).
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $n$ an order ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %%
import numpy as np
import torch

from softattn_lib import doctor, figures
from softattn_lib.predictions import predict, reveal
from softattn_lib.tasks.records import read_rows, summarize

doctor.check()

# %% [markdown]
# ## What is trained
#
# A Llama, built from transformers' configuration, in which nothing but the attention differs from variant to variant. It reads the King James Bible letter by letter and predicts the next letter.

# %%
from softattn_lib.tasks.presets import PRESETS
from softattn_lib.tasks.training import build_model, corpus_for

small = PRESETS["small"]
corpus = corpus_for(small)
model = build_model("softmax", small, corpus.tokenizer.size)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {corpus.tokenizer.size} tokens")
names = "layers heads hidden_size length batch_size steps learning_rate clip"
for name in names.split():
    print(f"{name:14}{getattr(small, name)}")

# %% [markdown]
# The paper's models have 275 million and 2 billion parameters, 32,000 tokens, sequences of 1024 and up to 100,000 steps. Ours is thousands of times smaller. So this is an experiment about the *formulas*, under conditions that we state:
#
# - **The same for all:** learning rate, schedule, steps, and clipping (the paper clips gated models only). Nothing is tuned for a variant.
# - **Seeds 0, 1, 2** for each variant (the paper shows one run a curve). Variants with the same seed see the same batches.
# - float32 on a CPU (the paper: bf16 on GPUs).
#
# One run is one command, for any name of [08](08_what_the_names_hide.ipynb), `taylor_N` or `power_N`:
#
#     softattn train --variant taylor_4 --preset small

# %% [markdown]
# ## Watch one learn
#
# Before the first step, some numbers to hold the loss against. Who knows nothing pays $\ln 63 = 4.14$ nats a letter. Who knows how frequent each letter is pays 3.03. Who also sees the letter before pays 2.27, and that is the best that *any* model can do which looks at one letter only.
#
# **Predict:** without attention our model would see one letter only. Attention with the series cut after order 2 is a recurrent network whose state has 153 features × 17 sums a head, whatever came before. Is it below 2.27 after 150 steps?

# %% tags=["nbval-ignore-output"]
from softattn_lib.widgets import live_training

live = live_training.mount("softmax", "mini", steps=150, evaluate_every=150)
live

# %%
live.variant.value = "taylor_2"
result = live.train()  # the curve above grows while this runs
print("steps:", result.history.step, "points drawn:", len(live.figure.data[3].x))  # its line
print("loss fell by more than 1.5 nats:", result.history.losses[0] - result.train_loss > 1.5)
print(f"training loss about {result.train_loss:.1f}")
print("below who sees one letter:", result.train_loss < live.levels["one token seen"])
print("on text held out too:", result.held_out_loss < live.levels["one token seen"])

# %% [markdown]
# (On a page without a kernel the figure stands as it was before the training.) The loss is below the line of one letter: attention has begun to carry something from further back.
#
# **Your turn:** choose another variant above and press *Train*; its curve joins the figure. Try `taylor_1`. The whole of `mini`, 400 steps in half a minute, is `live_training.mount("softmax", "mini")`, or on the command line `softattn train --variant softmax --preset mini`.
#
# ## The table
#
# The rest was run beforehand, by `softattn sweep experiments/small.yaml`. **Predict** before you read it: rank `softmax`, `l2`, `gate`, `linear_elu`, `taylor_1` and `taylor_4`. And one guess for the section on orders:

# %% tags=["nbval-ignore-output"]
predict(
    "10-order-3",
    "Where will the training loss of order 3 lie?",
    ["below orders 2 and 4", "between order 2 and order 4", "above orders 2 and 4"],
)

# %%
rows = read_rows("../experiments/small.csv")
losses = summarize(rows, "held_out_loss")
ranked = sorted(losses, key=lambda name: losses[name].mean)
print(f"{len(rows)} runs, {len(losses)} variants. Mean held-out loss (lowest to highest)")
for name, loss in ((name, losses[name]) for name in ranked):
    print(f"{name:29}{loss.mean:.3f} ({loss.lowest:.3f} to {loss.highest:.3f})")

# %% [markdown]
# The paper's figures show the natural logarithm of the loss. The buttons under the figure switch to that axis and back. **Predict:** does it make differences look larger or smaller?

# %% tags=["nbval-ignore-output"]
figures.points_figure(
    {name: losses[name].values for name in ranked},
    title="Held-out loss by variant",
    caption="One point a seed, bars are means, the dotted line is softmax's mean.",
    x_title="held-out loss (nats)",
    reference="softmax",
    other_axis=("ln of the held-out loss, the paper's axis", np.log),
)

# %%
gap = losses["gate"].mean - losses["softmax"].mean
log_gap = np.log(losses["gate"].mean) - np.log(losses["softmax"].mean)
print(f"gate minus softmax: {gap:.3f} nats, {log_gap:.3f} on the logarithm")
for model, gate, softmax in ("300M", 0.962, 0.945), ("2B", 0.987, 0.960):
    print(f"paper, {model}: {np.exp(gate) - np.exp(softmax):.2f} nats, {gate - softmax:.3f}")

# %% [markdown]
# Near a loss $L$ the logarithm divides a difference by $L$; the order stays. (The paper's numbers, here and below, are read off its figures by eye, to half a hundredth on the logarithm, so that a gap is known to about 0.03 nats: 0.945 for softmax and 0.962 for the gate, The Pile after 90,000 steps; 0.960 and 0.987, FineWeb after 60,000.)
#
# ## What is a tie?
#
# Three seeds of one variant differ, mostly by a few hundredths. A difference smaller than that is none that the ranges can show. We call two variants **tied** where their ranges share a number. (Seed by seed, in the next section, smaller ones show.)

# %%
softmax = losses["softmax"]
spreads = [x.highest - x.lowest for x in losses.values()]
print(f"spread over the seeds: median {np.median(spreads):.3f}, largest {max(spreads):.3f}")
print("tied with softmax:", *[n for n in ranked if losses[n].overlaps(softmax) and n != "softmax"])
print("below it:", *[n for n in ranked if losses[n].highest < softmax.lowest])
print("above it:", sum(losses[n].lowest > softmax.highest for n in ranked), "variants")


# %% [markdown]
# The first row, `power_2_decay`, is not a slip. It is order 2 alone with a learned decay, which is close to what the paper's authors propose in a later one (with a convolution, which we leave out). A decay says how old a key is, and nearby letters matter most here: that is our guess, not a result.
#
# A tie is not equality: more seeds may well split it. And no tie is no proof: if three and three runs came from one variant, their ranges would lie apart in one case of ten. (There are 20 ways to choose three of six, and in two of them the chosen are the lowest or the highest.) What is many spreads wide can be believed, *for this model, this text and this learning rate*.
#
# **Misconception:** "0.01 lower is better, the table says so." It says that only with its spread beside it.
#
# ## Softmax, norm, gate
#
# **Paper** (test loss, the logarithm undone): softmax 2.57, L2 norm 2.58, gate 2.62 at 300M; 2.61, 2.62, 2.68 at 2B. The norm is as good as softmax, the gate is worse. Ours:

# %%
def against(name, other, table=losses):  # by seed: the same seed means the same batches
    gaps = np.subtract(table[name].values, table[other].values)
    return f"{name} - {other}: {gaps.mean():+.3f}, below in {(gaps < 0).sum()} of {len(gaps)} seeds"

compared = [(name, "softmax") for name in ("l2", "rms", "layer", "gate", "gate_clamp5")]
for name, other in [*compared, ("gate", "l2"), ("gate", "1_over_t")]:
    print(against(name, other))
print("three of three by chance:", 2 * 0.5**3)

# %% [markdown]
# (The paper's gate curve was probably made with $1/t$ and the clamp at 5: `gate_clamp5`.)
#
# As in the paper, the gate ends above softmax and above the norm, here by more. Two things are not as we had expected. The L2 norm ends *below* softmax, on every seed. And the learned gate is no better than its $1/t$ alone: the two are tied. RMS shows what a tie is worth: by its range it is tied with softmax, and yet it is above it on each seed. (Three of three happen by chance in one case of four.)
#
# ## Orders
#
# The paper's figure has the training loss, so we take ours too.

# %%
logs = {name: np.log(x.mean) for name, x in summarize(rows, "train_loss").items()}
paper = {2: 0.14, 4: 0.04, 6: 0.02, 8: 0.005, 10: 0.0}  # read off by eye, within 0.02
for n in (1, 2, 3, 4, 6, 8, 10):
    gap = logs[f"taylor_{n}"] - logs["softmax"]
    print(f"order {n:2}: ln loss minus softmax's {gap:+.3f}, paper {paper.get(n, 'none')}")
lower, upper = sorted(logs[f"taylor_{n}"] for n in (2, 4))
side = "below" if logs["taylor_3"] < lower else "above"
within = lower <= logs["taylor_3"] <= upper
result = "between order 2 and order 4" if within else f"{side} orders 2 and 4"
reveal("10-order-3", result, "odd orders make weights of both signs, and where these nearly "
       "cancel in the denominator an output can have any size.")

# %% [markdown]
# Among even orders both agree: 4 is better than 2 by the largest step, and 6 is no worse; what lies beyond is too close to read off the figure. Ours fall up to order 10. (Paper: small model, after 30,000 steps. Whether its "order 10" counts order 0 we do not know.)
#
# The odd ones are not in between: $1 + s$ and $1 + s + s^2/2 + s^3/6$ are negative for large negative scores. **Misconception:** "more terms, better attention". Order 3 has one term more than order 2:

# %%
one_letter = live.levels["one token seen"]
print(f"who sees one letter only: {one_letter:.2f}")
for name in ("taylor_1", "taylor_2", "taylor_3", "linear_relu", "linear_elu", "cosine"):
    values = losses[name].values
    below = sum(loss < one_letter for loss in values)
    print(f"{name:12}", *(f"{loss:.2f}" for loss in values), f"({below} of 3 below that)")

# %% [markdown]
# In 500 steps order 1 learns on one seed of three to use what it looks back at, and order 3 on none. Linear attention of practice is of order 1 as well, and is reliable: with relu and elu + 1 no weight is negative, so that nothing cancels in the denominator. (Cosine has negative weights, but no sum of them to divide by.)
#
# ## The curves
#
# The table holds the last loss; the curves tell how it came about. **Before you touch it:** on the axis "minus softmax's", where will the norms, the gates and the even orders lie at the end? Then look, and from step 300 on.

# %% tags=["nbval-ignore-output"]
from softattn_lib.widgets import loss_curves

curves = read_rows("../experiments/curves.csv")
widget = loss_curves.mount(curves)
widget

# %%
widget.show.value, widget.from_step.value = "difference", 300
for group in [*list(loss_curves.GROUPS)[:2], "even orders of the series"]:
    widget.group.value = group
    lines = [line for line in widget.figure.data[1::2] if line.name != "softmax" and line.name]
    print(f"{group}, at step {lines[0].x[-1]}:")
    print("   ", ", ".join(f"{line.name} {line.y[-1]:+.3f}" for line in lines))

# %% [markdown]
# **Finish the sentence:** "Below softmax ends ...; the gate ends ..., and the orders come closer to 0 the ..."
#
# <details><summary>One way to finish it</summary>
#
# "... `l2`; near $1/t$ alone, its learned part taken away; the higher they are." (These are training losses, the table has those on text held out.)
#
# </details>
#
# ## Cut after training, or train with the cut
#
# [06](06_a_real_model.ipynb) cut the series of a model that had been trained with softmax. The paper trains with the cut. Here are both: eight variants, each model tested with the attention of all eight (`softattn evaluate`).
#
# **Predict:** which row holds the worst losses?

# %%
cuts = [f"taylor_{n}" for n in (1, 2, 3, 4, 6, 8, 10)] + ["softmax"]
pairs = read_rows("../experiments/truncation.csv")
for row in pairs:
    row["pair"] = (row["trained"], row["tested"])
cut = {pair: x.mean for pair, x in summarize(pairs, "held_out_loss", by="pair").items()}
print("tested with  ", *(name.removeprefix("taylor_").rjust(5)[:5] for name in [*cuts[:-1], "exp"]))
for trained in cuts:
    print(f"{trained:13}", *(f"{cut[trained, tested]:5.2f}" for tested in cuts))

# %% tags=["nbval-ignore-output"]
figures.heatmap_figure(
    [[cut[trained, tested] for tested in cuts] for trained in cuts],
    title="Held-out loss (nats), mean of the seeds",
    caption="The diagonal is what was trained; the last row was trained with exp and then cut.",
    rows=cuts,
    columns=cuts,
    x_title="tested with",
    y_title="trained with",
    limits=(1.6, 3.3),
)

# %% [markdown]
# Compare the two ways to have order 2, 4 or 10:

# %%
for tested in ("taylor_2", "taylor_4", "taylor_10"):
    after, within = cut["softmax", tested], cut[tested, tested]
    print(f"{tested:9}: cut after training {after:.2f}, trained with the cut {within:.2f}")
is_worse = cut["softmax", "taylor_10"] > one_letter
print("a softmax model, cut, is worse than who sees one letter:", is_worse)

# %% [markdown]
# The last row and the diagonal tell the lesson. A model trained with softmax does not survive the cut at any order up to 10, and ten orders are no better for it than two: it was never asked to. Trained with the cut, the same formula works, at order 10 as well as softmax. Both are true at once, and only the second is the paper's experiment.
#
# (The rows of the odd orders are means over very different seeds, as we saw.)
#
# ## Which orders does a trained model use?
#
# How does the network adapt to the cut? The obvious guess is that it keeps its scores small, where few orders are enough. 06 left that open. Now we can look: three of the trained models are in `experiments/trained` (one seed each), and we take 16 sequences of held-out text.
#
# Order 4 is within 1 % of exp up to $|s| = 0.89$.

# %% tags=["nbval-ignore-output"]
predict(
    "10-trained-scores",
    "How large, in size, are the largest scores of the model that was trained with order 4?",
    low=0.5, high=64, step=2, log=True,
)

# %%
from softattn_lib import Polynomial, taylor
from softattn_lib.scores import batch_scores
from softattn_lib.tasks.training import load_trained

ids = torch.stack([corpus.held_out[n] for n in range(16)])  # (16, T + 1)
models, scores = {}, {}
for name in ("softmax", "taylor_10", "taylor_4"):
    models[name], _ = load_trained(f"../experiments/trained/{name}")
    scores[name] = batch_scores(models[name], ids[:, :-1])  # (layers, heads, 16, T, T)
    s = scores[name][scores[name].isfinite()]
    shares = f"{(s < -5).double().mean():.1%} below -5, {(s > 5).double().mean():.1%} above 5"
    print(f"{name:9} scores {s.min():.0f} to {s.max():.0f}, {shares}")
at = torch.tensor(-0.89, dtype=torch.float64)  # where a series is worst: on the negative side
print(f"order 4 at s = -0.89 is off by {abs(taylor(4)(at) / at.exp() - 1):.1%}")
reveal("10-trained-scores", round(s.abs().max().item()), "training with the cut does not make "
       "scores small. What becomes rare are large negative ones.")

# %% [markdown]
# **Misconception:** "low orders suffice because the scores stay small." The highest are far beyond any range in which order 4 follows exp. What the network gives up is the *negative* side. It is the lesson of 06 once more, learned by gradient descent: large positive scores are only flattened, large negative ones are poison.
#
# How far, then, are its weights from softmax of its own scores?

# %%
from softattn_lib.scores import misplaced_weight

for order in (10, 4):
    own, other = (misplaced_weight(scores[n], order).mean() for n in (f"taylor_{order}", "softmax"))
    print(f"order {order:2} misplaces {own:.0%} of the weight in the model trained with it,")
    print(f"         and {other:.0%} in the model trained with softmax")

# %% [markdown]
# So order 4 does not work by being close to softmax. A fifth of its weight lies elsewhere, and the network has learned to live with that.
#
# ## The largest order and the one that is missed
#
# Now the read-out of the paper's repository: the mean of $|s^n / n!|$ for each order, of which the largest is called dominant. **Predict** for the model of order 4: which of its orders 0 to 4 is the largest, and which is the one whose removal costs least?

# %%
from softattn_lib.scores import order_sizes

sizes = {}
for name, highest in ("softmax", 40), ("taylor_10", 10), ("taylor_4", 4):
    by_head = order_sizes(scores[name], highest).mean(2)  # (layers, heads, orders)
    sizes[name] = (by_head / by_head.sum(-1, keepdim=True)).mean((0, 1))  # (orders,), adds up to 1
    print(f"{name:9} dominant order of each head:", *by_head.argmax(-1).tolist())
print("taylor_4, share of the orders 0 to 4:", *(f"{x:.0%}" for x in sizes["taylor_4"]))

# %% [markdown]
# In the model of order 4 the last order is the largest in every head; in that of order 10 it is in three heads of eight. Is the largest the one that matters? Take one order out at a time, everything else as it is, and test.

# %%
from softattn_lib.llama import restore_attention
from softattn_lib.scores import next_token_loss


def loss_without(order, n):  # of the model trained with this order, when its term n is taken out
    kept = [c * (power != n) for power, c in enumerate(taylor(order).coefficients)]
    model = models[f"taylor_{order}"]
    return np.mean([next_token_loss(model, text, Polynomial(kept)) for text in ids[:8]])


# %%
import warnings

warnings.simplefilter("ignore")  # weights of both signs over their sum; we come to that
rises = {}
for order in (4, 10):
    restore_attention(models[f"taylor_{order}"].double())  # loss_without says what stands for exp
    rises[order] = [loss_without(order, n) - loss_without(order, None) for n in range(order + 1)]
    print(f"order {order:2}: loss rises by", *(f"{rise:.2f}" for rise in rises[order]))

# %% [markdown]
# Side by side, for the model of order 10, each as a part of its sum:

# %% tags=["nbval-ignore-output"]
missed = np.divide(rises[10], sum(rises[10]))
figures.lines_figure(
    range(11),
    {"size of the term": sizes["taylor_10"], "loss without it": missed},
    title="Large orders and missed orders",
    caption="Sizes grow up to the last order. What is missed are the even orders, "
    "the low ones most.",
    x_title="order",
    y_title="share of the sum",
).update_layout(height=320, width=600)

# %% [markdown]
# The order with the largest share is not the one whose removal costs most, and the odd ones are hardly missed at all. But be careful with the reason:

# %%
grid = torch.linspace(-15, 24, 3901, dtype=torch.float64)  # the scores of these models lie here
for n in range(5):
    left = Polynomial([c * (power != n) for power, c in enumerate(taylor(4).coefficients)])(grid)
    print(f"order 4 without term {n}: smallest weight {left.min():.2f}")

# %% [markdown]
# Without an even order the polynomial is negative somewhere, without an odd one it stays positive. So part of what an even order is missed for is its *sign*: the trap of the odd orders once more. And nothing was trained again after a term was gone. What remains is this: a *dominant* order says how large scores are (06), and not what a model would miss.
#
# (Taking a term out is our test, not the paper's. In the paper's repository the same read-out was also made of linear-attention models: there the bars, at orders 14 to 24, appear to mark where float32 overflows, since it raises numbers to the power $n$ and counts what overflows as 0. That is our reading of its code and plot.)
#
# ## Under stress: gate, norm, and nothing
#
# In the paper the gate does not only end worse, it also trains less stably: at 2B two spikes near step 7,000 and an excursion near 45,000 (read off its figure). Is that visible here? A second sweep provokes it: `mini` (64 letters, 400 steps) with a learning rate of 0.01 instead of 0.003, and no clipping (`experiments/stability.yaml`).
#
# Of each run we take, after the warm-up, the largest gradient norm and the largest **jump**: of each ten steps the largest loss, minus the mean of the ten steps before. A jump of more than 0.3 nats we call a spike.

# %%
from itertools import groupby

late = [row for row in curves if row["sweep"] == "stability" and int(row["step"]) > 50]  # warmed up
runs = []
for (name, seed), tens in groupby(late, key=lambda row: (row["variant"], row["seed"])):
    columns = ("step", "train_loss", "largest_loss", "largest_gradient_norm")  # of ten steps each
    step, mean, largest, norm = np.array([[float(ten[c]) for c in columns] for ten in tens]).T
    jumps = largest[1:] - mean[:-1]
    most = {"jump": jumps.max(), "at": (seed, int(step[1:][jumps.argmax()])), "norm": norm.max()}
    runs.append({"variant": name} | most)
print(len(runs), "runs, with a spike:", sum(run["jump"] > 0.3 for run in runs))
print("largest jump:", round(max(run["jump"] for run in runs), 2))
by_jump = sorted(runs, key=lambda run: run["jump"])
print("the ten largest, (seed, step):", {run["at"] for run in by_jump[-10:]})

# %% [markdown]
# The ten largest jumps are one hard batch: all ten variants meet it with seed 1, within the same ten steps.
#
# A run diverges if its loss stops being a number.

# %%
results = read_rows("../experiments/stability.csv")
stressed = summarize(results, "held_out_loss")
norms, jumps = summarize(runs, "norm"), summarize(runs, "jump")
print("diverged:", [(r["variant"], r["seed"]) for r in results if r["status"] == "diverged"])
for name, x in stressed.items():
    norm = "norms " + ", ".join(f"{value:.2f}" for value in norms[name].values)
    print(f"{name:29}loss {x.mean:.3f}, {norm}, jump up to {jumps[name].highest:.2f}")

# %% tags=["nbval-ignore-output"]
figures.points_figure(
    {name: norms[name].values for name in stressed},
    title="Largest gradient norm under stress",
    caption="One point a seed, after the warm-up; the dotted line is softmax's mean.",
    x_title="largest gradient norm",
    reference="softmax",
)

# %% [markdown]
# No run diverges, none has a spike, and the gate's largest gradient norms are above softmax's on two seeds and below on the third, above the L2 norm's on one. The largest of all belongs to `no_denominator_clamp5`. So what the paper reports of the gate's stability does **not show at this scale**, not even when provoked. That is no evidence against it: its spikes came after thousands of steps of a far larger model. (The curves are in the widget above, in the groups "under stress".)
#
# The clamp at 5 cuts off the scores whose exp is large; the README of the paper's code says that it does no harm, and steadies runs without a norm. **Predict:** where will it change most, and in which direction?

# %%
for name in ("gate", "gate_without_1_over_t", "1_over_t", "no_denominator"):
    print(against(f"{name}_clamp5", name))
    print("    under stress", against(f"{name}_clamp5", name, stressed).split(":")[1])

# %% [markdown]
# Under stress the clamp lowers the loss on every seed. Without stress it does no harm. It changes most where nothing else holds the sum: without a denominator, and with a gate alone. Whether it steadies a run, as the README has it, these numbers do not say: the one large gradient norm is of a clamped run. What it costs is the theory: $\min(s, 5)$ is not a polynomial, and these models are not sums of recurrent networks any more.

# %% [markdown]
# ## What this does not show
#
# - **Scale.** Two layers, 63 tokens, 500 steps. Instability of the gate over tens of thousands of steps at 2 billion parameters is out of reach here; that it is absent in a table like ours is no evidence against it.
# - **Orders in use.** One seed of each trained model, and 8 to 16 passages.
# - **Tuning.** One learning rate for all. A variant that is behind may only need another one.
# - **Length.** Contexts of 96 letters ask little of attention. [09](09_expressiveness.ipynb) asks more.
# - **The paper's own numbers** come from one run a curve, and are read off figures here.
#
# `claims.md`, in the root of the repository, goes through the paper's claims one by one: what it says, and what we see.
#
# ## What you saw
#
# - One formula with replaceable parts, one command a variant, and a loss that means something only beside its spread over seeds.
# - More even orders come closer to softmax, from 2 to 4 the most; the odd orders 1 and 3 come last of all variants.
# - A softmax model does not survive being cut; a model trained with the cut does. Its scores are not small: it avoids the large negative ones.
# - The order with the largest terms is not the one whose removal costs most.
# - A logarithm of the loss leaves the order and squeezes the distances.
#
# **Try it:**
#
# - Train a variant of your own choice, for example `softattn train --variant power_2_decay --preset small` (a minute), and find its place in the table. Is it within the spread of the stored runs? (5 minutes, easy)
# - Odd orders fail with the plain denominator. Give order 3 a norm instead: make an `AttentionVariant` with `variant("taylor_3").kernel` and `VARIANTS["l2"].normalizer` (both names are in `softattn_lib.variants`), and hand it to `softattn_lib.tasks.training.train`. [Your own kernel](your_own_kernel.md) shows how. Does it get below 2.27? (15 minutes, medium)
# - Give the gate a fair chance: three learning rates for `gate` and for `softmax`, `softattn train --variant gate --preset mini --set learning_rate=0.001` and so on. Does the distance between them stay? (15 minutes, medium)

# %% [markdown]
# Back to [09 Expressiveness](09_expressiveness.ipynb) · On to [11 What it costs](11_what_it_costs.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
