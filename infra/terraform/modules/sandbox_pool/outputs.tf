output "security_group_id" {
  description = "The group of the engines."
  value       = aws_security_group.this.id
}

output "docker_hosts" {
  description = "The engines: `sandbox.docker.host` of a campaign is one of them."
  value       = [for host in values(local.hosts) : "tcp://${host}:${local.port}"]
}

output "port" {
  description = "The engines' port."
  value       = local.port
}

output "client_secret_arn" {
  description = "The secret with the certificate of those who may use the engines."
  value       = aws_secretsmanager_secret.tls["client"].arn
}

output "server_secret_arn" {
  description = "The secret with the engines' certificate."
  value       = aws_secretsmanager_secret.tls["server"].arn
}

output "instances" {
  description = "Instance id and address of each host, for alarms."
  value       = { for name, host in aws_instance.this : name => { id = host.id, address = aws_network_interface.this[name].private_ip } }
}
