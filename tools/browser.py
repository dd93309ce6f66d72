"""A real JupyterLab in a real browser: for the tests, and for the pictures in the README.

    python -m tools.browser install     find a Chromium or Chrome, or install Chromium
    python -m tools.browser pictures    draw pictures for the README; needs pillow and the site

The notebooks that are opened are copies without outputs, so whatever is seen was computed there.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import nbformat

from tools.notebooks import FOLDER, ROOT, code_cells, names, new_learner, shrink

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SETTINGS = {
    # A fresh JupyterLab asks whether to fetch news; the question covers a corner of the notebook.
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
WIDGETS = ("@jupyter-widgets/jupyterlab-manager", "anywidget")  # JupyterLab's extensions
SITE = ROOT / "build" / "site"
PATIENCE = 120  # seconds that a busy machine may take to start, or to run a notebook


# The browser


def chromium() -> str | None:
    """The program of a Chromium or Chrome on this machine, or None."""
    if found := next(filter(None, map(shutil.which, PROGRAMS)), None):
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


@contextmanager
def open_browser():
    """A headless browser of Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        yield browser
        browser.close()


def complaints_of(page, *own: str) -> list[str]:
    """A list to which a page adds what its console shows as an error, and what it asks for.

    Args:
        page: of Playwright, before it goes anywhere.
        own: beginnings of addresses that it may ask for.
    """
    found = []
    page.on("console", lambda said: found.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(own) else found.append(f"asks for {asked.url}"),
    )
    return found


def install() -> str | None:
    """Install Chromium unless there is one: Debian's own as root, else Playwright's."""
    if chromium() is None and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update"], check=False)
        packages = ["chromium", "fonts-dejavu-core"]
        subprocess.run(["apt-get", "install", "--yes", *packages], check=False)
    if chromium() is None:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)
    return chromium()


# JupyterLab


@contextmanager
def lab(folder: Path, disabled=()):
    """The address of a JupyterLab that serves copies of the notebooks from an empty folder.

    Args:
        folder: where the copies, the settings and the learner's files go.
        disabled: names of extensions of JupyterLab to go without.
    """
    work, config = folder / "work", folder / "config"
    copy_notebooks(work)
    write_json(config / "settings" / "overrides.json", SETTINGS)
    switched_off = {"disabledExtensions": dict.fromkeys(disabled, True)}
    write_json(config / "labconfig" / "page_config.json", switched_off)
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--ServerApp.root_dir={work}", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token="]
    command += [f"--LabApp.app_settings_dir={config / 'settings'}"]
    variables = {
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTERLAB_SETTINGS_DIR": str(config / "user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(config / "workspaces"),
    }
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(
            command,
            env=os.environ | variables | new_learner(folder),
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that its kernels end with it
        )
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/api/status", server)
            yield address
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


def copy_notebooks(work: Path) -> None:
    """The notebooks without their outputs, beside the tables and trained models they read."""
    (work / "notebooks").mkdir(parents=True)
    for name in names():
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        for _, cell in code_cells(notebook):
            cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, work / "notebooks" / f"{name}.ipynb")
    for read in ("experiments", "benchmarks"):
        (work / read).symlink_to(ROOT / read)


def write_json(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(url: str, server: subprocess.Popen) -> None:
    for _ in range(5 * PATIENCE):
        if server.poll() is not None:
            break
        try:
            return urlopen(url).close()
        except URLError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start; {url} does not answer")


class LabPage:
    """A notebook open in JupyterLab. `complaints` are those of its page, the server's apart."""

    def __init__(self, browser, address: str, name: str, **options):
        self.page = browser.new_page(**{"viewport": {"width": 1200, "height": 1400}} | options)
        self.page.set_default_timeout(1000 * PATIENCE)
        own = (address, address.replace("http", "ws"), "data:", "blob:")
        self.complaints = complaints_of(self.page, *own)
        self.page.goto(f"{address}/lab/tree/notebooks/{name}.ipynb?reset")
        self.wait_until_idle()  # before, Run asks for a kernel
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        self.last_prompt = f"[{len(code_cells(notebook))}]:"

    def run_all(self) -> None:
        """Run all cells by the menu, in a kernel that has run none, and wait for the last."""
        self.menu("Run", "Run All Cells")
        self.page.locator(".jp-InputPrompt", has_text=self.last_prompt).wait_for()
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        self.page.get_by_text("(ipykernel) | Idle").wait_for()

    def menu(self, *items: str) -> None:
        for item in items:
            self.page.get_by_role("menuitem", name=item, exact=True).click()

    def errors(self) -> list[str]:
        """What the cells raised."""
        found = self.page.locator("[data-mime-type='application/vnd.jupyter.error']")
        return found.all_text_contents()


# Pictures of the README


def draw_pictures() -> None:
    """A notebook in JupyterLab while its widget is used, and a page of `make site` on a phone."""
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        with lab(Path(folder)) as address:
            view = {"width": 1000, "height": 850}
            notebook = LabPage(browser, address, "02_exp_as_a_series", viewport=view)
            notebook.run_all()
            notebook.page.keyboard.press("Control+b")  # more room for the notebook
            slider = notebook.page.locator(".softattn").get_by_role("slider").first
            slider.press("ArrowRight")
            slider.evaluate("e => e.closest('.jp-CodeCell').scrollIntoView()")
            save_picture(notebook.page, "in_jupyterlab")
        view = {"width": 400, "height": 800}
        phone = browser.new_page(viewport=view, color_scheme="dark")
        phone.goto((SITE / "notebooks" / "00_start_here.html").as_uri())
        phone.locator("figure.plot").first.evaluate("e => e.scrollIntoView()")
        phone.locator("figure.plot.drawn input").first.press("ArrowRight")
        save_picture(phone, "on_a_phone")


def save_picture(page, name: str) -> None:
    page.wait_for_timeout(2000)  # until everything has its place
    (FOLDER / f"{name}.png").write_bytes(shrink(page.screenshot()))


# Command line


def main(arguments=None) -> int | None:
    parser = argparse.ArgumentParser(prog="python -m tools.browser", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=["install", "pictures"])
    if parser.parse_args(arguments).what == "pictures":
        return draw_pictures()
    found = install()
    print(f"Browser: {found}" if found else "There is no Chromium or Chrome; install one by hand.")
    return int(not found)


if __name__ == "__main__":
    sys.exit(main())
