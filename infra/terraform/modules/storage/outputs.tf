output "kms_key_arn" {
  description = "The key for everything at rest."
  value       = aws_kms_key.this.arn
}

output "buckets" {
  description = "Name and ARN of each bucket."
  value       = { for name, made in aws_s3_bucket.this : name => { name = made.bucket, arn = made.arn } }
}

output "shared" {
  description = "The shared file system, the access point to mount it by, and the group that admits to it."
  value = {
    id                = aws_efs_file_system.shared.id
    arn               = aws_efs_file_system.shared.arn
    access_point_id   = aws_efs_access_point.shared.id
    access_point_arn  = aws_efs_access_point.shared.arn
    security_group_id = aws_security_group.shared.id
  }
}
