mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name       = "unit"
  region     = "us-east-2"
  account_id = "111122223333"
  buckets    = { artifacts = { infrequent_days = 60 }, pools = {}, mlflow = { expire_days = 400 } }
  shared     = { vpc_id = "vpc-1", subnets = { us-east-2a = "subnet-1", us-east-2b = "subnet-2" } }

  shared_role_arns = { ray = "arn:aws:iam::111122223333:role/unit-ray", worker = "arn:aws:iam::111122223333:role/unit-worker" }
  autoscaling_role = true
}

run "what_is_at_rest_is_encrypted_kept_and_private" {
  module {
    source = "./modules/storage"
  }

  assert {
    condition     = aws_kms_key.this.enable_key_rotation
    error_message = "The key must rotate."
  }

  assert {
    condition     = toset(keys(aws_s3_bucket_public_access_block.this)) == toset(["artifacts", "pools", "mlflow", "logs"]) && alltrue([for block in aws_s3_bucket_public_access_block.this : block.block_public_acls && block.block_public_policy && block.ignore_public_acls && block.restrict_public_buckets])
    error_message = "No bucket may become public."
  }

  assert {
    condition     = alltrue([for versioning in aws_s3_bucket_versioning.this : versioning.versioning_configuration[0].status == "Enabled"]) && length(aws_s3_bucket_versioning.this) == 4
    error_message = "Every bucket keeps versions."
  }

  assert {
    condition     = alltrue([for encryption in aws_s3_bucket_server_side_encryption_configuration.this : alltrue([for rule in encryption.rule : rule.bucket_key_enabled && rule.apply_server_side_encryption_by_default[0].sse_algorithm == "aws:kms" && rule.apply_server_side_encryption_by_default[0].kms_master_key_id == aws_kms_key.this.arn])])
    error_message = "Buckets are encrypted with our key."
  }

  assert {
    condition     = alltrue([for policy in aws_s3_bucket_policy.this : anytrue([for said in jsondecode(policy.policy).Statement : said.Effect == "Deny" && said.Condition == { Bool = { "aws:SecureTransport" = "false" } }])]) && length(aws_s3_bucket_policy.this) == 3
    error_message = "Buckets speak TLS only."
  }

  assert {
    condition     = alltrue([for lifecycle in aws_s3_bucket_lifecycle_configuration.this : anytrue([for rule in lifecycle.rule : length(rule.abort_incomplete_multipart_upload) == 1]) && anytrue([for rule in lifecycle.rule : length(rule.noncurrent_version_expiration) == 1])])
    error_message = "Unfinished uploads and old versions end."
  }

  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this["artifacts"].rule) == 3 && length(aws_s3_bucket_lifecycle_configuration.this["pools"].rule) == 2
    error_message = "Optional rules are there when asked for."
  }

  assert {
    condition     = aws_efs_file_system.shared.encrypted && aws_efs_access_point.shared.posix_user[0].uid == 10001
    error_message = "The shared file system is encrypted, and used as the images' user."
  }

  assert {
    condition     = anytrue([for said in jsondecode(aws_efs_file_system_policy.shared.policy).Statement : said.Effect == "Deny" && said.Condition == { Bool = { "aws:SecureTransport" = "false" } }])
    error_message = "The shared file system speaks TLS only."
  }

  assert {
    condition     = [for said in jsondecode(aws_efs_file_system_policy.shared.policy).Statement : [said.Principal, said.Condition] if said.Effect == "Allow"] == [[{ AWS = ["arn:aws:iam::111122223333:role/unit-ray", "arn:aws:iam::111122223333:role/unit-worker"] }, { Bool = { "elasticfilesystem:AccessedViaMountTarget" = "true" }, StringEquals = { "elasticfilesystem:AccessPointArn" = aws_efs_access_point.shared.arn } }]]
    error_message = "Two roles mount the shared file system, by its access point."
  }

  assert {
    condition     = anytrue([for said in jsondecode(aws_efs_file_system_policy.shared.policy).Statement : said.Effect == "Deny" && said.Principal == { AWS = "*" } && contains(said.Action, "elasticfilesystem:ClientMount") && said.Condition == { StringNotEquals = { "elasticfilesystem:AccessPointArn" = aws_efs_access_point.shared.arn } }])
    error_message = "Nobody mounts it past its access point."
  }

  assert {
    condition     = [for role in aws_iam_service_linked_role.autoscaling : role.aws_service_name] == ["autoscaling.amazonaws.com"]
    error_message = "The role that the key's policy names is made where there was none."
  }
}

run "an_account_that_has_auto_scalings_role_keeps_it" {
  command = plan

  module {
    source = "./modules/storage"
  }

  variables {
    autoscaling_role = false
  }

  assert {
    condition     = length(aws_iam_service_linked_role.autoscaling) == 0
    error_message = "What an account has once is not made again."
  }
}

run "buckets_that_nobody_knows_are_refused" {
  command = plan

  module {
    source = "./modules/storage"
  }

  variables {
    buckets = { artifacts = {}, pools = {}, mlflow = { noncurrent_days = 1 }, more = {} }
  }

  expect_failures = [var.buckets]
}
