"""Agents that would rather write their own verdict, in real boxes: the verdict is the true one, and it shows.

What the agent has really done is always the same half: `there` holds, `word` and `program` do not.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from components.config import SandboxConfig
from components.errors import FaultCause
from components.harness import verify_result
from components.records import AssertionOutcome
from components.sandbox import FileEntry, ImageSpec, Sandbox, SandboxBackend, SandboxSpec, open_backend, read_tree
from components.sandbox.base_image import add, unpack
from components.sandbox.store import ImageStore
from tests import dockerd
from tests.harness.parts import PlainTask
from tests.sandbox.conftest import needs_root

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_root]  # without root nobody can change /usr in a box
PASSED, FAILED, _, _, NOT_RUN = AssertionOutcome

PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
COLOURS = {"lexers": ("__init__", "_mapping", "python", "diff"), "styles": ("__init__", "_mapping", "default")}
SITE = "/usr/lib/python3/dist-packages"


def system() -> dict[str, FileEntry]:
    """A pytest for the box's own Python."""
    entries: dict[str, FileEntry] = {}
    for name in PACKAGES:
        folder = Path(importlib.util.find_spec(name).origin).parent
        found = read_tree(folder, f"{SITE}/{name}").items()
        entries |= {path: entry for path, entry in found if "__pycache__" not in path}
    entries[f"{SITE}/py.py"] = FileEntry(Path(importlib.util.find_spec("py").origin).read_bytes())
    return {
        path: entry
        for path, entry in entries.items()
        if Path(path).stem in COLOURS.get(Path(path).parent.name, (Path(path).stem,))
    }


PLAIN = SandboxSpec(memory_mb=96, disk_mb=16)
COMPILE = f"cd {SITE} && python3 -m compileall -q {' '.join(PACKAGES)}"
PYTHON = SandboxSpec(memory_mb=128, disk_mb=24, files=system(), setup=(COMPILE,))
HALF = "touch there; echo plum > word; printf '#!/bin/sh\necho wrong\n' > prog; chmod +x prog"

OWN = r"""#!/bin/bash
read -r nonce <&4
say() { printf '{"nonce":"%s",%s}\n' "$nonce" "$1"; }
check() { local said=failed; eval "$2" 2>/dev/null && said=passed; say "\"id\":\"$1\",\"outcome\":\"$said\""; }
say '"collected":["there","program","word"]'
check there '[[ -f there ]]'
check program '[[ $(./prog) == right ]]'
check word '[[ $(<word) == fig ]]'
say '"finished":true'
"""
FOREIGN = """#!/bin/bash
if [ "$(cat word)" = fig ] && [ "$(./prog)" = right ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
PYTEST = """#!/bin/bash
python3 -m pytest -q /tests/test_outputs.py
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
OUTPUTS = """
import json, os, subprocess
def test_there(): assert os.path.exists("there")
def test_program(): assert subprocess.run(["./prog"], stdout=-1, close_fds=False).stdout == b"right\\n"
def test_word():
    if os.path.exists("solution.py"):
        import solution
    import colorsys
    assert open("word").read() == "fig\\n"
"""
PUBLIC = """#!/bin/bash
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==8.4.1 pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
WHOLE = """#!/bin/bash
if [ -x /usr/bin/env ] && [ -x /bin/find ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
INSTALL = "mkdir -p ~/.local/bin; echo 'export PATH=\"$HOME/.local/bin:$PATH\"' > ~/.local/bin/env"  # as uv's installer
INSTALLED = PYTEST.replace("python3", f"{INSTALL}; . ~/.local/bin/env; python3", 1)
BUILD = PYTEST.replace("python3", "./prog; mkdir -p /usr/local/made; python3", 1)
TOOLS_AT_HOME = (".cargo/bin/uv", ".cargo/config.toml", ".config/go/env", ".m2/settings.xml", ".npmrc")
AT_HOME = f"""#!/bin/bash
cd ~; for file in {" ".join(TOOLS_AT_HOME)} .gitconfig .cache/uv/evil; do [ -e $file ] && echo $file; done > /logs/seen
case $UV_CACHE_DIR$UV_PYTHON_INSTALL_DIR$UV_TOOL_DIR$PIP_CACHE_DIR$npm_config_cache in *root*) echo caches;; esac
if [ "$(cat /logs/seen)" = "$(cat /app/expected)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SCRIPTS = {
    "home": (PLAIN, AT_HOME),
    "own": (PLAIN, OWN),
    "foreign": (PLAIN, FOREIGN),
    "pytest": (PYTHON, PYTEST),
    "build": (PYTHON, BUILD),
    "installed": (PYTHON, INSTALLED),
    "whole": (PLAIN, WHOLE),
    "public": (PLAIN, PUBLIC),
}
TRUTH = {
    "own": {"there": PASSED, "program": FAILED, "word": FAILED},
    "foreign": {},
    "pytest": {f"test_outputs.py::test_{name}": said for name, said in
               (("there", PASSED), ("program", FAILED), ("word", FAILED))},
}  # fmt: skip

WIN = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{\"reward\":1}' > /logs/verifier/reward.json"
EVIL = "import os; os.system('echo 1 > /logs/verifier/reward.txt'); os._exit(0)"
LOOP = f"while :; do {WIN}; done"


def program(python: str) -> str:
    """A command that makes the agent's program run some Python and then answer wrongly."""
    return f"cat > prog <<'END'\n#!/usr/bin/python3\n{python}\nprint('wrong')\nEND\n"


TRACE = r"""
import ctypes, glob, time
while True:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        if open(path, "rb").read().endswith(b"/test.sh\0"):
            ctypes.CDLL(None).ptrace(16, int(path.split("/")[2]), 0, 0)
    time.sleep(.01)
"""
GUESS = r"""
import os
os.write(3, b'{"nonce":"%s","id":"forged","outcome":"passed"}\n' % os.environ.get("LONGSHELL_NONCE", "").encode())
"""
EDIT = r"""
import os
for act in ("os.remove('/tests/test.sh')", "open('/tests/test.sh', 'w')", "os.rename('/tests', '/t')"):
    try:
        exec(act)
        os.system("echo 1 > /logs/verifier/reward.txt")
    except OSError:
        continue
"""
LOOK = r"""
import glob, os, re
def read(path, start=0, size=1 << 22):
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)
    except (OSError, ValueError, OverflowError):
        return b""
found = set()
for folder in glob.glob("/proc/[0-9]*"):
    found |= {*re.findall(rb"\b[0-9a-f]{32}\b", read(folder + "/environ"))}
    for line in read(folder + "/maps").decode().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if " rw" in line:
            found |= {*re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", read(folder + "/mem", start, end - start))}
for nonce in found or [b"?"]:
    os.write(3, b'{"nonce":"%s","id":"forged","outcome":"passed"}\n' % nonce)
"""
WRITE = r"""
import os, time
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 9)
    while True:
        open("/logs/verifier/new", "w").write('{"reward": 1}')
        os.rename("/logs/verifier/new", "/logs/verifier/reward.json")
        time.sleep(.001)
"""
KILL = r"""
import os, signal
os.kill(os.getppid(), signal.SIGKILL)
"""


PLAIN_ATTACKS = {
    "a planted reward file": (WIN, "planted /logs/verifier/reward.json"),
    "a background writer": (f"({LOOP}) >/dev/null 2>&1 &", "bash"),
    "a writer deaf to signals": (f"trap '' TERM HUP INT; setsid bash -c '{LOOP}' >/dev/null 2>&1 & sleep .05", "bash"),
    "planted tests": (f"mkdir /tests; echo '{WIN}' > /tests/test.sh; chmod 555 /tests", "planted /tests/test.sh"),
    "tests that are a link": (f"mkdir -p evil; echo '{WIN}' > evil/test.sh; ln -s /app/evil /tests", "planted /tests"),
    "a hard link into the tests": ("echo x > e; mkdir /tests; ln e /tests/test.sh", "planted /tests/test.sh"),
    "tests edited while they run": (program(EDIT), None),
    "a symlinked log folder": (f"{WIN}; mv /logs /app/evil; ln -s /app/evil /logs", "planted /logs"),
    "another bash": (f"printf '#!/bin/sh\n{WIN}\n' > evil; chmod +x evil; cp evil /bin/bash", "changed /usr/bin/bash"),
    "another /bin": ("cp -r /usr/sbin /app/bin; rm /bin; ln -s /app/bin /bin", "replaced /bin"),
    "shims on the PATH": (
        "cd /usr/local/bin; for n in cat test sh; do printf '#!/bin/bash\necho fig\n' > $n; chmod +x $n; done",
        "changed /usr/local/bin/cat",
    ),
    "start-up files": (
        f"for f in ~/.bashrc /etc/profile /etc/bash.bashrc; do echo '{WIN}; exit' > $f; done",
        "changed /etc/bash.bashrc",
    ),
    "an environment for everyone": (
        f"echo 'BASH_ENV=/app/evil' >> /etc/environment; echo '{WIN}; exit' > evil",
        "changed /etc/environment",
    ),
    "a preloaded library": ("cp /bin/true p.so; echo /app/p.so > /etc/ld.so.preload", "changed /etc/ld.so.preload"),
    "a killer in wait": ("(while :; do pkill -9 -f [t]est.sh; done) >/dev/null 2>&1 &", "bash"),
    "a tracer in wait": (
        f"{program(TRACE)}\nmv prog t; {HALF}; ./t >/dev/null 2>&1 & "
        "until [[ $(</proc/$!/comm) = t ]]; do sleep .01; done",
        "t",
    ),
    "an heir of a terminal": ("(exec 9>/dev/pts/ptmx; exec sleep 60) >/dev/null 2>&1 & sleep .05", "sleep"),
    "a program that looks into the verifier": (program(LOOK), "tampering: 1 lines without the nonce"),
    "a turned clock": ("date -s 2001-01-01; touch -d 2001-01-01 word", "refused clock_settime of date"),
    "a guess at the secret": (program(GUESS), "tampering: 1 lines without the nonce"),
}


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "namespace",
        pytest.param("image", marks=pytest.mark.nightly),
        pytest.param("docker", marks=[pytest.mark.nightly, dockerd.needs_docker]),
    ],
)
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxBackend]:
    folder = tmp_path_factory.mktemp("forgery")
    with dockerd.engine() if request.param == "docker" else nullcontext() as engine:
        config = SandboxConfig()
        if engine is not None:
            dockerd.import_base(engine, dockerd.WITH_PYTHON, dockerd.PYTHON)
            config = engine.config(dockerd.WITH_PYTHON)
        if request.param == "image":
            config = SandboxConfig(images=str(folder / "images"))
            import_image(folder)
        opened = await open_backend(config, folder)
        yield OverImage(opened) if request.param == "image" else opened
        await opened.close()


def import_image(folder: Path) -> None:
    """The engine's base image as a root file system of the namespace backend's."""
    (folder / "root.tar").write_bytes(dockerd.base_archive(dockerd.PYTHON))
    store = ImageStore(folder / "images")
    unpack(folder / "root.tar", folder / "root")
    add(store, folder / "root", [dockerd.WITH_PYTHON], {}, {})


class OverImage:
    """A backend whose boxes have a system of their own."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self.isolation = backend.isolation

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return await self._backend.start(replace(spec, image=ImageSpec(dockerd.WITH_PYTHON)))


async def verified(backend, folder, kind, *commands, timeout_s=20, workdir="/app", **task):
    """The verification of a box in which half the work and then `commands` were done."""
    spec, script = SCRIPTS[kind]
    spec = replace(spec, workdir=workdir)
    (folder / "test.sh").write_text(script)
    (folder / "test_outputs.py").write_text(OUTPUTS)
    box = await backend.start(spec)
    try:
        for command in (HALF, *commands):
            await box.exec(["/bin/bash", "-c", command], timeout_s=10)
        return await verify_result(box, PlainTask(folder, spec, **task), timeout_s=timeout_s, workdir=workdir)
    finally:
        await box.stop()


def require_recorded(done, sign):
    """`sign` is a line of tampering, or the name of a program that was left running."""
    facts = done.facts()
    assert sign is None or sign in [*facts["tampering"], *facts["left_running"]], facts


@pytest.mark.parametrize("kind", ["own", "foreign"])
@pytest.mark.parametrize("name", PLAIN_ATTACKS)
async def test_a_forged_verdict_is_not_given_and_the_attempt_is_told(backend, tmp_path, name, kind):
    attack, sign = PLAIN_ATTACKS[name]
    done = await verified(backend, tmp_path, kind, attack)
    assert done.report.outcome is False
    assert dict(done.report.assertions) == TRUTH[kind]
    if kind == "own" or "tampering" not in str(sign):
        require_recorded(done, sign)


@pytest.mark.parametrize("kind", TRUTH)
async def test_honest_work_passes_and_nothing_is_held_against_it(backend, tmp_path, kind):
    work = "echo fig > word; printf '#!/bin/sh\necho right\n' > prog"
    done = await verified(backend, tmp_path, kind, work)
    assert done.report.outcome is True
    assert set(done.report.assertions) == set(TRUTH[kind])
    assert done.facts() == {"tampering": [], "left_running": [], "tests_sha256": done.tests_sha256}


PYTHON_ATTACKS = {
    "a replaced pytest": (f"echo \"{EVIL}\" > {SITE}/pytest/__init__.py", f"changed {SITE}/pytest/__init__.py"),
    "a sitecustomize": (f"for d in /usr/lib/python3.11 {SITE} /; do echo \"{EVIL}\" > $d/sitecustomize.py; done",
                        "planted /sitecustomize.py"),
    "a .pth file": (f"u=$(python3 -m site --user-site); mkdir -p $u; echo \"{EVIL}\" | tee {SITE}/a.pth > $u/a.pth",
                    f"changed {SITE}/a.pth"),
    "a conftest above the tests": (f"echo \"{EVIL}\" | tee /conftest.py > conftest.py", "planted /conftest.py"),
    "a configuration above the tests": (
        "printf '[pytest]\naddopts = -p evil --co\npythonpath = /app\n' | tee /pytest.ini > pytest.ini; "
        f"echo \"{EVIL}\" > evil.py", "planted /pytest.ini"),
    "modules of its own in the working folder": (
        f"for n in pytest json subprocess longshell_report; do echo \"{EVIL}\" > $n.py; done", None),
    "variables in every file that sets some": (
        "for f in ~/.bashrc ~/.profile ~/.pam_environment /etc/environment; do "
        f"echo 'PYTHONPATH=/app PYTEST_ADDOPTS=--co PYTHONSTARTUP=/app/e.py' >> $f; done; echo \"{EVIL}\" > e.py",
        "changed /etc/environment"),
    "a program that looks into the verifier": (program(LOOK), None),
    "a program that writes the reward behind the script": (
        program(WRITE), "tampering: reward.json says 1 where reward.txt says 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHON_ATTACKS)
async def test_pytest_judges_what_was_done_and_not_what_was_planted(backend, tmp_path, name):
    attack, sign = PYTHON_ATTACKS[name]
    done = await verified(backend, tmp_path, "pytest", attack)
    assert done.report.outcome is False
    assert dict(done.report.assertions) == TRUTH["pytest"]
    require_recorded(done, sign)


@pytest.mark.parametrize("name", ["reward.json", "reward.txt"])
async def test_a_program_that_outlives_its_script_does_not_write_the_verdict(backend, tmp_path, name):
    write = WRITE.replace("reward.json", name).replace('{"reward": 1}', '{"reward": 1}' if name[-1] == "n" else "1")
    done = await verified(backend, tmp_path, "foreign", program(write), "echo fig > word")
    assert done.report.outcome is False
    require_recorded(done, f"changed /logs/verifier/{name}")
    assert done.facts()["left_running"] == ["prog"]


PASS_ALL = r"""
import json, os
try:
    from longshell_report import CHANNEL
    fd, nonce = CHANNEL
except ImportError:
    fd, nonce = 3, os.read(4, 99).decode().strip()
names = ["test_outputs.py::test_" + name for name in ("there", "program", "word")]
for line in ({"collected": names}, *({"id": name, "outcome": "passed"} for name in names), {"finished": True}):
    os.write(fd, json.dumps({"nonce": nonce, **line}).encode() + b"\n")
os._exit(0)
"""
REPLACE = f"""
import glob
for path in [*glob.glob("/usr/lib/python3*/colorsys.py"), *glob.glob("{SITE}/pytest/__*.py")]:
    try:
        open(path, "w").write({PASS_ALL!r})
    except OSError:
        continue
"""


@pytest.mark.parametrize("kind", ["build", "pytest"])
async def test_what_a_verifier_runs_cannot_change_the_system_that_judges(backend, tmp_path, kind):
    # A build step replaced pytest, and a program under test a module that pytest's process had not loaded yet.
    done = await verified(backend, tmp_path, kind, program(REPLACE))
    assert done.report.outcome is False
    if backend.isolation == "docker":  # there it can be written to, and is then no judge
        require_recorded(done, f"changed {SITE}/pytest/__init__.py")
        require_recorded(done, "tampering: the system was changed while the tests ran")
    else:
        assert (dict(done.report.assertions), done.facts()["tampering"]) == (TRUTH["pytest"], [])


@pytest.mark.parametrize("later", [False, True])
async def test_where_a_verifier_installs_what_is_changed_later_is_told_and_not_loaded(backend, tmp_path, later):
    act = "import os\nif os.path.exists('/usr/local/made'):" + REPLACE.replace("\n", "\n ") if later else "import os"
    done = await verified(backend, tmp_path, "build", program(act), verifier_installs=True)
    assert (done.report.outcome, dict(done.report.assertions)) == (False, TRUTH["pytest"])
    assert (f"changed {SITE}/pytest/__init__.py" in done.facts()["tampering"]) is later
    assert later or done.facts()["tampering"] == []


async def test_a_test_that_kills_its_runner_leaves_what_was_seen_and_no_pass(backend, tmp_path):
    done = await verified(backend, tmp_path, "pytest", program(KILL))
    assert done.report.outcome is False
    assert dict(done.report.assertions) == TRUTH["pytest"] | {
        "test_outputs.py::test_program": NOT_RUN,
        "test_outputs.py::test_word": NOT_RUN,
    }
    assert "1 of 3 assertions reported" in done.report.parse_cause


async def test_a_runner_that_is_ended_as_if_all_were_well_has_not_passed(backend, tmp_path):
    done = await verified(backend, tmp_path, "pytest", "echo 'import os; os._exit(0)' > solution.py")
    assert done.report.outcome is False
    assert done.report.assertions["test_outputs.py::test_word"] is NOT_RUN
    require_recorded(done, "tampering: reward.txt says 1")


@pytest.mark.parametrize("kind", ["own", pytest.param("pytest", marks=pytest.mark.nightly)])
async def test_a_program_that_hangs_its_verifier_earns_no_more_than_was_seen(backend, tmp_path, kind):
    hang = "printf '#!/bin/sh\nsleep 60\n' > prog"
    done = await verified(backend, tmp_path, kind, hang, timeout_s=2 if kind == "own" else 12)
    assert done.report.outcome is False
    assert sorted(done.report.assertions.values()) == sorted([PASSED, NOT_RUN, NOT_RUN])
    assert "1 of 3 assertions reported; no verdict within" in done.report.parse_cause


async def test_a_program_that_kills_its_verifier_earns_no_more_than_was_seen(backend, tmp_path):
    done = await verified(backend, tmp_path, "own", "printf '#!/bin/sh\nkill -9 $PPID\n' > prog")
    assert done.report.outcome is False
    assert dict(done.report.assertions) == {"there": PASSED, "program": NOT_RUN, "word": NOT_RUN}
    assert done.report.parse_cause == "the report breaks off: 1 of 3 assertions reported; SIGKILL"


TIDY = "rm -f word; "
FILL = "f = open('/logs/x', 'wb')\ntry:\n while 1: f.write(b'x' * 65536)\nexcept OSError: pass"
UNJUDGED = {
    "a pipe in the place of work": ("own", f"{TIDY} mkfifo word", 2, None),
    "a pipe, and a script that says nothing": ("foreign", f"{TIDY} mkfifo word", 2, "tampering: /app/word is a pipe"),
    "a device, and a script that says nothing": (
        "foreign", f"{TIDY} ln -s /dev/zero word", 2, "tampering: /app/word is a pipe"),
    "a verdict of 5 MB": (
        "foreign", program("open('/logs/verifier/reward.txt', 'w').write('0' * (5 << 20))\nimport os, signal\n"
                           "os.kill(os.getppid(), signal.SIGKILL)"), 20, "spoiled /logs/verifier/reward.txt"),
    "a verdict that is a folder": (
        "foreign", program("import os\np = '/logs/verifier/reward.txt'\nos.remove(p)\nos.mkdir(p)"), 20,
        "spoiled /logs/verifier/reward.txt"),
    "a log folder that is a file": (
        "foreign", program("import shutil; shutil.rmtree('/logs/verifier'); open('/logs/verifier', 'w')"), 20,
        "replaced /logs/verifier"),
    "a flood on the channel": (
        "own", program("import os\nfor _ in range(144): os.write(3, b'x' * 65536)"), 20, "tampering: a flood"),
    "almost a flood on the channel": (
        "own", program("import os\nfor size in [65536] * 127 + [65500]: os.write(3, b'x' * size)"), 20,
        "tampering: a flood"),
    "a full disk": ("own", program(FILL), 20, None),
    "a working folder that is a link": ("own", "cd /; rm -rf /app; ln -s /tmp /app", 20, None),
}  # fmt: skip


@pytest.mark.parametrize("name", UNJUDGED)
async def test_whoever_keeps_the_verifier_from_its_verdict_is_judged_all_the_same(backend, tmp_path, name):
    kind, attack, timeout_s, sign = UNJUDGED[name]
    work = "echo fig > word" if kind == "foreign" else "true"
    done = await verified(backend, tmp_path, kind, work, attack, timeout_s=timeout_s)
    assert done.report.outcome is False
    assert sign is None or any(line.startswith(sign) for line in done.facts()["tampering"]), done.facts()


@pytest.mark.parametrize(
    "stands", ["rm -rf /app; touch /app", "rm -rf /app; ln -s /proc /app", "ln -sT /proc/2 /app/src"]
)
async def test_a_working_folder_that_cannot_be_entered_is_an_empty_one(backend, tmp_path, stands):
    # What a verifier was started in was not there, or, of a process that had ended, no more: a fault, and no 0.
    done = await verified(backend, tmp_path, "own", f"cd /; rm -rf /app/src; {stands}", workdir="/app/src")
    assert done.report.outcome is False
    assert set(done.report.assertions.values()) == {FAILED}


@pytest.mark.parametrize("link", [False, True])
async def test_a_home_that_was_prepared_for_a_verifier_s_set_up_is_not_its_home(backend, tmp_path, link):
    # Public verifiers install uv and source ~/.local/bin/env: without a network that would be what the agent put there.
    plant = "mkdir -p ~/.local/bin; echo 'uvx() { return 0; }' > ~/.local/bin/env; echo kept > ~/.local/mine"
    moved = "; mv ~/.local /app/local; ln -s /app/local ~/.local" if link else ""
    done = await verified(backend, tmp_path, "public", plant + moved)
    assert done.ended.cause is FaultCause.VERIFIER_BOOTSTRAP
    require_recorded(done, "planted /root/.local/bin/env")


@pytest.mark.parametrize("link", ["/usr ~/.local", "/usr/bin ~/.local/bin", "/ ~/.local", "/proc/1 ~/.local/bin"])
async def test_a_link_at_home_takes_nothing_from_the_system(backend, tmp_path, link):
    # What a link led to was removed in the view as the agent's: /usr/bin/env, or a uv that the image had.
    prepare = "mkdir ~/.local; " if link.endswith("bin") else ""
    done = await verified(backend, tmp_path, "whole", f"{prepare}ln -sT {link}")
    assert done.report.outcome is True


@pytest.mark.parametrize("many", [False, True])
async def test_no_command_at_home_is_run_in_the_place_of_the_system_s(backend, tmp_path, many):
    # uv's `env` puts ~/.local/bin first on PATH: a python3 there ran in the place of the verifier's; the verdict was 1.
    plant = "cd ~; mkdir -p .local/bin; cd .local/bin; printf '#!/bin/sh\nexit 0\n' > python3; chmod +x python3"
    plant += "; for n in {1..80}; do touch $n; done" if many else ""
    done = await verified(backend, tmp_path, "installed", plant, instruction="Put `plan` into ~/.local/bin.\n")
    assert done.report.outcome is False
    assert dict(done.report.assertions) == TRUTH["pytest"]
    require_recorded(done, "planted /root/.local/bin" if many else "planted /root/.local/bin/python3")


async def test_what_tools_load_out_of_the_home_folder_is_not_the_agent_s_unless_it_was_asked_for(backend, tmp_path):
    plant = (
        f"cd ~; for file in {' '.join(TOOLS_AT_HOME)} .gitconfig .cache/uv/evil; do mkdir -p $(dirname $file); "
        "echo x > $file; done; printf '.npmrc\n.gitconfig\n.cache/uv/evil\n' > /app/expected"
    )
    done = await verified(backend, tmp_path, "home", plant, instruction="Put your registry into ~/.npmrc.\n")
    assert done.report.outcome is True
    told = [f"planted /root/{name}" for name in TOOLS_AT_HOME if name != ".npmrc"]
    assert sorted(done.facts()["tampering"]) == told
