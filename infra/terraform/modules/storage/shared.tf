resource "aws_security_group" "shared" {
  name        = "${var.name}-shared"
  description = "The shared file system: NFS from whoever is given a rule for it"
  vpc_id      = var.shared.vpc_id

  tags = { Name = "${var.name}-shared" }
}

resource "aws_efs_file_system" "shared" {
  encrypted       = true
  kms_key_id      = aws_kms_key.this.arn
  throughput_mode = "elastic"

  tags = { Name = "${var.name}-shared" }
}

resource "aws_efs_mount_target" "shared" {
  for_each = var.shared.subnets

  file_system_id  = aws_efs_file_system.shared.id
  subnet_id       = each.value
  security_groups = [aws_security_group.shared.id]
}

# Whoever mounts it is the user that the images run as, root included, and sees nothing above its folder: the policy
# below refuses every other way of mounting, also to who may do everything in this account.
resource "aws_efs_access_point" "shared" {
  file_system_id = aws_efs_file_system.shared.id

  posix_user {
    uid = 10001
    gid = 10001
  }

  root_directory {
    path = "/longshell"

    creation_info {
      owner_uid   = 10001
      owner_gid   = 10001
      permissions = "0750"
    }
  }
}

resource "aws_efs_file_system_policy" "shared" {
  file_system_id = aws_efs_file_system.shared.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = { AWS = "*" }
        Action    = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite", "elasticfilesystem:ClientRootAccess"]
        Resource  = aws_efs_file_system.shared.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        Sid       = "AccessPointOnly"
        Effect    = "Deny"
        Principal = { AWS = "*" }
        Action    = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite", "elasticfilesystem:ClientRootAccess"]
        Resource  = aws_efs_file_system.shared.arn
        Condition = { StringNotEquals = { "elasticfilesystem:AccessPointArn" = aws_efs_access_point.shared.arn } }
      },
      {
        Sid       = "ThroughMountTargets"
        Effect    = "Allow"
        Principal = { AWS = sort(values(var.shared_role_arns)) }
        Action    = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
        Resource  = aws_efs_file_system.shared.arn
        Condition = {
          Bool         = { "elasticfilesystem:AccessedViaMountTarget" = "true" }
          StringEquals = { "elasticfilesystem:AccessPointArn" = aws_efs_access_point.shared.arn }
        }
      },
    ]
  })
}

resource "aws_efs_backup_policy" "shared" {
  file_system_id = aws_efs_file_system.shared.id

  backup_policy {
    status = "ENABLED"
  }
}
