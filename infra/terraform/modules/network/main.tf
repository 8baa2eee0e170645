# Three tiers. Public: NAT gateways alone. Private: Ray, the control plane, the database. Sandbox: Docker hosts that run
# what strangers wrote; its route table has no default route, so that no packet of theirs reaches the internet, or comes
# from it. What they ask the resolver would: names.tf.

locals {
  zones     = { for index, zone in var.network.zones : zone => index }
  nat_zones = var.network.nat_in_every_zone ? var.network.zones : slice(var.network.zones, 0, 1)

  # What may be asked of each service through its endpoint. Images are pushed from elsewhere.
  pull = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetAuthorizationToken", "ecr:GetDownloadUrlForLayer"]
  interfaces = {
    "ecr.api"        = local.pull
    "ecr.dkr"        = local.pull
    "logs"           = ["logs:CreateLogStream", "logs:DescribeLogGroups", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    "secretsmanager" = ["secretsmanager:DescribeSecret", "secretsmanager:GetSecretValue"]
  }
}

resource "aws_vpc" "this" {
  cidr_block           = var.network.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true

  tags = { Name = var.name }
}

# The default group allows its members everything: nobody shall be a member of it by oversight.
resource "aws_default_security_group" "closed" {
  vpc_id = aws_vpc.this.id
}

resource "aws_subnet" "public" {
  for_each = local.zones

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.network.cidr, 4, each.value)
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-public-${each.key}" }
}

resource "aws_subnet" "private" {
  for_each = local.zones

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.network.cidr, 4, 4 + each.value)
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-private-${each.key}" }
}

resource "aws_subnet" "sandbox" {
  for_each = local.zones

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.network.cidr, 4, 8 + each.value)
  map_public_ip_on_launch = false

  tags = { Name = "${var.name}-sandbox-${each.key}" }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id

  tags = { Name = var.name }
}

resource "aws_eip" "nat" {
  for_each = toset(local.nat_zones)

  domain = "vpc"

  tags = { Name = "${var.name}-nat-${each.key}" }
}

resource "aws_nat_gateway" "this" {
  for_each = toset(local.nat_zones)

  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.public[each.key].id

  tags       = { Name = "${var.name}-${each.key}" }
  depends_on = [aws_internet_gateway.this]
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.this.id
  }

  tags = { Name = "${var.name}-public" }
}

resource "aws_route_table" "private" {
  for_each = local.zones

  vpc_id = aws_vpc.this.id

  route {
    cidr_block     = "0.0.0.0/0"
    nat_gateway_id = aws_nat_gateway.this[var.network.nat_in_every_zone ? each.key : local.nat_zones[0]].id
  }

  tags = { Name = "${var.name}-private-${each.key}" }
}

# An empty list, not an absent one: a route that somebody adds by hand is removed by the next apply.
resource "aws_route_table" "sandbox" {
  vpc_id = aws_vpc.this.id
  route  = []

  tags = { Name = "${var.name}-sandbox" }
}

resource "aws_route_table_association" "public" {
  for_each = local.zones

  subnet_id      = aws_subnet.public[each.key].id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table_association" "private" {
  for_each = local.zones

  subnet_id      = aws_subnet.private[each.key].id
  route_table_id = aws_route_table.private[each.key].id
}

resource "aws_route_table_association" "sandbox" {
  for_each = local.zones

  subnet_id      = aws_subnet.sandbox[each.key].id
  route_table_id = aws_route_table.sandbox.id
}
