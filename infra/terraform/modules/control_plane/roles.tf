# The execution role starts containers (image, secrets, log); a task role is what runs in one.

locals {
  assumed_by_tasks = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ecs-tasks.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })

  key = { Sid = "Key", Effect = "Allow", Action = ["kms:Decrypt", "kms:GenerateDataKey"], Resource = [var.kms_key_arn] }

  # Prefect's server does nothing in AWS by itself, and has a role without a policy.
  statements = {
    mlflow = [
      local.key,
      {
        Sid      = "Artifacts"
        Effect   = "Allow"
        Action   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
        Resource = ["${var.buckets["mlflow"].arn}/*"]
      },
      {
        Sid      = "Names"
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = [var.buckets["mlflow"].arn]
      },
    ]
    worker = [
      local.key,
      {
        Sid      = "Campaigns"
        Effect   = "Allow"
        Action   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject"]
        Resource = ["${var.buckets["artifacts"].arn}/*"]
      },
      {
        Sid      = "Names"
        Effect   = "Allow"
        Action   = ["s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads"]
        Resource = [var.buckets["artifacts"].arn, var.buckets["pools"].arn]
      },
      {
        Sid      = "Tasks"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["${var.buckets["pools"].arn}/*"]
      },
      {
        Sid       = "Shared"
        Effect    = "Allow"
        Action    = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
        Resource  = [var.shared.arn]
        Condition = { StringEquals = { "elasticfilesystem:AccessPointArn" = var.shared.access_point_arn } }
      },
    ]
  }
}

resource "aws_iam_role" "execution" {
  name               = "${var.name}-control-plane-start"
  assume_role_policy = local.assumed_by_tasks
}

resource "aws_iam_role_policy" "execution" {
  name = "start"
  role = aws_iam_role.execution.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Image"
        Effect   = "Allow"
        Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
        Resource = [var.repository_arn]
      },
      {
        # A login is for the whole registry: the action knows no resource.
        Sid      = "Login"
        Effect   = "Allow"
        Action   = ["ecr:GetAuthorizationToken"]
        Resource = "*"
      },
      {
        Sid      = "Logs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = [for group in values(var.log_groups) : "${group.arn}:*"]
      },
      {
        Sid      = "Secrets"
        Effect   = "Allow"
        Action   = ["secretsmanager:GetSecretValue"]
        Resource = concat(values(local.secret), [var.ray.token_secret_arn])
      },
      {
        Sid      = "Key"
        Effect   = "Allow"
        Action   = ["kms:Decrypt"]
        Resource = [var.kms_key_arn]
      },
    ]
  })
}

resource "aws_iam_role" "task" {
  for_each = local.services

  name               = "${var.name}-${each.key}"
  assume_role_policy = local.assumed_by_tasks
}

resource "aws_iam_role_policy" "task" {
  for_each = local.statements

  name   = "work"
  role   = aws_iam_role.task[each.key].id
  policy = jsonencode({ Version = "2012-10-17", Statement = each.value })
}
