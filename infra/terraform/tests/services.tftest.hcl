mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name              = "unit"
  region            = "us-east-2"
  vpc_id            = "vpc-1"
  subnet_ids        = ["subnet-1", "subnet-2"]
  kms_key_arn       = "arn:aws:kms:us-east-2:111122223333:key/1"
  s3_prefix_list_id = "pl-1"

  client_security_group_ids = { control-plane = "sg-control" }

  image          = "registry.example/unit/control-plane:1"
  repository_arn = "arn:aws:ecr:us-east-2:111122223333:repository/control-plane"
  people_cidrs   = ["10.8.0.0/24"]
  egress         = { database = { security_group_id = "sg-database", port = 5432 } }
  ray            = { jobs_url = "http://ray.unit.internal:8265", token_secret_arn = "arn:aws:secretsmanager:us-east-2:111122223333:secret:ray" }
  store          = "/shared/store"
  buckets        = { artifacts = { name = "a", arn = "arn:aws:s3:::a" }, pools = { name = "p", arn = "arn:aws:s3:::p" }, mlflow = { name = "m", arn = "arn:aws:s3:::m" } }
  shared         = { id = "fs-1", arn = "arn:aws:elasticfilesystem:us-east-2:111122223333:file-system/fs-1", access_point_id = "fsap-1", access_point_arn = "arn:aws:elasticfilesystem:us-east-2:111122223333:access-point/fsap-1", security_group_id = "sg-shared" }
  log_groups = {
    prefect = { name = "/unit/prefect", arn = "arn:aws:logs:us-east-2:111122223333:log-group:/unit/prefect" }
    mlflow  = { name = "/unit/mlflow", arn = "arn:aws:logs:us-east-2:111122223333:log-group:/unit/mlflow" }
    worker  = { name = "/unit/worker", arn = "arn:aws:logs:us-east-2:111122223333:log-group:/unit/worker" }
  }
}

run "the_database_is_encrypted_private_and_kept" {
  module {
    source = "./modules/database"
  }

  variables {
    database = {}
  }

  assert {
    condition     = aws_db_instance.this.storage_encrypted && !aws_db_instance.this.publicly_accessible && aws_db_instance.this.multi_az && aws_db_instance.this.deletion_protection && !aws_db_instance.this.skip_final_snapshot
    error_message = "By default the database is encrypted, private, in two zones, and hard to lose."
  }

  assert {
    condition     = aws_db_instance.this.manage_master_user_password && aws_db_instance.this.password == null
    error_message = "RDS keeps the master's password; no state file does."
  }

  assert {
    condition     = anytrue([for one in aws_db_parameter_group.this.parameter : one.name == "rds.force_ssl" && one.value == "1"])
    error_message = "The database speaks TLS only."
  }

  assert {
    condition     = keys(aws_vpc_security_group_ingress_rule.clients) == ["control-plane"] && alltrue([for rule in aws_vpc_security_group_ingress_rule.clients : rule.cidr_ipv4 == null && rule.from_port == 5432 && rule.to_port == 5432])
    error_message = "The control plane connects, and nobody else."
  }
}

run "a_database_that_loses_things_is_refused" {
  command = plan

  module {
    source = "./modules/database"
  }

  variables {
    database = { engine_version = "17.1", backup_days = 0, storage_gb = 50, max_storage_gb = 50 }
  }

  expect_failures = [var.database]
}

run "the_control_plane_has_its_secrets_from_the_secrets_manager" {
  module {
    source = "./modules/control_plane"
  }

  assert {
    condition     = alltrue([for task in aws_ecs_task_definition.this : alltrue([for box in jsondecode(task.container_definitions) : box.readonlyRootFilesystem && box.user == "10001:10001" && box.linuxParameters.capabilities.drop == ["ALL"] && alltrue([for one in box.secrets : startswith(one.valueFrom, "arn:aws:secretsmanager:")])])])
    error_message = "Containers are read-only, not root, without capabilities, and have secrets by reference."
  }

  assert {
    condition     = alltrue([for task in aws_ecs_task_definition.this : alltrue([for box in jsondecode(task.container_definitions) : !anytrue([for one in box.environment : can(regex("(?i)(password|secret|token|auth_string|connection_url)$", one.name))])])])
    error_message = "No secret is a plain variable."
  }

  assert {
    condition     = { for one in jsondecode(aws_ecs_task_definition.this["worker"].container_definitions)[0].environment : one.name => one.value if one.name == "LONGSHELL_RAY_JOBS" || one.name == "LONGSHELL_STORE" } == { LONGSHELL_RAY_JOBS = "http://ray.unit.internal:8265", LONGSHELL_STORE = "/shared/store" }
    error_message = "The worker is told where Ray and the store are."
  }

  assert {
    condition     = alltrue([for policy in merge(aws_iam_role_policy.task, { execution = aws_iam_role_policy.execution }) : alltrue([for said in jsondecode(policy.policy).Statement : alltrue([for action in said.Action : !strcontains(action, "*")]) && (said.Sid == "Login" || !contains(flatten([said.Resource]), "*"))])]) && !contains(keys(aws_iam_role_policy.task), "prefect")
    error_message = "Roles have named actions on named resources; Prefect's has none."
  }

  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.worker : rule.referenced_security_group_id == aws_security_group.this.id]) && [for rule in aws_vpc_security_group_ingress_rule.people : rule.cidr_ipv4] == ["10.8.0.0/24", "10.8.0.0/24"]
    error_message = "Prefect and MLflow are reached by the worker and by named people."
  }

  assert {
    condition     = alltrue([for service in aws_ecs_service.this : !service.network_configuration[0].assign_public_ip && !service.enable_execute_command])
    error_message = "Services have no public address, and nobody enters them."
  }
}

run "strangers_and_moving_images_are_refused" {
  command = plan

  module {
    source = "./modules/control_plane"
  }

  variables {
    people_cidrs = ["0.0.0.0/0"]
    image        = "registry.example/unit/control-plane:latest"
    store        = "/tmp/store"
  }

  expect_failures = [var.people_cidrs, var.image, var.store]
}
