# The whole, put together from the example's values.
mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name       = "unit"
  region     = "us-east-2"
  account_id = "111122223333"
  network    = { cidr = "10.40.0.0/16", zones = ["us-east-2a", "us-east-2b"] }
  images = {
    trainer       = "registry.example/unit/trainer:1"
    sampler       = "registry.example/unit/sampler:1"
    control_plane = "registry.example/unit/control-plane:1"
    box           = "registry.example/unit/boxes:1"
  }
  amis       = { ray = "ami-0123456789abcdef0", sandbox = "ami-0123456789abcdef1" }
  head       = { instance_type = "g6.12xlarge", zone = "us-east-2a" }
  groups     = { samplers = { instance_type = "g6.12xlarge", count = 1, zone = "us-east-2a" } }
  sandbox    = { zone = "us-east-2a" }
  emails     = ["person@example.com"]
  budget_usd = 20000
}

run "the_parts_fit_together" {
  assert {
    condition     = output.ray_jobs == "http://ray.unit.internal:8265" && output.docker_hosts == ["tcp://sandbox-0.unit.internal:2376"]
    error_message = "A campaign is told where Ray and its engine are."
  }

  assert {
    condition     = output.store == "s3://unit-artifacts-111122223333/store"
    error_message = "The store is the bucket of artifacts, unless another is named."
  }

  assert {
    condition     = toset(output.alarms) == toset(["ray-head-system", "ray-head-status", "sandbox-host-status-sandbox-0", "sandbox-disk", "sandbox-egress-sandbox-0", "database-storage", "database-cpu", "prefect-down", "mlflow-down", "worker-down", "budget"])
    error_message = "Every part has its alarm."
  }

  assert {
    condition     = toset(keys(output.repositories)) == toset(["trainer", "sampler", "control-plane", "sandbox-host", "boxes"]) && toset(keys(output.secrets)) == toset(["prefect-database", "mlflow-database", "prefect-login", "ray-token", "docker-client", "docker-server"])
    error_message = "Images have a repository, and secrets a place."
  }

  assert {
    condition     = toset(keys(aws_vpc_security_group_ingress_rule.shared)) == toset(["ray", "control-plane"])
    error_message = "Sandbox hosts do not mount the shared file system."
  }
}

run "an_environment_of_no_account_is_refused" {
  command = plan

  variables {
    name       = "Unit!"
    region     = "somewhere"
    account_id = "12"
  }

  expect_failures = [var.name, var.region, var.account_id]
}

run "an_alarm_that_nobody_hears_is_refused" {
  command = plan

  module {
    source = "./modules/observability"
  }

  variables {
    emails           = []
    budget_usd       = 0
    log_days         = 7
    kms_key_arn      = "arn:aws:kms:us-east-2:111122223333:key/1"
    head_instance_id = "i-1"
    sandbox_hosts    = {}
    flow_log_group   = "/unit/flow"
    database         = { identifier = "unit" }
    control_plane    = { cluster = "unit", services = ["worker"] }
  }

  expect_failures = [var.emails, var.budget_usd, var.log_days]
}
