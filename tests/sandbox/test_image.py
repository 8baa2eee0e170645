"""The Dockerfile subset."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.errors import TaskError
from components.sandbox import CopyStep, FileEntry, RunStep, SandboxSpec, read_dockerfile


def written(folder: Path, text: str) -> Path:
    (folder / "Dockerfile").write_text(text)
    return folder


def test_the_five_instructions_apply_in_order(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "a.txt").write_text("a")
    (tmp_path / "run.sh").write_text("echo")
    (tmp_path / "run.sh").chmod(0o755)
    image = read_dockerfile(
        written(
            tmp_path,
            "# comment\nFROM ubuntu:24.04\n\n"
            'ENV A=1 B="two words"\nENV OLD style value\nWORKDIR /srv\nWORKDIR app$A\n'
            "COPY src/ data\nCOPY run.sh /usr/local/bin/\n"
            'RUN echo one && \\\n    echo two\nRUN ["echo", "a b"]\nENV A=2\n',
        )
    )
    assert (image.base, image.workdir) == ("ubuntu:24.04", "/srv/app1")
    assert image.env == {"A": "2", "B": "two words", "OLD": "style value"}
    copies = {path: entry for step in image.steps if isinstance(step, CopyStep) for path, entry in step.files.items()}
    assert copies["/srv/app1/data/deep/a.txt"] == FileEntry(b"a")
    assert copies["/usr/local/bin/run.sh"] == FileEntry(b"echo", 0o755)
    runs = [step for step in image.steps if isinstance(step, RunStep)]
    assert [(run.command, run.line, run.env["A"]) for run in runs] == [
        ("echo one &&  echo two", 10, "1"),
        ("echo 'a b'", 12, "1"),
    ]


def test_variables_are_expanded_as_docker_does(tmp_path: Path) -> None:
    text = (
        "ARG BASE=x\nFROM $BASE:1\nARG BASE\nARG GIVEN=g\n"
        "ENV PATH=/mine:$PATH A=${NONE:-d}${GIVEN:+s}${NONE:+t}\n"
        "ENV GIVEN=environment\nWORKDIR /w/$GIVEN/$BASE\n"
    )
    image = read_dockerfile(written(tmp_path, text))
    assert (image.base, image.line, image.workdir) == ("x:1", 2, "/w/environment/x")
    assert image.env["PATH"].startswith("/mine:/usr/local/sbin:")
    assert image.env["A"] == "ds"


def test_a_copy_to_a_name_renames_and_globs_need_a_folder(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(name)
    image = read_dockerfile(written(tmp_path, "FROM x\nWORKDIR /app\nCOPY a.py main.py\nCOPY *.py lib/\nCOPY . /all\n"))
    paths = {path for step in image.steps if isinstance(step, CopyStep) for path in step.files}
    assert {"/app/main.py", "/app/lib/a.py", "/app/lib/b.py", "/all/a.py", "/all/Dockerfile"} <= paths


def test_every_problem_is_listed_with_its_line(tmp_path: Path) -> None:
    text = "FROM a\nUSER a b\nCOPY missing x\nCOPY --chown=1 a b\nCOPY ../up x\nFROM b\nCMD x\nENV 1=2\nWORKDIR\n"
    with pytest.raises(TaskError) as caught:
        read_dockerfile(written(tmp_path, text))
    problems = "\n".join(caught.value.problems)
    for part in (
        "line 2: USER",
        "line 3: COPY",
        "line 4: COPY",
        "line 5: COPY",
        "line 6: FROM",
        "line 7: CMD",
        "line 8: ENV",
        "line 9: WORKDIR",
    ):
        assert part in problems


def test_a_folder_without_dockerfile_or_base_is_a_task_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no Dockerfile"):
        read_dockerfile(tmp_path)
    with pytest.raises(TaskError, match="no FROM"):
        read_dockerfile(written(tmp_path, "RUN true\n"))


@pytest.mark.parametrize(
    "text",
    [
        "FROM x\nRUN true \\\u00a0\nADD http://inner/ /x\n",
        "FROM x\nRUN true \\\f\nADD http://inner/ /x\n",
        "# escape=`\nFROM x\nRUN true \\\nADD http://inner/ /x\n",
        "# a\n#  Escape = `\nFROM x\nRUN true \\\nADD http://inner/ /x\n",
    ],
)
def test_no_instruction_is_hidden_that_an_engine_would_see(tmp_path: Path, text: str) -> None:
    with pytest.raises(TaskError, match=r"ADD is not supported|escape"):
        read_dockerfile(written(tmp_path, text))


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(b"# comment\r\nFROM x\r\nRUN a \\\r\n  b\r\n")
    (step,) = read_dockerfile(tmp_path).steps
    assert isinstance(step, RunStep)
    assert step.command.split() == ["a", "b"]


@pytest.mark.parametrize("source", ["..", "*/../..", "../*"])
def test_a_copy_brings_nothing_of_the_task_around_its_environment(tmp_path: Path, source: str) -> None:
    environment = tmp_path / "environment"
    (environment / "inner").mkdir(parents=True)
    (tmp_path / "solution").mkdir()
    with pytest.raises(TaskError, match="not in the task's environment"):
        read_dockerfile(written(environment, f"FROM x\nCOPY {source} /x\n"))


def test_links_in_the_environment_are_copied_as_links(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "shadow").symlink_to("/etc/shadow")
    (tmp_path / "out").symlink_to("/etc")
    image = read_dockerfile(written(tmp_path, "FROM x\nCOPY d /d\n"))
    copies = {path: entry for step in image.steps if isinstance(step, CopyStep) for path, entry in step.files.items()}
    assert copies["/d/shadow"].kind == "symlink"
    with pytest.raises(TaskError, match="not in the task's environment"):
        read_dockerfile(written(tmp_path, "FROM x\nCOPY out/hostname /h\n"))


def test_a_spec_knows_whether_it_needs_a_base(tmp_path: Path) -> None:
    assert not SandboxSpec(files={"/app/x": b""}).changes_system()
    assert SandboxSpec(files={"/app/../usr/bin/x": b""}).changes_system()
    assert SandboxSpec(setup=("true",)).changes_system()
    assert SandboxSpec(setup=("true",)).digest() != SandboxSpec(setup=("false",)).digest()
    with pytest.raises(ValueError, match="absolute"):
        SandboxSpec(workdir="app")


@pytest.mark.parametrize("word", ["<<EOF", "<<eof", "<<-'end'", '<<"End" > /x', "3<<text"])
def test_a_text_within_a_run_is_refused_by_its_line(tmp_path: Path, word: str) -> None:
    with pytest.raises(TaskError, match=r"line 2: RUN: flags and heredocs are not supported"):
        read_dockerfile(written(tmp_path, f"FROM x\nRUN cat {word}\n"))


@pytest.mark.parametrize("command", ["cat <<< word", "echo $((1 << n)) $((1<<n))", "grep '<tag><<' f"])
def test_what_only_looks_like_a_text_is_run(tmp_path: Path, command: str) -> None:
    [step] = read_dockerfile(written(tmp_path, f"FROM x\nRUN {command}\n")).steps
    assert isinstance(step, RunStep)
    assert step.command == command
