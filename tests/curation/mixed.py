"""A pool of sound and of broken task directories, each broken in one way that is known by name.

The sound ones are the miniature's and some in other people's manner: a Dockerfile, a verifier that writes TAP. What is
broken is made of the latter by one change.
"""

from __future__ import annotations

import base64
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from components.config import PoolConfig
from components.pool import Split, generate
from components.pool.directory import write_task

GENERATED = 18
TASK = """version = "1.0"

[metadata]
category = "files"
difficulty = "easy"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 30.0

[environment]
memory = "128M"
storage = "32M"
"""
VERIFIER = """#!/bin/bash
report=/logs/verifier/report.tap
number=0 broken=0
check() {
  number=$((number + 1))
  if eval "$2"; then echo "ok $number - $1" >> $report; else echo "not ok $number - $1" >> $report; broken=1; fi
}
cd /app
%s
echo "1..$number" >> $report
echo $((1 - broken)) > /logs/verifier/reward.txt
"""
ANIMALS = [
    "badger",
    "crane",
    "dingo",
    "egret",
    "ferret",
    "gecko",
    "heron",
    "ibis",
    "jackal",
    "kestrel",
    "lemur",
    "marmot",
    "newt",
    "otter",
    "puffin",
    "quail",
]


def write(
    folder: Path,
    instruction: str,
    solution: str,
    checks: Mapping[str, str],
    files: Mapping[str, str] | None = None,
    run: str = "",
) -> Path:
    """A sound task in the manner of others, unless the arguments are not."""
    parts = {
        "task.toml": TASK,
        "instruction.md": instruction + "\n",
        "environment/Dockerfile": f"FROM debian:trixie-slim\nWORKDIR /app\nCOPY files/ /app/\n{run}",
        "environment/files/readme": "nothing to see\n",
        "tests/test.sh": VERIFIER % "\n".join(f"check {name} '{check}'" for name, check in checks.items()),
        "solution/solve.sh": f"#!/bin/bash\ncd /app\n{solution}\n",
        **{f"environment/files/{name}": text for name, text in (files or {}).items()},
    }
    for name, text in parts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def animal(folder: Path, name: str) -> Path:
    """A sound task about one animal; no two of them share a window of words."""
    return write(
        folder,
        f"Sort {name}s.txt by weight and keep the heaviest {name} in {name}-champion.txt.",
        f"sort -k2 -n {name}s.txt > {name}-sorted.tmp\n"
        f"tail -n 1 {name}-sorted.tmp | cut -d' ' -f1 > {name}-champion.txt\nrm {name}-sorted.tmp",
        {
            "champion": f"[[ $(cat {name}-champion.txt 2>/dev/null) == {name}-two ]]",
            f"{name}-list-kept": f"[[ $(wc -l < {name}s.txt) == 3 ]]",
        },
        {f"{name}s.txt": f"{name}-one 12\n{name}-two 40\n{name}-three 31\n"},
    )


def made(folder: Path) -> Path:
    """`folder`, which then exists."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new))


def executed(folder: Path) -> dict[str, tuple[str, str]]:
    """Writes tasks whose defects only execution, or a look at all their files, can show.

    Returns:
        By task the reason of its rejection and a part of its detail.
    """
    expected: dict[str, tuple[str, str]] = {}

    def broken(name: str, reason: str, detail: str, by: Callable[[Path], object]) -> None:
        by(animal(folder / name, f"{name.split('-')[0]}{len(expected)}"))
        expected[name] = reason, detail

    def script(text: str) -> Callable[[Path], object]:
        return lambda task: (task / "tests/test.sh").write_text(f"#!/bin/bash\ncd /app\n{text}")

    def solve(text: str) -> Callable[[Path], object]:
        return lambda task: (task / "solution/solve.sh").write_text(f"#!/bin/bash\ncd /app\n{text}")

    broken("volume", "build", "VOLUME is not supported", lambda task: _append(task, "VOLUME /data\n"))
    broken("unbuilt", "build", "RUN false", lambda task: _append(task, "RUN false\n"))
    broken("unsolved", "no_solution", "solve.sh is missing", lambda task: shutil.rmtree(task / "solution"))
    broken("mute", "no_report", "no verdict was written", script("true\n"))
    broken("verdict", "binary_only", "names no assertion", _verdict_alone)
    broken("wrong", "oracle_fails", "exit 3: cannot find it", solve("echo cannot find it\nexit 3\n"))
    broken("stern", "oracle_fails", "the verdict is 0 though every assertion passed", _stern)
    broken("idle", "noop_passes", "passes every assertion", lambda t: _checks(t, {"there": "[[ -f readme ]]"}))
    broken("mild", "noop_passes", "is given the verdict 1", _mild)
    broken(
        "renamed",
        "flaky",
        "assertions differ between runs",
        lambda t: _checks(t, {"at-$RANDOM$RANDOM": 'compgen -G "*champion.txt"'}),
    )
    broken("dice", "flaky", "and the next time", lambda t: _checks(t, {f"d{n}": "((RANDOM % 2))" for n in range(40)}))
    broken(
        "undeclared",
        "undeclared_assertions",
        "task.toml and the report differ",
        lambda task: change(
            task / "task.toml", 'category = "files"', 'category = "files"\nassertion_ids = ["another"]'
        ),
    )
    broken("packed", "leak", "has the bytes of tests/test.sh", _packed_tests)
    broken("pasted", "leak", "telling lines of solution/solve.sh", _pasted_solution)
    broken("joined", "leak", "/opt/old/check has", _joined_tests)
    broken("coded", "leak", "(Base64) has", _coded_solution)
    broken("delegating", "shortcut", "verify.sh emptied", _delegating)
    broken("greedy", "shortcut", "reaches for the verdict: planted /logs/verifier/reward.txt", _greedy)
    broken("pathless", "shortcut", "with planted modules and programs every assertion passes", _pathless)
    broken("touched", "weak_verifier", "are merely touched", _existence)
    broken("shallow", "weak_verifier", "say 'x' and no more", _non_empty)
    broken("half", "weak_verifier", "the instruction asks for /app/half", _half)
    broken("either", "weak_verifier", "without any one of", _either)
    broken("secretive", "hidden_requirement", "/app/zyx/vuq.out, which neither", _secretive)
    return expected


def _append(task: Path, lines: str) -> None:
    dockerfile = task / "environment/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + lines)


def _checks(task: Path, checks: Mapping[str, str]) -> None:
    (task / "tests/test.sh").write_text(
        VERIFIER % "\n".join(f"check {name} '{check}'" for name, check in checks.items())
    )


def _champion(task: Path) -> str:
    """The name of the file that the task asks for."""
    return next(word.rstrip(".") for word in (task / "instruction.md").read_text().split() if "-champion" in word)


def _verdict_alone(task: Path) -> None:
    (task / "tests/test.sh").write_text(
        f"#!/bin/bash\ncd /app\ngrep -q two {_champion(task)}\necho $((1 - $?)) > /logs/verifier/reward.txt\n"
    )


def _stern(task: Path) -> None:
    change(task / "tests/test.sh", "echo $((1 - broken))", "echo 0")


def _mild(task: Path) -> None:
    change(task / "tests/test.sh", "echo $((1 - broken))", "echo 1")


def _packed_tests(task: Path) -> None:
    with tarfile.open(task / "environment/files/backup.bin", "w:gz") as archive:
        archive.add(task / "tests/test.sh", "old/notes.txt")


def _pasted_solution(task: Path) -> None:
    solution = (task / "solution/solve.sh").read_text()
    (task / "environment/files/history").write_text(
        f"# what I did last time\n{solution.replace('cd /app', 'true')}# end\n"
    )


def _joined_tests(task: Path) -> None:
    """The tests in pieces that only the image's own commands put together."""
    text = (task / "tests/test.sh").read_text()
    pieces = [text[at : at + 60] for at in range(0, len(text), 60)]
    for number, piece in enumerate(pieces):
        (task / f"environment/files/piece{number:02}").write_text(piece)
    _append(task, "RUN mkdir -p /opt/old && cat /app/piece* > /opt/old/check && rm /app/piece*\n")


def _coded_solution(task: Path) -> None:
    coded = base64.b64encode((task / "solution/solve.sh").read_bytes())
    (task / "environment/files/key.pem").write_bytes(coded)


def _delegating(task: Path) -> None:
    """The tests believe a program that the agent may change."""
    champion = _champion(task)
    (task / "environment/files/verify.sh").write_text(f"grep -q two {champion}\n")
    _checks(task, {"verified": "bash ./verify.sh"})


def _greedy(task: Path) -> None:
    solution = task / "solution/solve.sh"
    solution.write_text(solution.read_text() + "mkdir -p /logs/verifier\necho 1 > /logs/verifier/reward.txt\n")


def _pathless(task: Path) -> None:
    """The tests find their programs in the folder that the agent works in."""
    _checks(task, {"same": f"PATH=.:$PATH; echo {_two(task)} | cmp -s - {_champion(task)}"})


def _two(task: Path) -> str:
    return f"{_champion(task).removesuffix('-champion.txt')}-two"


def _existence(task: Path) -> None:
    _checks(task, {"there": f"[[ -f {_champion(task)} ]]"})


def _non_empty(task: Path) -> None:
    _checks(task, {"there": f"[[ -s {_champion(task)} ]]"})


def _half(task: Path) -> None:
    instruction, solution = task / "instruction.md", task / "solution/solve.sh"
    name = _champion(task).replace("-champion", "-loser")
    instruction.write_text(instruction.read_text() + f"Put the lightest one in {name}.\n")
    solution.write_text(solution.read_text() + f"sort -k2 -n *s.txt | head -n 1 > {name}\n")


def _either(task: Path) -> None:
    """Two ways to please the verifier, and the solution goes both."""
    (task / "instruction.md").write_text("Leave a mark that says done, wherever you like.\n")
    (task / "solution/solve.sh").write_text("#!/bin/bash\necho done > /app/mark\necho done > /srv/mark\n")
    _checks(task, {"marked": "grep -qs ^done$ /app/mark /srv/mark"})


def _secretive(task: Path) -> None:
    solution = task / "solution/solve.sh"
    solution.write_text(solution.read_text() + f"mkdir zyx\ncp {_champion(task)} zyx/vuq.out\n")
    _checks(task, {"same": f"[[ $(cat zyx/vuq.out) == {_two(task)} ]]"})


def unreadable(folder: Path) -> dict[str, tuple[str, str]]:
    """Writes tasks that cannot be taken in at all; returns as `executed`."""
    expected: dict[str, tuple[str, str]] = {}

    def next_task(name: str, reason: str, detail: str) -> Path:
        expected[name] = reason, detail
        return animal(folder / name, f"{name.split('-')[0]}{len(expected)}")

    (next_task("escaping", "unsafe", "environment/out: is a link that leads out") / "environment/out").symlink_to(
        "../../.."
    )
    (next_task("absolute", "unsafe", "tests/etc: is a link that leads out") / "tests/etc").symlink_to("/etc")
    (next_task("looping", "unsafe", "environment/loop: is a link") / "environment/loop").symlink_to("loop")
    os.mkfifo(next_task("piped", "unsafe", "environment/pipe: is neither") / "environment/pipe")
    with (next_task("huge", "unsafe", "environment/huge: more than 256 MiB") / "environment/huge").open("wb") as file:
        file.truncate((256 << 20) + 1)
    odd = os.fsencode(next_task("named", "unsafe", "is no UTF-8") / "environment/files") + b"/\xff\xfe"
    Path(os.fsdecode(odd)).write_text("x")
    (next_task("encoded", "unusable", "instruction.md: not UTF-8 (byte 0)") / "instruction.md").write_bytes(b"\xff\xfe")
    (next_task("nulled", "unusable", "task.toml: not valid TOML") / "task.toml").write_bytes(b"a = \0")
    (next_task("nested", "unusable", "task.toml: not valid TOML: nested too deeply") / "task.toml").write_text(
        "a = " + "[" * 5000 + "]" * 5000
    )
    (next_task("future", "unusable", "schema_version: '9.0' is not supported") / "task.toml").write_text(
        'schema_version = "9.0"\n'
    )
    (
        next_task("several", "unusable", "verifier.timeout_sec: must be positive, is -1; task.toml: environment.memory")
        / "task.toml"
    ).write_text('version = "1.0"\n[verifier]\ntimeout_sec = -1\n[environment]\nmemory = "lots"\n')
    (next_task("blank", "unusable", "instruction.md: empty") / "instruction.md").write_text(" \n")
    shutil.rmtree(next_task("untested", "unusable", "tests/: missing") / "tests")
    (next_task("unstarted", "unusable", "tests/: test.sh is missing") / "tests/test.sh").unlink()
    (next_task("imageless", "unusable", "Dockerfile is missing") / "environment/Dockerfile").unlink()
    (next_task("composed", "unusable", "compose environments") / "environment/docker-compose.yaml").write_text(
        "services: {}"
    )
    expected["zebra"] = "copy", "has the content of"
    shutil.copytree(animal(folder / "yak", "yak"), folder / "zebra")
    animal(folder / "-rf task", "rf")
    expected["-rf task"] = "unsafe", "the name '-rf task'"
    animal(folder / os.fsdecode(b"odd-\xff"), "oddity")
    expected["odd-\\udcff"] = "unsafe", "the name 'odd-\\udcff'"
    return expected


def sound(folder: Path) -> set[str]:
    """Writes tasks of which none has a defect."""
    for task in islice(generate(PoolConfig(max_subtasks=2), Split.TRAIN, seed=9), GENERATED):
        write_task(task, folder / task.task_id)
    for name in ANIMALS:
        animal(folder / name, name)
    return {f"train-{number:05}" for number in range(GENERATED)} | set(ANIMALS) | {"yak"}
