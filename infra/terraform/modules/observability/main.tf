# Log groups, alarms and the budget. Each alarm has a page in docs/operations.md of the same name.

locals {
  groups = toset(["ray", "sandbox", "prefect", "mlflow", "worker"])

  instance_alarms = merge(
    {
      ray-head-system = { id = var.head_instance_id, metric = "StatusCheckFailed_System", recover = true }
      ray-head-status = { id = var.head_instance_id, metric = "StatusCheckFailed_Instance", recover = false }
    },
    { for name, host in var.sandbox_hosts : "sandbox-host-status-${name}" => { id = host.id, metric = "StatusCheckFailed", recover = false } },
  )

  database_alarms = {
    database-storage = { metric = "FreeStorageSpace", comparison = "LessThanThreshold", threshold = var.database.least_free_gb * 1024 * 1024 * 1024 }
    database-cpu     = { metric = "CPUUtilization", comparison = "GreaterThanThreshold", threshold = 90 }
  }

  found = merge(
    {
      sandbox-disk = { group = aws_cloudwatch_log_group.this["sandbox"].name, pattern = "\"no space left on device\"" }
    },
    {
      # A refused packet that a sandbox host sent: something there tries to get out.
      for name, host in var.sandbox_hosts : "sandbox-egress-${name}" => {
        group   = var.flow_log_group
        pattern = "[version, account, interface, source=${host.address}, destination, from_port, to_port, protocol, packets, bytes, start, end, action=REJECT, status]"
      }
    },
  )
}

resource "aws_cloudwatch_log_group" "this" {
  #checkov:skip=CKV_AWS_338:how long is `log_days`, 365 by default
  for_each = local.groups

  name              = "/${var.name}/${each.key}"
  retention_in_days = var.log_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_sns_topic" "this" {
  name              = "${var.name}-alarms"
  kms_master_key_id = var.kms_key_arn
}

resource "aws_sns_topic_policy" "this" {
  arn = aws_sns_topic.this.arn

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Alarms"
        Effect    = "Allow"
        Principal = { Service = "cloudwatch.amazonaws.com" }
        Action    = ["sns:Publish"]
        Resource  = aws_sns_topic.this.arn
        Condition = { StringEquals = { "aws:SourceAccount" = var.account_id } }
      },
      {
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["sns:Publish"]
        Resource  = aws_sns_topic.this.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

resource "aws_sns_topic_subscription" "email" {
  for_each = var.emails

  topic_arn = aws_sns_topic.this.arn
  protocol  = "email"
  endpoint  = each.key
}

resource "aws_cloudwatch_metric_alarm" "instance" {
  for_each = local.instance_alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "docs/operations.md, ${each.key}"
  namespace           = "AWS/EC2"
  metric_name         = each.value.metric
  dimensions          = { InstanceId = each.value.id }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 3
  comparison_operator = "GreaterThanOrEqualToThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = concat([aws_sns_topic.this.arn], each.value.recover ? ["arn:aws:automate:${var.region}:ec2:recover"] : [])
  ok_actions          = [aws_sns_topic.this.arn]
}

resource "aws_cloudwatch_metric_alarm" "database" {
  for_each = local.database_alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "docs/operations.md, ${each.key}"
  namespace           = "AWS/RDS"
  metric_name         = each.value.metric
  dimensions          = { DBInstanceIdentifier = var.database.identifier }
  statistic           = "Average"
  period              = 300
  evaluation_periods  = 3
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  treat_missing_data  = "breaching"
  alarm_actions       = [aws_sns_topic.this.arn]
  ok_actions          = [aws_sns_topic.this.arn]
}

resource "aws_cloudwatch_metric_alarm" "service" {
  for_each = toset(var.control_plane.services)

  alarm_name          = "${var.name}-${each.key}-down"
  alarm_description   = "docs/operations.md, ${each.key}-down"
  namespace           = "ECS/ContainerInsights"
  metric_name         = "RunningTaskCount"
  dimensions          = { ClusterName = var.control_plane.cluster, ServiceName = each.key }
  statistic           = "Minimum"
  period              = 60
  evaluation_periods  = 5
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = [aws_sns_topic.this.arn]
  ok_actions          = [aws_sns_topic.this.arn]
}

resource "aws_cloudwatch_log_metric_filter" "found" {
  for_each = local.found

  name           = "${var.name}-${each.key}"
  log_group_name = each.value.group
  pattern        = each.value.pattern

  metric_transformation {
    name          = each.key
    namespace     = var.name
    value         = "1"
    default_value = "0"
  }
}

resource "aws_cloudwatch_metric_alarm" "found" {
  for_each = local.found

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "docs/operations.md, ${each.key}"
  namespace           = var.name
  metric_name         = each.key
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.this.arn]

  depends_on = [aws_cloudwatch_log_metric_filter.found]
}

resource "aws_budgets_budget" "month" {
  name         = var.name
  budget_type  = "COST"
  limit_amount = tostring(var.budget_usd)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"

  dynamic "notification" {
    for_each = { "ACTUAL" = 80, "FORECASTED" = 100 }

    content {
      comparison_operator        = "GREATER_THAN"
      notification_type          = notification.key
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      subscriber_email_addresses = var.emails
    }
  }
}
