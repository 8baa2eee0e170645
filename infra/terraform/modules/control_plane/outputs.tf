output "security_group_id" {
  description = "The group of the control plane."
  value       = aws_security_group.this.id
}

output "urls" {
  description = "Prefect and MLflow, from inside the network."
  value = {
    prefect = "http://${local.hosts.prefect}:${local.ports.prefect}"
    mlflow  = "http://${local.hosts.mlflow}:${local.ports.mlflow}"
  }
}

output "secret_arns" {
  description = "Secrets whose values are put by hand, by name."
  value       = local.secret
}

output "store" {
  description = "The campaigns' store, as the worker has it."
  value       = var.store
}

output "cluster" {
  description = "The ECS cluster, for alarms."
  value       = aws_ecs_cluster.this.name
}

output "services" {
  description = "Its services, for alarms."
  value       = keys(local.services)
}

output "worker_role_arn" {
  description = "The worker's role, which mounts the shared file system."
  value       = aws_iam_role.task["worker"].arn
}
