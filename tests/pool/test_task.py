"""What load_task accepts, and what it says about what it refuses."""

import shutil
from pathlib import Path

import pytest

from components.config import SandboxConfig
from components.errors import TaskError
from components.pool import directory_digest, load_task


def problems(folder: Path) -> tuple[str, ...]:
    with pytest.raises(TaskError) as caught:
        load_task(folder)
    return caught.value.problems


def test_a_generated_task_loads_with_its_metadata(task_folder: Path) -> None:
    task = load_task(task_folder)
    assert task.ref.pool_id == "pool"
    assert task.ref.task_id == "train-00000"
    assert task.ref.category in {"files", "text", "search", "git"}
    assert (task.ref.lineage, task.ref.parents, task.ref.round) == ((), (), "")
    assert task.metadata["generator"] == "1"
    assert task.ref.assertion_ids
    assert task.ref.fail_to_pass == ()
    assert (task.manifest.agent_timeout_s, task.manifest.verifier_timeout_s) == (60.0, 30.0)
    assert task.solution_dir == task_folder / "solution"
    assert task.instruction.startswith("1:")


def test_a_task_may_say_that_its_verifier_installs_something(task_folder: Path) -> None:
    assert load_task(task_folder).verifier_installs is False
    manifest = task_folder / "task.toml"
    manifest.write_text(manifest.read_text().replace("[metadata]", "[metadata]\nverifier_installs = true", 1))
    assert load_task(task_folder).verifier_installs is True
    manifest.write_text(manifest.read_text().replace("verifier_installs = true", "verifier_installs = 1"))
    assert problems(task_folder) == ("task.toml: metadata.verifier_installs: must be true or false, is 1",)


def test_limits_of_the_task_hold_up_to_those_of_the_node(task_folder: Path) -> None:
    spec = load_task(task_folder).sandbox_spec(SandboxConfig(memory_mb=64, disk_mb=256))
    assert (spec.memory_mb, spec.disk_mb, spec.network, spec.workdir) == (64, 32, "none", "/app")


def test_every_problem_is_listed_at_once_with_its_place(task_folder: Path) -> None:
    shutil.rmtree(task_folder / "tests")
    (task_folder / "environment" / "Dockerfile").unlink()
    (task_folder / "solution" / "solve.sh").unlink()
    (task_folder / "instruction.md").write_bytes(b"caf\xe9")
    (task_folder / "task.toml").write_text(
        'version = "2.0"\nmetadata = 3\n[agent]\ntimeout_sec = "long"\n[verifier]\ntimeout_sec = -1\nenv = {A = 1}\n'
        'environment_mode = "separate"\n[environment]\nos = "windows"\ngpus = 1\nmemory = "much"\ncpus = true\n'
        '[[steps]]\nname = "a"\n'
    )
    assert problems(task_folder) == (
        "instruction.md: not UTF-8 (byte 3)",
        "task.toml: schema_version: '2.0' is not supported (1.0 to 1.4)",
        "task.toml: steps: multi-step tasks are not supported",
        "task.toml: verifier.environment_mode: a verifier in a container of its own is not supported",
        "task.toml: environment.os: 'windows' is not supported (linux)",
        "task.toml: environment.gpus: no box has a GPU",
        "task.toml: metadata.lineage: [metadata] must be a table",
        "task.toml: agent.timeout_sec: must be a number of seconds, is 'long'",
        "task.toml: verifier.timeout_sec: must be positive, is -1",
        "task.toml: verifier.env: must be a table of strings, is {'A': 1}",
        "task.toml: environment.cpus: must be a number, is True",
        "task.toml: environment.memory: must be a size like \"2G\", is 'much'",
        "task.toml: metadata.category: [metadata] must be a table",
        "task.toml: metadata.difficulty: [metadata] must be a table",
        "task.toml: metadata.assertion_ids: [metadata] must be a table",
        "task.toml: metadata.verifier_installs: [metadata] must be a table",
        "tests/: missing",
        "environment/: Dockerfile is missing, and task.toml names no environment.docker_image",
        "solution/: solve.sh is missing",
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("tests/test.sh", "tests/: test.sh is missing"),
        ("task.toml", "task.toml: missing"),
        ("instruction.md", "instruction.md: missing"),
    ],
)
def test_a_missing_file_is_named(task_folder: Path, path: str, said: str) -> None:
    (task_folder / path).unlink()
    assert problems(task_folder) == (said,)


def test_an_empty_instruction_and_broken_toml_are_refused(task_folder: Path) -> None:
    (task_folder / "instruction.md").write_text(" \n")
    (task_folder / "task.toml").write_text("[agent\n")
    first, second = problems(task_folder)
    assert first == "instruction.md: empty"
    assert second.startswith("task.toml: not valid TOML: ")
    assert "line 1" in second


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path / "nothing") == ("is not a directory",)


@pytest.mark.parametrize("version", ['version = "1.0"', 'schema_version = "1.1"', 'schema_version = "1.4"', ""])
def test_schemas_and_legacy_keys_are_understood(task_folder: Path, version: str) -> None:
    (task_folder / "task.toml").write_text(
        f'{version}\n[metadata]\ncategory = "debugging"\nexpert_time_estimate_min = 5.0\n[agent]\ntimeout_sec = 900.0\n'
        '[environment]\nmemory = "2G"\nstorage = "10G"\nallow_internet = true\n'
    )
    task = load_task(task_folder)
    assert (task.manifest.memory_mb, task.manifest.disk_mb) == (2_048, 10_240)
    assert task.manifest.verifier_timeout_s == 600.0
    assert task.manifest.agent_timeout_s == 900.0
    assert task.ref.category == "debugging"


@pytest.mark.parametrize(
    ("metadata", "ancestors", "named"),
    [
        ('lineage = ["a", "b"]\nfamily = "f"', ("a", "b"), {"family": "f"}),
        (
            'parent_id = "p"\nseed_id = "s"\nround = 7\ncohort = 3',
            ("s", "p"),
            {"parent": "p", "round": "7", "cohort": "3"},
        ),
        (
            '[metadata.lineage]\nroot = "s"\nparent_task = "s"\ngeneration = 1\nfamily = "f"\noperator = "deepen"',
            ("s",),
            {"parent": "s", "round": "1", "family": "f", "operator": "deepen"},
        ),
        ('parents = ["p", "q"]\nparent = "p"\nlineage = ["s", "p"]', ("s", "p"), {"parent": "p"}),
        ("", (), {}),
    ],
)
def test_the_lineage_of_synthesised_tasks_is_read_under_every_name(
    task_folder: Path, metadata: str, ancestors: tuple[str, ...], named: dict[str, str]
) -> None:
    (task_folder / "task.toml").write_text(f"\ufeff[metadata]\n{metadata}\n")
    task = load_task(task_folder)
    assert task.ref.lineage == ancestors
    assert task.manifest.lineage.named() == named
    assert task.ref.parents[:1] == tuple(value for name, value in named.items() if name == "parent")
    assert named.items() <= task.metadata.items()


def test_a_lineage_that_cannot_be_read_is_told_key_by_key(task_folder: Path) -> None:
    (task_folder / "task.toml").write_text("[metadata.lineage]\nparent = [1]\ncohort = true\n")
    assert problems(task_folder) == (
        "task.toml: metadata.lineage.parent: must be a name or a number, is [1]",
        "task.toml: metadata.lineage.cohort: must be a name or a number, is True",
    )
    (task_folder / "task.toml").write_text("[metadata]\nparents = [1]\n")
    assert problems(task_folder) == ("task.toml: metadata.parents: must be a list of strings, is [1]",)
    (task_folder / "task.toml").write_text("[metadata]\nlineage = 3\n")
    assert problems(task_folder) == ("task.toml: metadata.lineage: must be a list of ancestors or a table, is 3",)


def test_a_task_without_a_solution_loads(task_folder: Path) -> None:
    """Only curation needs one."""
    shutil.rmtree(task_folder / "solution")
    assert load_task(task_folder).solution_dir is None


def test_the_digest_covers_bytes_names_and_modes_and_nothing_else(task_folder: Path, tmp_path: Path) -> None:
    digest = directory_digest(task_folder)
    twin = tmp_path / "elsewhere"
    shutil.copytree(task_folder, twin)
    assert directory_digest(twin) == digest
    script = twin / "tests" / "test.sh"
    script.chmod(0o644)
    assert directory_digest(twin) != digest
    script.chmod(0o755)
    script.write_text(script.read_text() + "\n")
    assert directory_digest(twin) != digest
