# Tags are immutable: what was tested under a name is what runs under it.

resource "aws_ecr_repository" "this" {
  for_each = var.images

  name                 = "${var.name}/${each.key}"
  image_tag_mutability = "IMMUTABLE"

  image_scanning_configuration {
    scan_on_push = true
  }

  encryption_configuration {
    encryption_type = "KMS"
    kms_key         = var.kms_key_arn
  }
}

resource "aws_ecr_lifecycle_policy" "this" {
  for_each = aws_ecr_repository.this

  repository = each.value.name

  policy = jsonencode({
    rules = [
      {
        rulePriority = 1
        description  = "what no tag names"
        selection    = { tagStatus = "untagged", countType = "sinceImagePushed", countUnit = "days", countNumber = 7 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 2
        description  = "the oldest"
        selection    = { tagStatus = "any", countType = "imageCountMoreThan", countNumber = var.kept }
        action       = { type = "expire" }
      },
    ]
  })
}
