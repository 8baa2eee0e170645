output "log_groups" {
  description = "Name and ARN of each log group."
  value       = { for name, made in aws_cloudwatch_log_group.this : name => { name = made.name, arn = made.arn } }
}

output "topic_arn" {
  description = "Where alarms go."
  value       = aws_sns_topic.this.arn
}

output "alarms" {
  description = "Every alarm, as docs/operations.md calls it."
  value = concat(
    keys(local.instance_alarms), keys(local.database_alarms), keys(local.found),
    [for service in var.control_plane.services : "${service}-down"], ["budget"],
  )
}
