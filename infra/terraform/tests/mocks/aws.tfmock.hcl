# What the provider checks the form of; everything else is a random string.

mock_resource "aws_kms_key" {
  defaults = { arn = "arn:aws:kms:us-east-2:111122223333:key/11111111-2222-3333-4444-555555555555" }
}

mock_resource "aws_s3_bucket" {
  defaults = { arn = "arn:aws:s3:::a-bucket" }
}

mock_resource "aws_cloudwatch_log_group" {
  defaults = { arn = "arn:aws:logs:us-east-2:111122223333:log-group:/a/group" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::111122223333:role/a-role" }
}

mock_resource "aws_iam_instance_profile" {
  defaults = { arn = "arn:aws:iam::111122223333:instance-profile/a-profile" }
}

mock_resource "aws_secretsmanager_secret" {
  defaults = { arn = "arn:aws:secretsmanager:us-east-2:111122223333:secret:a-secret" }
}

mock_resource "aws_ecr_repository" {
  defaults = { arn = "arn:aws:ecr:us-east-2:111122223333:repository/a-repository" }
}

mock_resource "aws_efs_file_system" {
  defaults = { arn = "arn:aws:elasticfilesystem:us-east-2:111122223333:file-system/fs-1" }
}

mock_resource "aws_efs_access_point" {
  defaults = { arn = "arn:aws:elasticfilesystem:us-east-2:111122223333:access-point/fsap-1" }
}

mock_resource "aws_db_instance" {
  defaults = { master_user_secret = [{ secret_arn = "arn:aws:secretsmanager:us-east-2:111122223333:secret:rds" }] }
}

mock_resource "aws_launch_template" {
  defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
}

mock_resource "aws_network_interface" {
  defaults = { private_ip = "10.40.128.7" }
}

mock_resource "aws_sns_topic" {
  defaults = { arn = "arn:aws:sns:us-east-2:111122223333:alarms" }
}

mock_resource "aws_ecs_task_definition" {
  defaults = { arn = "arn:aws:ecs:us-east-2:111122223333:task-definition/a-task:1" }
}

mock_resource "aws_service_discovery_service" {
  defaults = { arn = "arn:aws:servicediscovery:us-east-2:111122223333:service/srv-1" }
}

mock_resource "aws_subnet" {
  defaults = { id = "subnet-0123456789abcdef0" }
}
