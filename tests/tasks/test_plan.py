"""`--dry-run`: the plan of a campaign, or everything that forbids it; nothing is written, and nothing started."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flows.campaign
from components.cluster import REPOSITORY
from components.config import load
from components.errors import ConfigError
from tasks.launch import main
from tasks.plan import course, require_ready, require_sound
from tasks.site import Site
from tasks.stack.process import Identity
from tasks.stack.supervisor import Record
from tests.answering import answering
from tests.buckets import Server, bucket_server, s3_server
from tests.disks import small_disk

__all__ = ["bucket_server", "s3_server"]
PAPER, MINIATURE = (REPOSITORY / "configs" / f"{name}.yaml" for name in ("t1-122b", "miniature"))
BROKEN = {
    "trainer.layout.tp=3": "trainer.layout.tp 3 does not divide model.num_key_value_heads 2: lower tp",
    "trainer.device_memory_gib=40": "the campaign does not fit: ",
    "trainer.kernels.moe_router_fusion=true": "trainer.kernels.moe_router_fusion: is refused: a fused router",
    "harness.compaction.summary_max_tokens=20000": "a summary could be asked for where none fits",
    "rl.legs=0": "rl.legs: Input should be greater than or equal to 1",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PREFECT_API_URL", "LONGSHELL_RAY_JOBS", "LONGSHELL_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LONGSHELL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def dry_run(capsys: pytest.CaptureFixture[str], config: Path, *overrides: str) -> tuple[int, str]:
    code = main(flows.campaign.campaign, [f"--config={config}", "--dry-run", *overrides], reports=True)
    output = capsys.readouterr()
    return code, output.out + output.err


def test_the_papers_plan_tells_every_leg_job_flag_and_byte(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = dry_run(capsys, PAPER)
    assert code == 0
    assert text.endswith("this machine: 1 problem\n  - model.path: there is no folder /models/Qwen3.5-122B-A10B\n")
    config = load(PAPER)
    for job in course(config):
        assert f"  {job.task}: {job.submission_id(config)}" in text
        if job.exact:
            spec = f"{home}/store/{job.spec(config).key('spec.json')}"
            assert f"-m components.jobs.{job.ask.stage} {spec}" in text
    for part in (
        "JOBS: 39",
        "steps  100 to 109",
        f"leaves {home}/store/campaigns/t1-122b-s1/rl/legs/11/checkpoint",
        f"keeps  {home}/store/campaigns/t1-122b-s1/rl/trials/<step>",
        "campaign.json, table.json, results.json; of a job: jobs/<job>/{spec.json,",
        "each of 8 samplers: num_cpus=0, num_gpus=8",
        "--context-length 96000 --max-running-requests 80",
        "--enable-return-routed-experts",
        "128 processes on the job's machine: tp 2, pp 4, cp 8, dp 2, ep 32",
        "83.3 GiB on the last stage, within the 95 GiB",
        "(Eq 21)",
        "split (Eq 22): 64 devices generate and 128 train",
        "batches 2,224.4",
        "experiment longshell, registered model longshell-t1-122b-s1",
        "deployments of it (`make ui`): campaign/campaign",
        "model.path: /models/Qwen3.5-122B-A10B (is not here)",
    ):
        assert part in text
    assert not home.exists()


def test_the_miniatures_plan_has_a_base_model_and_embedded_samplers(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = dry_run(capsys, MINIATURE, "rl.legs=2")
    assert code == 0
    tasks = [job.task for job in course(load(MINIATURE, ["rl.legs=2"]))]
    models = ["base", "evaluate-base", "sft", "evaluate-sft"]
    legs = ["rl-leg-1", "evaluate-leg-1", "diagnose-1", "rl-leg-2", "evaluate-leg-2", "diagnose"]
    assert tasks == ["curate", *models, *legs]
    assert "-m components.sampler.server --model '<campaigns/miniature-s1/sft/checkpoint>' --host 127.0.0.1" in text
    assert "of this machine" in text
    assert "nothing beyond this repository" in text
    assert not home.exists()


@pytest.mark.parametrize("override", BROKEN)
def test_a_broken_configuration_is_refused_with_what_to_do(
    home: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    code, text = dry_run(capsys, PAPER, override)
    assert code == 2
    assert BROKEN[override] in text
    assert "JOBS" not in text
    assert not home.exists()


def test_everything_that_is_broken_is_listed_at_once(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_text("a file")
    monkeypatch.setenv("LONGSHELL_STORE", "ftp://bucket/prefix")
    code, text = dry_run(capsys, PAPER, *BROKEN)
    assert code == 2
    for said in (*BROKEN.values(), f"state directory {home} cannot be made", "no store of kind ftp"):
        assert said in text
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_store_that_cannot_be_made_is_refused_before_anything_starts(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LONGSHELL_STORE", str(tmp_path / "file" / "store"))
    code, text = dry_run(capsys, MINIATURE)
    assert code == 2
    assert (
        f"artifact store {tmp_path}/file/store cannot be made ({tmp_path}/file is a file); set LONGSHELL_STORE" in text
    )
    assert not home.exists()


def test_buckets_that_are_not_there_are_listed_beside_everything_else(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bucket_server: Server
) -> None:
    monkeypatch.setenv("LONGSHELL_STORE", "s3://nowhere/longshell")
    code, text = dry_run(capsys, PAPER, *BROKEN)
    assert code == 2
    for said in (*BROKEN.values(), "LONGSHELL_STORE: bucket nowhere: cannot open: there is no such bucket; make it"):
        assert said in text

    monkeypatch.setenv("LONGSHELL_STORE", f"s3://{bucket_server.bucket()}/longshell")
    assert dry_run(capsys, MINIATURE)[0] == 0
    code, text = dry_run(capsys, PAPER, "pool.imported={train: ['s3://gone/tasks'], heldout: [/tasks]}")
    assert (code, "pool.imported.train.0: bucket gone: cannot open: there is no such bucket" in text) == (2, True)


def test_changes_may_stand_on_both_sides_of_the_option(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--config={MINIATURE}", "rl.legs=2", "--dry-run", "name=other"]
    assert main(flows.campaign.campaign, arguments, reports=True) == 0
    text = capsys.readouterr().out
    assert "plan of campaign other-s1" in text
    assert "rl-leg-2:" in text
    assert "rl-leg-3:" not in text


def test_a_configuration_under_a_taken_name_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tasks.campaign import claim

    claim(load(MINIATURE), Site.current().store())
    before = sorted(home.rglob("*"))
    assert dry_run(capsys, MINIATURE)[0] == 0
    code, text = dry_run(capsys, MINIATURE, "rl.legs=2")
    assert (code, "choose another name" in text) == (2, True)
    assert sorted(home.rglob("*")) == before


def test_what_is_done_already_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load(MINIATURE)
    Site.current().store().put_json(course(config)[0].spec(config).key("result.json"), {})
    _, text = dry_run(capsys, MINIATURE)
    assert "1 of them are done already" in text
    assert text.count("its result is reused") == 1


def test_a_real_start_lists_the_same_and_wants_the_model_here(home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        require_sound(str(PAPER), list(BROKEN), Site.current())
    assert len(caught.value.problems) >= len(BROKEN)
    with pytest.raises(ConfigError, match=r"model\.path: there is no folder /models/"):
        require_sound(str(PAPER), [], Site.current())


ASKING = (
    "sft.demonstrations=null",
    "sft.rejection={teacher: {base_url: 'http://h/v1', model: m}}",
    "sandbox.docker={host: 'tcp://h:2376', tls: /nowhere/tls}",
    "pool.imported={train: [/nowhere/tasks], heldout: [/nowhere/tasks]}",
    "pool.audit={judge: {base_url: 'http://h/v1', model: m}}",
)
LACKING = (
    "sandbox.docker.tls: there is no /nowhere/tls",
    "pool.imported.train.0: there is no /nowhere/tasks",
    "pool.imported.heldout.0: there is no /nowhere/tasks",
    "pool.audit.judge.api_key_env: the environment variable JUDGE_API_KEY is not set",
    "sft.rejection.teacher.api_key_env: the environment variable TEACHER_API_KEY is not set",
)


def test_what_a_campaign_would_lack_on_this_machine_is_told_beside_its_plan_and_refused_at_its_start(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUDGE_API_KEY", "TEACHER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    code, text = dry_run(capsys, MINIATURE, *ASKING)
    plan, _, refused = text.partition("A start from here would be refused. this machine: 5 problems")
    assert code == 0, "the configuration is sound"
    for said in LACKING:
        assert said in refused
    for said in ("sandbox.docker.tls: /nowhere/tls (is not here)", "the environment variable TEACHER_API_KEY\n"):
        assert said in plan
    config = load(MINIATURE, ASKING)
    with pytest.raises(ConfigError, match="JUDGE_API_KEY"):
        require_ready(config, Site.current())
    with answering() as ray:
        monkeypatch.setenv("LONGSHELL_RAY_JOBS", ray)
        text = dry_run(capsys, MINIATURE, *ASKING)[1]
    assert "would be refused" not in text, "a cluster may have what this one has not"
    refused = dry_run(capsys, MINIATURE, *ASKING)[1]
    assert "A start from here would be refused. this machine: 1 problem" in refused
    assert f"LONGSHELL_RAY_JOBS: {ray} cannot be used: " in refused
    assert not home.exists()


def test_a_dry_run_tells_of_a_full_disk_as_the_start_does(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 2) as disk:
        monkeypatch.setenv("LONGSHELL_STORE", str(disk.folder / "store"))
        assert dry_run(capsys, MINIATURE)[0] == 0
        disk.fill()
        code, text = dry_run(capsys, MINIATURE)
        assert (code, f"artifact store {disk.folder}: " in text) == (0, True)
        disk.free()
        monkeypatch.setenv("LONGSHELL_HOME", str(disk.folder / "home"))
        code, text = dry_run(capsys, MINIATURE)
        assert (code, "the services need 50 MB" in text) == (0, True)
        assert list(disk.folder.iterdir()) == []


def test_who_reads_only_the_beginning_of_a_plan_is_told_of_no_error(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        code = main(flows.campaign.campaign, [f"--config={MINIATURE}", "--dry-run"], reports=True)
        gone.flush()
    assert (code, capsys.readouterr().err) == (0, "")


def test_a_plan_tells_of_the_services_that_run_and_of_none_that_has_ended(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A newcomer's, beside `make ui`: it told of servers that it would start, and the campaign used those that ran.
    (home / "stack").mkdir(parents=True)
    alive, gone = Identity.of(os.getpid()), Identity(os.getpid(), 1.0)
    services = {"prefect": {**asdict(alive), "url": "http://p/api"}, "ray": {**asdict(gone), "url": "http://r"}}
    for pinned in (True, False):
        (home / "stack" / "state.json").write_text(json.dumps(asdict(Record("m", pinned, services))))
        _, text = dry_run(capsys, MINIATURE)
        assert ("Prefect http://p/api, which stays (`make ui`)" in text) == pinned
        assert ("Prefect http://p/api, which a campaign has started" in text) != pinned
        assert f"cluster: a head node that is started here, and {'stays' if pinned else 'stopped again'}" in text
    assert [path.name for path in home.rglob("*")] == ["stack", "state.json"]


OVERRIDES = st.sampled_from(
    [*BROKEN, "rl.legs=3", "ppo.critic.warmup=null", "sampler.placement=job", "name=other", "seed=7", "nonsense"]
)


@given(chosen=st.sets(OVERRIDES, max_size=4), config=st.sampled_from([PAPER, MINIATURE]))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_dry_run_writes_nothing_whatever_it_is_asked(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], chosen: set[str], config: Path
) -> None:
    code, _ = dry_run(capsys, config, *sorted(chosen))
    assert code in (0, 2)
    assert list(tmp_path.iterdir()) == []


def test_samples_are_foreseen_between_the_base_model_and_sft_and_so_is_who_makes_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = "teacher: {base_url: 'http://h/v1', model: m, api_key_env: null}"
    for overrides, sampled in ((["sft.rejection={}"], True), ([f"sft.rejection={{{teacher}}}"], False)):
        config = load(MINIATURE, ["sft.demonstrations=null", *overrides])
        jobs = {job.task: job for job in course(config)}
        order = list(jobs)
        assert order.index("base") < order.index("rejection") < order.index("sft")
        made = jobs["rejection"]
        assert jobs["sft"].ask.inputs["samples"] == made.leaves[0] == "campaigns/miniature-s1/rejection/samples"
        assert made.serves == ("campaigns/miniature-s1/base/checkpoint" if sampled else None)
        code, text = dry_run(capsys, MINIATURE, "sft.demonstrations=null", *overrides)
        assert code == 0
        assert ("sft.rejection.teacher: http://h/v1" in text) == (not sampled)
    assert "samples" not in {job.task: job for job in course(load(MINIATURE))}["sft"].ask.inputs
