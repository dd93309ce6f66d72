"""The benchmarks measure what they say: timing, memory, goals, tables, every row at toy size."""

import doctest
import json
import subprocess
import sys

import pytest
import torch

import benchmarks.__main__ as command
from benchmarks import crossover, cumulative, gpu, memory, peers, profile, report, targets, timing
from softattn_lib import PolynomialKernel, chunked_attention, taylor


@pytest.mark.parametrize("module", [timing, memory, cumulative], ids=lambda m: m.__name__)
def test_examples_run(module):
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


# Timing


class Clock:
    """A clock that moves only when a function is called."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def function(self, name, durations):
        durations = iter(durations)

        def call():
            self.calls.append(name)
            self.now += next(durations)

        return call


def test_timing_interleaves_and_takes_medians_after_a_warm_up():
    clock = Clock()
    a = clock.function("a", [50, 1, 9, 2])
    b = clock.function("b", [50, 5, 4, 30])
    assert timing.interleaved([a, b], seconds=0, clock=clock) == [2, 5]
    assert clock.calls == ["a", "b"] * 4


def test_timing_goes_on_until_the_seconds_are_spent():
    clock = Clock()
    timing.interleaved([clock.function("a", [1] * 20)], seconds=10, clock=clock)
    assert len(clock.calls) == 1 + 10


def test_the_machine_has_a_name(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU (R) 7 @ 2 GHz\n")
    assert timing.processor(cpuinfo) == "Some CPU (R) 7 @ 2 GHz"
    assert timing.processor(tmp_path / "missing")
    here = timing.Machine("Some CPU (R) 7", 2, "Linux", "3.11", "2.13", "2026-01-01")
    assert here.slug == "some-cpu-r-7-2-cores"
    assert "cores 2" in str(here)


# Memory


def test_the_peak_counts_what_is_alive_at_once():
    def call():
        a = torch.ones(1000)
        b = a * 2  # a and b
        del a
        c = b[:500] * 3  # b and half of it
        return c.sum()

    assert memory.peak_bytes(call) == pytest.approx(8000, abs=8)


def test_the_peak_leaves_out_inputs_and_results():
    x = torch.ones(1000, requires_grad=True)

    def step():
        out = x.exp()
        return out, *torch.autograd.grad(out.sum(), x)

    assert memory.peak_bytes(step) < 2000


def test_memory_inside_a_custom_function_counts():
    class Hungry(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + torch.empty(100_000).sum() * 0

        @staticmethod
        def backward(ctx, grad):
            return grad + torch.empty(200_000).sum() * 0

    x = torch.ones(1, requires_grad=True)
    assert memory.peak_bytes(lambda: Hungry.apply(x)) == pytest.approx(400_000, abs=100)
    out = Hungry.apply(x)
    assert memory.peak_bytes(lambda: torch.autograd.grad(out, x)) == pytest.approx(800_000, abs=100)


def test_the_bound_on_memory_counts_states_and_buffers():
    # D = 3: 5 states of 3 x 2 numbers and 64 buffers of chunk x 3 numbers, for 7 heads
    chunk = targets.CHUNK
    assert targets.memory_bound(7, 1, 2, 5 * chunk) == 4 * 7 * (5 * 3 * 2 + 64 * chunk * 3)


# The rival that materialises every state


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")
def test_the_cumulative_formulation_equals_the_chunked_form(order):
    q, k, v = targets.random_inputs(2, 37, 3, dtype=torch.float64)
    out = cumulative.cumulative_attention(q, k, v, PolynomialKernel(taylor(order)))
    expected, _ = chunked_attention(q, k, v, kernel=taylor(order))
    assert torch.allclose(out, expected, rtol=1e-9)


def test_the_cumulative_formulation_holds_every_state():
    qkv, kernel = targets.random_inputs(1, 50, 4), PolynomialKernel(taylor(2))
    peak = memory.peak_bytes(lambda: cumulative.cumulative_attention(*qkv, kernel))
    assert peak >= 2 * 4 * 50 * 15 * 5


# Goals and rows


def test_goals():
    assert targets.Goal("at least", 3).reached_by(3)
    assert not targets.Goal("at least", 3).reached_by(2.99)
    assert targets.Goal("at most", 1.1).reached_by(1.1)
    assert not targets.Goal("at most", 1.1).reached_by(1.11)
    assert str(targets.Goal("at most", 1.1)) == "at most 1.1"


def row(measure):
    return targets.Row("name", "some work", "SDPA", "ms", targets.Goal("at least", 3), measure)


def test_a_row_says_whether_its_goal_is_reached():
    measure = lambda seconds: targets.Measurement(0.0021, seconds, seconds / 0.0021)  # noqa: E731
    result = row(measure).run(seconds=0.0084)
    assert (result.ours, result.rival, result.ratio) == ("2.1 ms", "SDPA 8.4 ms", "4")
    assert (result.goal, result.verdict) == ("at least 3", "reached")
    assert result.threads == torch.get_num_threads()
    assert row(measure).run(seconds=0.0042).verdict == "missed"


def test_a_row_that_fails_says_why():
    def fail(seconds):
        raise RuntimeError("no room\nand more")

    assert row(fail).run(1.0).verdict == "not measured: RuntimeError: no room"


def test_the_ratio_of_times_is_how_many_times_faster():
    measured = targets.faster(lambda: None, lambda: sum(range(10_000)), seconds=0.01)
    assert measured.ratio == measured.rival / measured.ours > 1
    assert targets.bounded(1.0, 4.0).ratio == 0.25


def test_operations_are_counted_as_promised(monkeypatch):
    monkeypatch.setattr(targets, "interleaved", lambda functions, seconds: [1.0, 1.0])
    measured = targets.share(2, 3, 2, 10, side=8, seconds=0)
    assert measured.ours == 2 * 10 * (4 * 10 * 4 + 64 * 6)
    assert measured.rival == 2 * 8**3


def test_names_of_rows_are_unique_and_promises_are_kept_apart():
    names = [r.name for r in targets.rows()]
    assert len(set(names)) == len(names)
    assert command.PEERS not in names


@pytest.mark.parametrize("row", targets.rows(shorter=2048), ids=lambda r: r.name)
def test_every_row_runs_at_toy_size(row, monkeypatch):
    monkeypatch.setattr(crossover, "LIMIT", 64)
    monkeypatch.setattr(crossover, "ratio", lambda d, order, length, seconds: 30 / length)
    result = row.run(seconds=0.0)
    assert result.verdict in ("reached", "missed")


def test_a_prediction_is_judged_on_both_sides(monkeypatch):
    predicted = targets.softattn_lib.crossover(16, 2, heads=crossover.HEADS)
    for measured in [predicted * 4, predicted / 4]:
        monkeypatch.setattr(crossover, "measure", lambda *_, measured=measured: measured)
        assert targets.predicted_crossover(16, 2, 0.0).ratio == pytest.approx(4)
    monkeypatch.setattr(crossover, "measure", lambda *_: None)
    with pytest.raises(ValueError, match="no crossover at or below 65536"):
        targets.predicted_crossover(16, 2, 0.0)


def test_the_long_stream_is_exact_at_toy_size():
    assert targets.long_stream(300) < 1e-5


# Peers


def test_peers_agree_with_float64_or_say_why_not():
    def absent():
        raise ImportError("no such package")

    def wrong():
        return lambda q, k, v: v

    here = [
        *peers.PEERS[:2],
        peers.Peer("absent", absent, peers.exact_taylor),
        peers.Peer("wrong", wrong, peers.exact_taylor, longest=64),
    ]
    found = peers.compare(here, lengths=(64, 128), heads=1, d=4, seconds=0.0)
    sdpa, ours, missing, other = found
    assert float(sdpa.error) < 1e-5 and "softmax" in sdpa.note
    assert float(ours.error) < 1e-5 and not ours.note
    assert all(float(time) > 0 for time in ours.times)
    assert missing.note == "ImportError: no such package" and missing.times == ("", "")
    assert float(other.error) > 0.1 and other.times[1] == ""


@pytest.mark.parametrize("peer", peers.PEERS[3:], ids=lambda peer: peer.name)
def test_installed_peers_compute_the_same_function(peer):
    pytest.importorskip("fla")
    (result,) = peers.compare([peer], lengths=(256,), heads=2, d=8, seconds=0.0)
    assert float(result.error) < 1e-5, result.note


def test_a_peer_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    for result in peers.compare(peers.PEERS[3:]):
        assert result.note.startswith("ModuleNotFoundError: ")
        assert result.error == "" and set(result.times) == {""}


# The page, and the command


def test_the_page_holds_every_result():
    here = timing.Machine("CPU", 2, "Linux", "3.11", "2.13", "2026-01-01")
    result = row(lambda _: targets.Measurement(1.0, 4.0, 4.0)).run(1.0)
    peer = peers.PeerResult("a | b", ("1", "2"), "1e-7", "")
    page = report.markdown(here, [result], [peer])
    assert "| some work |" in page and "| reached |" in page
    assert "| a \\| b | 1 | 2 | 1e-7 |  |" in page
    assert here.name in page and here.date in page
    numbers = json.loads(json.dumps(report.as_json(here, [result], [peer])))
    assert numbers["targets"][0]["verdict"] == "reached"
    assert numbers["peers"][0]["name"] == "a | b"


def test_the_command_measures_with_both_numbers_of_threads(tmp_path, monkeypatch, capsys):
    """In this process instead of a new one, with rows of toy size."""
    names = ["forward-d16-o2-4k", "cumulative-memory", "long-stream"]
    rows = [row for row in targets.rows(shorter=2048) if row.name in names]
    threads = torch.get_num_threads()
    monkeypatch.setattr(command, "rows", lambda: rows)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "compare", lambda seconds: [])

    def run(arguments, env, check):
        assert env["OMP_NUM_THREADS"] == arguments[3].removeprefix("--threads=")
        command.main(arguments[3:])

    monkeypatch.setattr(subprocess, "run", run)
    try:
        command.main(["--seconds=0", f"--only={names[0]}"])
        assert not (tmp_path / "results").exists()
        command.main(["--seconds=0"])
    finally:
        torch.set_num_threads(threads)
    (page,) = (tmp_path / "results").glob("*.md")
    assert page.read_text() in capsys.readouterr().out
    numbers = json.loads(page.with_suffix(".json").read_text())
    measured = {(r["name"], r["threads"]) for r in numbers["targets"]}
    assert measured == {(names[0], 1), (names[0], 2), (names[1], 1), (names[2], 1)}


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["--only", "nothing"])
    assert "forward-d16-o2-4k" in capsys.readouterr().err


# The script for a GPU, on the CPU

TINY = ["--device", "cpu", "--tiny"]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_script_for_a_gpu_runs_at_toy_size(tmp_path, capsys):
    assert gpu.main(TINY, tmp_path) == 0
    (path,) = tmp_path.glob("gpu-*.md")
    page = path.read_text()
    assert page in capsys.readouterr().out
    failed = [line for line in page.splitlines() if "failed" in line]
    assert all("FlexAttention does not support backward on CPU" in line for line in failed), failed
    assert page.count("| ok: ") == 3 * len(gpu.FORMS) + 1
    for column in gpu.COLUMNS:
        assert column in page
    assert "skipped" not in page.lower()


def test_one_failure_does_not_lose_the_rest(tmp_path, monkeypatch):
    def fail(*inputs, **options):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setitem(gpu.FORMS, "recurrent", fail)
    run = gpu.Run(torch.device("cpu"), gpu.TINY, deadline=float("inf"))
    verdicts = dict(gpu.checks(run))
    for name, verdict in verdicts.items():
        expected = "failed: RuntimeError: out of memory" if "recurrent" in name else "ok: "
        assert verdict.startswith(expected), name


def test_a_wrong_number_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "exact", lambda case, q, k, v: v.cpu().double())
    monkeypatch.setattr(gpu, "timings", lambda run: [])
    assert gpu.main(TINY, tmp_path) == 1
    assert "| WRONG: " in capsys.readouterr().out


def test_what_there_is_no_time_for_is_named(tmp_path, capsys):
    assert gpu.main([*TINY, "--minutes=0"], tmp_path) == 0
    out = capsys.readouterr().out
    skipped = out[out.index("Skipped") :].splitlines()
    assert "* output, chunked, d=4 order 2 float32" in skipped
    assert "* forward + backward, d=4 order 3 bfloat16, T=32" in skipped
    assert "ok: " not in out and "failed" not in out


def test_without_cuda_the_script_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([], tmp_path) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_profile_shares_out_the_whole_time():
    found = profile.shares(1, 4, 2, length=64)
    assert sum(found.values()) == pytest.approx(1)
    assert found["matrix products"] > 0 and found["moving"] > 0
