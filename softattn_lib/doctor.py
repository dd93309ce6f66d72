"""What is installed, what works, and one line that mends whatever does not.

`softattn doctor` prints it all; the first cell of each notebook calls `check()`, which says nothing
as long as all is well.
"""

import platform
import sys
from dataclasses import dataclass
from importlib import import_module, metadata

from packaging.requirements import Requirement

from softattn_lib.devices import available_devices, pick_device
from softattn_lib.small_model import find_problem, model_dir

PACKAGE = "softattn_lib"
WIDGET_PACKAGES = ("plotly", "anywidget", "ipywidgets")
HAVE_STAND_INS = ("anywidget", "ipywidgets")  # without them widgets are figures, and all cells run


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, what was found, how to mend it ("" = well).

    `stops` says whether notebooks cannot run before it is mended.
    """

    name: str
    value: str
    fix: str = ""
    stops: bool = True

    def __str__(self):
        mark, fix = ("!", f"\n    fix: {self.fix}") if self.fix else (" ", "")
        return f"{mark} {self.name:<17}{self.value}{fix}"


class SetupError(RuntimeError):
    """The installation lacks something; the message lists what, with a fix for each."""

    def _render_traceback_(self):
        # IPython shows these lines instead of a traceback, which would only bury the fix.
        return str(self).splitlines()


def check(model=False):
    """Say nothing when all is well, and otherwise what is wrong and how to mend it.

    Where only ipywidgets or anywidget is missing, this prints it: notebooks run without them.

    Args:
        model: whether the small language model has to be there too.

    Raises:
        SetupError: a notebook cannot run. It shows the message without a traceback.

    >>> check()
    """
    wrong = [finding for finding in examine(model) if finding.fix]
    report = "\n".join(map(str, wrong))
    if any(finding.stops for finding in wrong):
        raise SetupError(f"This notebook cannot run yet:\n{report}\nThen restart the kernel.")
    if wrong:
        print(f"This notebook runs, with figures for widgets:\n{report}\nThen restart the kernel.")


def examine(model=True):
    """Look at everything that has to work.

    Args:
        model: whether to look for the small language model.

    Returns:
        list of Finding, in the order of the report.

    >>> [finding.name for finding in examine(model=False)][:2]
    ['python', 'softattn_lib']
    """
    packages = [package(requirement) for requirement in requirements()]
    findings = [python(), itself(), *packages, device(), widgets(packages)]
    return [*findings, small_model()] if model else findings


def report():
    """The report of `softattn doctor` as text, and whether all is well.

    >>> text, well = report()
    >>> text.splitlines()[0].split()[0]
    'python'
    """
    findings = examine()
    count = sum(bool(finding.fix) for finding in findings)
    last = f"{count} to mend, marked with !" if count else "All is well."
    return "\n".join([*map(str, findings), last]), not count


def requirements():
    """What pyproject.toml asks for, the extra `lab` included, as installed with this package."""
    try:
        lines = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []  # itself() has the fix
    parsed = [Requirement(line) for line in lines]
    return [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": "lab"})]


def python():
    return Finding("python", f"{platform.python_version()}, {sys.executable}")


def itself():
    try:
        return Finding(PACKAGE, metadata.version(PACKAGE))
    except metadata.PackageNotFoundError:
        fix = f'{sys.executable} -m pip install -c constraints.txt -e ".[lab]"'
        return Finding(PACKAGE, "not installed in this Python", f"in the project's folder, {fix}")


def package(requirement):
    wanted = f"{requirement.name}{requirement.specifier}"
    fix = f'{sys.executable} -m pip install "{wanted}"'
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, "missing", fix, requirement.name not in HAVE_STAND_INS)
    if not requirement.specifier.contains(version, prereleases=True):
        return Finding(requirement.name, f"{version}, needed is {wanted}", fix)
    return Finding(requirement.name, version)


def device():
    here = ", ".join(available_devices())
    try:
        return Finding("device", f"{pick_device()} (here: {here})")
    except (ValueError, RuntimeError) as error:
        return Finding("device", str(error), f"set SOFTATTN_DEVICE to one of {here}, or unset it")


def widgets(packages):
    """Whether a live figure can be made; a package that is wrong has its own fix already."""
    lacking = [f.name for f in packages if f.fix and f.name in WIDGET_PACKAGES]
    if lacking:
        return Finding("widgets", f"cannot work without {', '.join(lacking)}")
    for name in WIDGET_PACKAGES:
        try:
            import_module(name)
        except Exception as error:  # a broken install raises anything
            fix = f"{sys.executable} -m pip install --force-reinstall {name}"
            stops = name not in HAVE_STAND_INS
            return Finding("widgets", f"{name} does not load: {error}", fix, stops)
    return Finding("widgets", "can work")


def small_model():
    problem = find_problem()
    if problem:
        return Finding("small model", problem, f"{sys.executable} -m softattn_lib.cli model")
    return Finding("small model", f"ready, {model_dir()}")
