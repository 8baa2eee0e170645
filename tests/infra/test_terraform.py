"""What is built on a cloud: parsed everywhere; formatted, validated and tested with mocks where Terraform is."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.site import Site
from tests.infra.terraform import ROOT, blocks, missing, plugins, resources, terraform

MODULES = {
    "network",
    "storage",
    "database",
    "registry",
    "ray_cluster",
    "sandbox_pool",
    "control_plane",
    "observability",
}


def test_every_module_is_there_local_and_used() -> None:
    called = {block.labels[0]: block.body["source"] for block in blocks() if block.kind == "module"}
    assert called == {name: f"./modules/{name}" for name in MODULES}
    assert {path.name for path in (ROOT / "modules").iterdir()} == MODULES


def test_every_variable_says_what_it_is_and_of_which_type() -> None:
    told = [block for block in blocks() if block.kind in ("variable", "output")]
    assert len(told) > 60
    assert [block.where for block in told if len(block.body.get("description", "")) < 8] == []
    assert [block.where for block in told if block.kind == "variable" and "type" not in block.body] == []


def test_every_variable_is_used() -> None:
    for block in blocks():
        if block.kind == "variable":
            texts = [path.read_text() for path in block.file.parent.glob("*.tf")]
            pattern = rf"\bvar\.{block.labels[0]}\b"
            uses = sum(
                len(re.findall(pattern, re.sub(r"validation \{.*?\n  \}", "", text, flags=re.S))) for text in texts
            )
            assert uses > 0, block.where


def test_the_sandbox_tier_has_no_route_and_gets_none() -> None:
    tables = {block.labels[1]: block.body.get("route") for block in resources("aws_route_table")}
    assert tables.keys() == {"public", "private", "sandbox"}
    assert tables["sandbox"] == []
    assert resources("aws_route") == []
    joined = {block.labels[1]: block.body for block in resources("aws_route_table_association")}
    assert joined["sandbox"]["route_table_id"] == "${aws_route_table.sandbox.id}"
    assert [block.where for block in resources("aws_nat_gateway") if "sandbox" in json.dumps(block.body)] == []


def test_no_name_is_looked_up_but_those_that_are_known() -> None:
    rules = {block.labels[1]: block.body for block in resources("aws_route53_resolver_firewall_rule")}
    lists = {block.labels[1]: block.body["domains"] for block in resources("aws_route53_resolver_firewall_domain_list")}
    assert {name: rule["action"] for name, rule in rules.items()} == {"known": "ALLOW", "every": "BLOCK"}
    assert lists["every"] == ["*"]
    assert rules["known"]["priority"] < rules["every"]["priority"]
    for name, rule in rules.items():
        assert rule["firewall_domain_list_id"] == f"${{aws_route53_resolver_firewall_domain_list.{name}.id}}"
    (joined,) = resources("aws_route53_resolver_firewall_rule_group_association")
    assert joined.body["vpc_id"] == "${aws_vpc.this.id}"
    (config,) = resources("aws_route53_resolver_firewall_config")
    assert config.body["firewall_fail_open"] == "DISABLED"
    assert len(resources("aws_route53_resolver_query_log_config_association")) == 1


def test_the_shared_file_system_is_mounted_by_two_roles_through_its_access_point_and_not_otherwise() -> None:
    said = [text for file, text in _statements() if file == "modules/storage/shared.tf"]
    allowed = [text for text in said if '"Allow"' in text]
    assert len(allowed) == 1
    assert '"elasticfilesystem:AccessPointArn" = aws_efs_access_point.shared.arn' in allowed[0]
    assert '"*"' not in allowed[0]
    assert any("StringNotEquals" in text and "AccessPointArn" in text for text in said if '"Deny"' in text)


def test_the_role_that_the_keys_policy_names_is_there_before_the_key() -> None:
    """KMS refuses a policy with a principal that does not exist: an account's first apply failed."""
    (key,) = resources("aws_kms_key")
    assert "AWSServiceRoleForAutoScaling" in key.file.read_text()
    assert key.body["depends_on"] == ["${aws_iam_service_linked_role.autoscaling}"]
    (role,) = resources("aws_iam_service_linked_role")
    assert role.body["count"] == "${var.autoscaling_role ? 1 : 0}"


def test_nothing_is_open_to_the_world() -> None:
    rules = resources("aws_vpc_security_group_ingress_rule") + resources("aws_vpc_security_group_egress_rule")
    assert len(rules) > 15
    assert [
        rule.where for rule in rules if "0.0.0.0/0" in json.dumps(rule.body) or "::/0" in json.dumps(rule.body)
    ] == []
    # Rules are resources of their own: a group with rules in it would remove those.
    assert [group.where for group in resources("aws_security_group") if {"ingress", "egress"} & group.body.keys()] == []


def test_engines_are_reached_by_ray_alone() -> None:
    mine = [
        rule for rule in resources("aws_vpc_security_group_ingress_rule") if rule.file.parent.name == "sandbox_pool"
    ]
    assert [rule.body["referenced_security_group_id"] for rule in mine] == ["${var.ray_security_group_id}"]


def test_machines_want_imdsv2_one_hop_and_encrypted_disks() -> None:
    machines = resources("aws_instance") + resources("aws_launch_template")
    assert len(machines) == 3
    for machine in machines:
        (options,) = machine.body["metadata_options"]
        assert options["http_tokens"] == "required", machine.where
        assert options["http_put_response_hop_limit"] == 1, machine.where
        disks = [disk for name in ("root_block_device", "ebs_block_device") for disk in machine.body.get(name, [])]
        disks += [disk for mapping in machine.body.get("block_device_mappings", []) for disk in mapping["ebs"]]
        assert disks, machine.where
        assert all(disk["encrypted"] is True and disk["kms_key_id"] == "${var.kms_key_arn}" for disk in disks)


def test_no_statement_allows_a_wildcard_of_actions() -> None:
    statements = list(_statements())
    assert len(statements) > 30
    allowed = [(file, text) for file, text in statements if re.search(r'Effect\s*=\s*"Allow"', text)]
    assert [(file, action) for file, text in allowed for action in _actions(text) if "*" in action] == []
    assert [(file, text) for file, text in statements if "NotAction" in text or "NotPrincipal" in text] == []


def test_every_action_of_a_statement_is_looked_at_also_those_of_a_list_over_several_lines() -> None:
    assert _actions('Action = [\n  "s3:GetObject",\n  "s3:*",\n]\nResource = "*"') == ["s3:GetObject", "s3:*"]
    assert _actions('Action   = "*"\nResource = ["a"]') == ["*"]
    (administers,) = [text for _, text in _statements() if '"AccountAdministers"' in text]
    assert len(_actions(administers)) > 20
    # One has no list of its own: the interface endpoints', whose lists are a local.
    (named,) = [text for _, text in _statements() if not _actions(text)]
    assert re.search(r"Action\s*= each\.value", named)
    lists = (ROOT / "modules" / "network" / "main.tf").read_text()
    assert len(re.findall(r'"(?:ecr|logs|secretsmanager):\w+"', lists)) >= 10
    assert re.findall(r'"[a-z0-9-]+:\w*\*\w*"', lists) == []


def _actions(statement: str) -> list[str]:
    """The actions that a statement lists."""
    lists = re.findall(r'Action\s*=\s*(\[.*?\]|"[^"]*")', statement, flags=re.S)
    return [action for one in lists for action in re.findall(r'"([^"]*)"', one)]


def _statements() -> Iterator[tuple[str, str]]:
    """The innermost braces that have an Effect, with what is within them."""
    for path in sorted(ROOT.rglob("*.tf")):
        text = path.read_text()
        for found in re.finditer(r"Effect\s*=", text):
            depth, start = 0, found.start()
            while depth >= 0:
                start -= 1
                depth += {"}": 1, "{": -1}.get(text[start], 0)
            depth, end = 0, found.end()
            while depth >= 0:
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            yield str(path.relative_to(ROOT)), text[start:end]


def test_no_secret_has_a_value_here() -> None:
    assert resources("aws_secretsmanager_secret_version") == []
    assert resources("random_password") == []
    passwords = [block for block in resources("aws_db_instance") if {"password", "password_wo"} & block.body.keys()]
    assert passwords == []
    assert [path for path in ROOT.rglob("*.tfvars") if re.search(r"(?i)password|secret|token", path.read_text())] == []


def test_databases_are_described_with_the_driver_that_is_installed() -> None:
    """MLflow's was `postgresql://` once: SQLAlchemy 2.1 takes that for psycopg 3, which no image has."""
    plain = {"LONGSHELL_PREFECT_DATABASE": "postgresql://u@h/p", "MLFLOW_TRACKING_URI": "postgresql://u@h/m"}
    site = Site.current(plain)
    (told,) = [block.body["secrets"] for block in blocks() if block.kind == "locals" and "secrets" in block.body]
    assert told["prefect-database"].partition("://")[0] == str(site.prefect_database).partition("://")[0]
    assert told["mlflow-database"].partition("://")[0] == site.tracking_uri.partition("://")[0]


def test_every_exception_of_the_scanner_has_a_reason() -> None:
    skips = [
        line.strip() for path in ROOT.rglob("*.tf") for line in path.read_text().splitlines() if "checkov:skip" in line
    ]
    assert skips
    assert [line for line in skips if not re.fullmatch(r"#checkov:skip=CKV2?_AWS_\d+:.{15,}", line)] == []


def test_the_provider_is_pinned_in_every_module_alike() -> None:
    pinned = [_provider(block.body) for block in blocks() if block.kind == "terraform"]
    assert pinned == ["~> 5.100"] * (len(MODULES) + 1)


def _provider(body: dict[str, Any]) -> str:
    (providers,) = body["required_providers"]
    return str(providers["aws"]["version"])


def test_files_are_formatted_where_terraform_is() -> None:
    if shutil.which("terraform") is None:
        print(missing())
        pytest.skip(missing())
    done = terraform(ROOT, "fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, done.stdout


@pytest.mark.nightly  # half a minute of processor time, 640 MB
@pytest.mark.timeout(580)
@pytest.mark.skipif(bool(missing()), reason=missing() or "Terraform and its provider are here")
def test_terraform_validates_the_files_and_its_own_tests_pass(tmp_path: Path) -> None:
    folder = tmp_path / "terraform"
    shutil.copytree(
        ROOT, folder, ignore=shutil.ignore_patterns(".terraform*")
    )  # the lock is of one version, a mirror has its own
    for command in (
        ("init", "-backend=false", f"-plugin-dir={plugins()}", "-input=false", "-no-color"),
        ("validate", "-no-color"),
        ("test", "-no-color"),
    ):
        done = terraform(folder, *command, data=tmp_path / "data")
        assert done.returncode == 0, f"terraform {command[0]}:\n{done.stdout}\n{done.stderr}"
    assert re.search(r"Success! 19 passed, 0 failed", done.stdout), done.stdout
