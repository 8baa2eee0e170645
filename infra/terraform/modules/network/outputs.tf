output "vpc_id" {
  description = "The network."
  value       = aws_vpc.this.id
}

output "private_subnets" {
  description = "Private subnet ids by zone."
  value       = { for zone, subnet in aws_subnet.private : zone => subnet.id }
}

output "sandbox_subnets" {
  description = "Sandbox subnet ids by zone."
  value       = { for zone, subnet in aws_subnet.sandbox : zone => subnet.id }
}

output "endpoints_security_group_id" {
  description = "The group of the interface endpoints."
  value       = aws_security_group.endpoints.id
}

output "s3_private_prefix_list_id" {
  description = "Addresses of S3, as the private tier's security groups name them."
  value       = aws_vpc_endpoint.s3_private.prefix_list_id
}

output "s3_sandbox_prefix_list_id" {
  description = "Addresses of S3, as the sandbox tier's security groups name them."
  value       = aws_vpc_endpoint.s3_sandbox.prefix_list_id
}

output "zone" {
  description = "The private DNS zone."
  value       = { id = aws_route53_zone.this.zone_id, name = aws_route53_zone.this.name }
}

output "flow_log_group" {
  description = "The log group of the flow logs."
  value       = aws_cloudwatch_log_group.flow.name
}
