output "repositories" {
  description = "URL and ARN of each repository."
  value       = { for name, made in aws_ecr_repository.this : name => { url = made.repository_url, arn = made.arn } }
}
