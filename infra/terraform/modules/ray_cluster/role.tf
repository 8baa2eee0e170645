# What jobs may do: write campaigns, read tasks, pull images, log, and read two secrets. Nothing about machines.

resource "aws_iam_role" "this" {
  name = "${var.name}-ray"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_instance_profile" "this" {
  name = "${var.name}-ray"
  role = aws_iam_role.this.name
}

resource "aws_iam_role_policy" "this" {
  name = "jobs"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Campaigns"
        Effect   = "Allow"
        Action   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListMultipartUploadParts", "s3:PutObject"]
        Resource = ["${var.buckets["artifacts"].arn}/*"]
      },
      {
        Sid      = "Tasks"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["${var.buckets["pools"].arn}/*"]
      },
      {
        Sid      = "Names"
        Effect   = "Allow"
        Action   = ["s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads"]
        Resource = [var.buckets["artifacts"].arn, var.buckets["pools"].arn]
      },
      {
        Sid      = "Key"
        Effect   = "Allow"
        Action   = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource = [var.kms_key_arn]
      },
      {
        Sid       = "Shared"
        Effect    = "Allow"
        Action    = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
        Resource  = [var.shared.arn]
        Condition = { StringEquals = { "elasticfilesystem:AccessPointArn" = var.shared.access_point_arn } }
      },
      {
        Sid      = "Secrets"
        Effect   = "Allow"
        Action   = ["secretsmanager:GetSecretValue"]
        Resource = [aws_secretsmanager_secret.ray_token.arn, var.docker_client_secret_arn]
      },
      {
        Sid      = "Images"
        Effect   = "Allow"
        Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
        Resource = var.repository_arns
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
        Resource = ["${var.log_group.arn}:*"]
      },
    ]
  })
}
