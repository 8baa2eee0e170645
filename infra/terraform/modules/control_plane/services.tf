resource "aws_ecs_cluster" "this" {
  name = var.name

  setting {
    name  = "containerInsights"
    value = "enabled"
  }
}

resource "aws_ecs_task_definition" "this" {
  for_each = local.services

  family                   = "${var.name}-${each.key}"
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = each.value.cpu
  memory                   = each.value.memory
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = aws_iam_role.task[each.key].arn

  container_definitions = jsonencode([{
    name                   = each.key
    image                  = var.image
    essential              = true
    command                = each.value.command
    user                   = "10001:10001"
    readonlyRootFilesystem = true
    stopTimeout            = 60
    linuxParameters        = { initProcessEnabled = true, capabilities = { drop = ["ALL"] } }
    environment            = [for name, value in each.value.environment : { name = name, value = value }]
    secrets                = [for name, arn in each.value.secrets : { name = name, valueFrom = arn }]
    portMappings           = each.value.port == null ? [] : [{ containerPort = each.value.port, protocol = "tcp" }]
    healthCheck = each.value.health == null ? null : {
      command     = ["CMD", "python", "-c", "import urllib.request; urllib.request.urlopen('${each.value.health}', timeout=5)"]
      interval    = 30
      timeout     = 10
      retries     = 3
      startPeriod = 120
    }
    mountPoints = concat(
      [{ sourceVolume = "home", containerPath = local.home }, { sourceVolume = "tmp", containerPath = "/tmp" }],
      each.key == "worker" ? [{ sourceVolume = "shared", containerPath = "/shared" }] : [],
    )
    logConfiguration = {
      logDriver = "awslogs"
      options = {
        awslogs-region        = var.region
        awslogs-group         = var.log_groups[each.key].name
        awslogs-stream-prefix = each.key
      }
    }
  }])

  volume {
    name = "home"
  }

  volume {
    name = "tmp"
  }

  dynamic "volume" {
    for_each = each.key == "worker" ? [var.shared] : []

    content {
      name = "shared"

      efs_volume_configuration {
        file_system_id     = volume.value.id
        transit_encryption = "ENABLED"

        authorization_config {
          access_point_id = volume.value.access_point_id
          iam             = "ENABLED"
        }
      }
    }
  }
}

# One of each. Two Prefect servers on one database would run its loops twice; a second worker may be added by hand.
resource "aws_ecs_service" "this" {
  #checkov:skip=CKV_AWS_332:1.4.0 is the newest; `LATEST` may be another tomorrow
  for_each = local.services

  name                               = each.key
  cluster                            = aws_ecs_cluster.this.id
  task_definition                    = aws_ecs_task_definition.this[each.key].arn
  desired_count                      = 1
  launch_type                        = "FARGATE"
  platform_version                   = "1.4.0"
  deployment_minimum_healthy_percent = 0
  deployment_maximum_percent         = 100
  enable_execute_command             = false

  network_configuration {
    subnets          = var.subnet_ids
    security_groups  = [aws_security_group.this.id]
    assign_public_ip = false
  }

  dynamic "service_registries" {
    for_each = contains(keys(local.hosts), each.key) ? [aws_service_discovery_service.this[each.key].arn] : []

    content {
      registry_arn = service_registries.value
    }
  }
}
