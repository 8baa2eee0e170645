# One key for everything at rest, the buckets, and a file system that trainers and samplers share (model folders,
# `publish.folder`, and the campaigns' store where it is a folder).

locals {
  logs_bucket = "${var.name}-access-logs-${var.account_id}"
  bucket      = { for name, made in aws_s3_bucket.this : name => made.id }
}

# The account's first group makes this role by itself, but the key's policy names it before, and KMS refuses a policy
# with a principal that does not exist.
resource "aws_iam_service_linked_role" "autoscaling" {
  count = var.autoscaling_role ? 1 : 0

  aws_service_name = "autoscaling.amazonaws.com"
}

resource "aws_kms_key" "this" {
  description             = "${var.name}: data at rest"
  enable_key_rotation     = true
  rotation_period_in_days = 365
  deletion_window_in_days = 30

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "AccountAdministers"
        Effect    = "Allow"
        Principal = { AWS = "arn:aws:iam::${var.account_id}:root" }
        Action = [
          "kms:CancelKeyDeletion", "kms:CreateAlias", "kms:CreateGrant", "kms:Decrypt", "kms:DeleteAlias",
          "kms:DescribeKey", "kms:DisableKey", "kms:EnableKey", "kms:EnableKeyRotation", "kms:Encrypt",
          "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:GetKeyPolicy", "kms:GetKeyRotationStatus",
          "kms:ListGrants", "kms:ListKeyPolicies", "kms:ListResourceTags", "kms:PutKeyPolicy", "kms:ReEncryptFrom",
          "kms:ReEncryptTo", "kms:RetireGrant", "kms:RevokeGrant", "kms:ScheduleKeyDeletion", "kms:TagResource",
          "kms:UntagResource", "kms:UpdateAlias", "kms:UpdateKeyDescription",
        ]
        Resource = "*"
      },
      {
        Sid       = "LogGroups"
        Effect    = "Allow"
        Principal = { Service = "logs.${var.region}.amazonaws.com" }
        Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo", "kms:GenerateDataKey", "kms:DescribeKey"]
        Resource  = "*"
        Condition = { ArnLike = { "kms:EncryptionContext:aws:logs:arn" = "arn:aws:logs:${var.region}:${var.account_id}:*" } }
      },
      {
        Sid       = "Alarms"
        Effect    = "Allow"
        Principal = { Service = "cloudwatch.amazonaws.com" }
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = "*"
        Condition = { StringEquals = { "aws:SourceAccount" = var.account_id } }
      },
      {
        # Encrypted volumes of instances that an Auto Scaling group starts.
        Sid       = "AutoScaling"
        Effect    = "Allow"
        Principal = { AWS = "arn:aws:iam::${var.account_id}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling" }
        Action    = ["kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
        Resource  = "*"
      },
    ]
  })

  depends_on = [aws_iam_service_linked_role.autoscaling]
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.this.key_id
}

resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_18:it has: the scanner does not follow for_each through a local (tests/storage.tftest.hcl holds it)
  #checkov:skip=CKV_AWS_21:it has: the scanner does not follow for_each through a local (tests/storage.tftest.hcl holds it)
  #checkov:skip=CKV_AWS_145:it has: the scanner does not follow for_each through a local (tests/storage.tftest.hcl holds it)
  #checkov:skip=CKV2_AWS_6:it has: the scanner does not follow for_each through a local (tests/storage.tftest.hcl holds it)
  #checkov:skip=CKV2_AWS_61:it has: the scanner does not follow for_each through a local (tests/storage.tftest.hcl holds it)
  #checkov:skip=CKV_AWS_144:a second region is each environment's decision (docs/operations.md, disaster recovery)
  #checkov:skip=CKV2_AWS_62:nothing acts on an object's arrival: jobs know what they wrote
  for_each = var.buckets

  bucket = "${var.name}-${each.key}-${var.account_id}"
}

# Who read and wrote what, in a bucket of its own that nobody but the log service writes.
resource "aws_s3_bucket" "logs" {
  #checkov:skip=CKV_AWS_18:it is where access logs go; one that logs itself grows for ever
  #checkov:skip=CKV_AWS_144:access logs are not worth a second region
  #checkov:skip=CKV_AWS_145:the log delivery service cannot write under a customer's key
  #checkov:skip=CKV2_AWS_62:nothing acts on a log's arrival
  bucket = local.logs_bucket
}

resource "aws_s3_bucket_public_access_block" "this" {
  for_each = merge(local.bucket, { logs = aws_s3_bucket.logs.id })

  bucket                  = each.value
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  for_each = merge(local.bucket, { logs = aws_s3_bucket.logs.id })

  bucket = each.value

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_versioning" "this" {
  for_each = merge(local.bucket, { logs = aws_s3_bucket.logs.id })

  bucket = each.value

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  for_each = local.bucket

  bucket = each.value

  rule {
    bucket_key_enabled = true

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.this.arn
    }
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "logs" {
  bucket = aws_s3_bucket.logs.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_logging" "this" {
  for_each = local.bucket

  bucket        = each.value
  target_bucket = aws_s3_bucket.logs.id
  target_prefix = "${each.key}/"
}

resource "aws_s3_bucket_policy" "this" {
  for_each = aws_s3_bucket.this

  bucket = each.value.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TLSOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [each.value.arn, "${each.value.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

resource "aws_s3_bucket_policy" "logs" {
  bucket = aws_s3_bucket.logs.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TLSOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [aws_s3_bucket.logs.arn, "${aws_s3_bucket.logs.arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        Sid       = "LogDelivery"
        Effect    = "Allow"
        Principal = { Service = "logging.s3.amazonaws.com" }
        Action    = ["s3:PutObject"]
        Resource  = ["${aws_s3_bucket.logs.arn}/*"]
        Condition = { StringEquals = { "aws:SourceAccount" = var.account_id } }
      },
    ]
  })
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  #checkov:skip=CKV_AWS_300:the first rule sets it for every object (tests/storage.tftest.hcl holds it)
  for_each = var.buckets

  bucket     = local.bucket[each.key]
  depends_on = [aws_s3_bucket_versioning.this]

  rule {
    id     = "unfinished-uploads"
    status = "Enabled"
    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 3
    }
  }

  rule {
    id     = "old-versions"
    status = "Enabled"
    filter {}

    noncurrent_version_expiration {
      noncurrent_days = each.value.noncurrent_days
    }
  }

  dynamic "rule" {
    for_each = each.value.infrequent_days == null ? [] : [each.value.infrequent_days]

    content {
      id     = "infrequent"
      status = "Enabled"
      filter {}

      transition {
        days          = rule.value
        storage_class = "STANDARD_IA"
      }
    }
  }

  dynamic "rule" {
    for_each = each.value.expire_days == null ? [] : [each.value.expire_days]

    content {
      id     = "end"
      status = "Enabled"
      filter {}

      expiration {
        days = rule.value
      }
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "logs" {
  bucket     = aws_s3_bucket.logs.id
  depends_on = [aws_s3_bucket_versioning.this]

  rule {
    id     = "end"
    status = "Enabled"
    filter {}

    expiration {
      days = 365
    }

    noncurrent_version_expiration {
      noncurrent_days = 7
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 3
    }
  }
}
