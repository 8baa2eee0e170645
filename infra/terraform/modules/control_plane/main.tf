# Prefect's server, MLflow's, and a worker that runs the flows: three services of one image, and no state of their own.

locals {
  namespace = "control.${var.name}.internal"
  hosts     = { for service in ["prefect", "mlflow"] : service => "${service}.${local.namespace}" }
  ports     = { prefect = 4200, mlflow = 5000 }
  home      = "/var/lib/longshell"

  secrets = {
    prefect-database = "postgresql+asyncpg://USER:PASSWORD@HOST:5432/prefect?ssl=require"
    mlflow-database  = "postgresql+psycopg2://USER:PASSWORD@HOST:5432/mlflow?sslmode=require"
    prefect-login    = "USER:PASSWORD, which Prefect's API asks for"
  }
  secret = { for name, made in aws_secretsmanager_secret.this : name => made.arn }

  common = { AWS_DEFAULT_REGION = var.region, PREFECT_SERVER_ANALYTICS_ENABLED = "false", DO_NOT_TRACK = "1", MLFLOW_DISABLE_TELEMETRY = "true" }

  services = {
    prefect = {
      cpu         = 1024
      memory      = 2048
      port        = local.ports.prefect
      command     = ["prefect", "server", "start", "--host", "0.0.0.0", "--port", tostring(local.ports.prefect)]
      health      = "http://127.0.0.1:${local.ports.prefect}/api/health"
      environment = merge(local.common, { PREFECT_HOME = local.home })
      secrets = {
        PREFECT_SERVER_DATABASE_CONNECTION_URL = local.secret["prefect-database"]
        PREFECT_SERVER_API_AUTH_STRING         = local.secret["prefect-login"]
      }
    }
    mlflow = {
      cpu    = 1024
      memory = 4096
      port   = local.ports.mlflow
      command = [
        "mlflow", "server", "--host", "0.0.0.0", "--port", tostring(local.ports.mlflow), "--workers", "2",
        "--artifacts-destination", "s3://${var.buckets["mlflow"].name}",
        "--allowed-hosts", "${local.hosts.mlflow}:${local.ports.mlflow},127.0.0.1:${local.ports.mlflow}",
      ]
      health      = "http://127.0.0.1:${local.ports.mlflow}/health"
      environment = merge(local.common, { MLFLOW_SERVER_ENABLE_JOB_EXECUTION = "false" })
      secrets     = { MLFLOW_BACKEND_STORE_URI = local.secret["mlflow-database"] }
    }
    worker = {
      cpu     = 2048
      memory  = 8192
      port    = null
      command = ["python", "-m", "tasks.stack", "worker"]
      health  = null
      environment = merge(local.common, {
        LONGSHELL_HOME      = local.home
        LONGSHELL_STORE     = var.store
        LONGSHELL_RAY_JOBS  = var.ray.jobs_url
        RAY_AUTH_MODE       = "token"
        MLFLOW_TRACKING_URI = "http://${local.hosts.mlflow}:${local.ports.mlflow}"
        PREFECT_API_URL     = "http://${local.hosts.prefect}:${local.ports.prefect}/api"
      })
      secrets = {
        RAY_AUTH_TOKEN          = var.ray.token_secret_arn
        PREFECT_API_AUTH_STRING = local.secret["prefect-login"]
      }
    }
  }
}

# Their values are put by a person (docs/operations.md), so that no state file has them.
resource "aws_secretsmanager_secret" "this" {
  #checkov:skip=CKV2_AWS_57:RDS rotates its own password; these are changed together with it by docs/operations.md
  for_each = local.secrets

  name                    = "${var.name}/${each.key}"
  description             = each.value
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = 7
}

resource "aws_security_group" "this" {
  name        = "${var.name}-control-plane"
  description = "Prefect and MLflow: from the worker and from people"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-control-plane" }
}

resource "aws_vpc_security_group_ingress_rule" "worker" {
  for_each = local.ports

  security_group_id            = aws_security_group.this.id
  description                  = "${each.key}, from the worker"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_vpc_security_group_ingress_rule" "people" {
  for_each = { for pair in setproduct(keys(local.ports), var.people_cidrs) : join(" from ", pair) => pair }

  security_group_id = aws_security_group.this.id
  description       = each.key
  cidr_ipv4         = each.value[1]
  ip_protocol       = "tcp"
  from_port         = local.ports[each.value[0]]
  to_port           = local.ports[each.value[0]]
}

resource "aws_vpc_security_group_egress_rule" "worker" {
  for_each = local.ports

  security_group_id            = aws_security_group.this.id
  description                  = "${each.key}, from the worker"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value
}

resource "aws_vpc_security_group_egress_rule" "to" {
  for_each = var.egress

  security_group_id            = aws_security_group.this.id
  description                  = "To ${each.key}"
  referenced_security_group_id = each.value.security_group_id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  security_group_id = aws_security_group.this.id
  description       = "To S3 through its endpoint"
  prefix_list_id    = var.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_service_discovery_private_dns_namespace" "this" {
  name        = local.namespace
  description = "Prefect and MLflow by name"
  vpc         = var.vpc_id
}

resource "aws_service_discovery_service" "this" {
  for_each = local.hosts

  name = each.key

  dns_config {
    namespace_id   = aws_service_discovery_private_dns_namespace.this.id
    routing_policy = "MULTIVALUE"

    dns_records {
      type = "A"
      ttl  = 10
    }
  }
}
