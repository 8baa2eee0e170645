output "security_group_id" {
  description = "The group of its machines."
  value       = aws_security_group.this.id
}

output "jobs_url" {
  description = "The Jobs API: LONGSHELL_RAY_JOBS."
  value       = "http://${local.head_host}:${local.ports.dashboard}"
}

output "jobs_port" {
  description = "Its port."
  value       = local.ports.dashboard
}

output "token_secret_arn" {
  description = "The secret with Ray's token."
  value       = aws_secretsmanager_secret.ray_token.arn
}

output "head_instance_id" {
  description = "The head, for alarms."
  value       = aws_instance.head.id
}

output "role_arn" {
  description = "The role of its machines, which mount the shared file system."
  value       = aws_iam_role.this.arn
}
