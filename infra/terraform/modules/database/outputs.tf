output "address" {
  description = "Host name of the database."
  value       = aws_db_instance.this.address
}

output "identifier" {
  description = "Its name, for alarms."
  value       = aws_db_instance.this.identifier
}

output "security_group_id" {
  description = "Its group: what its clients may send to."
  value       = aws_security_group.this.id
}

output "master_secret_arn" {
  description = "Where RDS keeps the master's password."
  value       = aws_db_instance.this.master_user_secret[0].secret_arn
}
