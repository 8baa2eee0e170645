# What is reached without the internet. The sandbox tier has an S3 endpoint of its own, through which nothing can be
# fetched but the layers of ECR images, and nothing be put anywhere.

resource "aws_security_group" "endpoints" {
  name        = "${var.name}-endpoints"
  description = "Interface endpoints: HTTPS from the private and the sandbox tier"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${var.name}-endpoints" }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  for_each = merge(
    { for zone, subnet in aws_subnet.private : "private-${zone}" => subnet.cidr_block },
    { for zone, subnet in aws_subnet.sandbox : "sandbox-${zone}" => subnet.cidr_block },
  )

  security_group_id = aws_security_group.endpoints.id
  description       = "HTTPS from ${each.key}"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.interfaces

  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for subnet in aws_subnet.private : subnet.id]
  security_group_ids  = [aws_security_group.endpoints.id]

  # The identities of this account alone: keys that somebody brings along are of no use here.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OwnAccount"
      Effect    = "Allow"
      Principal = "*"
      Action    = each.value
      Resource  = "*"
      Condition = { StringEquals = { "aws:PrincipalAccount" = var.account_id } }
    }]
  })

  tags = { Name = "${var.name}-${each.key}" }
}

resource "aws_vpc_endpoint" "s3_private" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [for table in aws_route_table.private : table.id]

  # Buckets of this account, and the layers of ECR images: nothing that is here can be put into a stranger's bucket.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OwnBuckets"
        Effect    = "Allow"
        Principal = "*"
        Action = [
          "s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketLocation", "s3:GetObject", "s3:PutObject",
          "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts",
        ]
        Resource  = "*"
        Condition = { StringEquals = { "aws:ResourceAccount" = var.account_id, "aws:PrincipalAccount" = var.account_id } }
      },
      {
        Sid       = "LayersOfImages"
        Effect    = "Allow"
        Principal = "*"
        Action    = ["s3:GetObject"]
        Resource  = ["arn:aws:s3:::prod-${var.region}-starport-layer-bucket/*"]
      },
    ]
  })

  tags = { Name = "${var.name}-s3-private" }
}

resource "aws_vpc_endpoint" "s3_sandbox" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.sandbox.id]

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "LayersOfImages"
      Effect    = "Allow"
      Principal = "*"
      Action    = ["s3:GetObject"]
      Resource  = ["arn:aws:s3:::prod-${var.region}-starport-layer-bucket/*"]
    }]
  })

  tags = { Name = "${var.name}-s3-sandbox" }
}
