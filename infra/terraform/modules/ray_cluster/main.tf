# A head whose address never changes, and groups of GPU machines beside it. Machines run one container with the host's
# network: a hop limit of 1 keeps the instance's role from any container that has a network of its own.

locals {
  head_host = "ray.${var.zone.name}"
  ports     = { gcs = 6379, dashboard = 8265 }

  node = {
    region          = var.region
    shared_id       = var.shared.id
    access_point_id = var.shared.access_point_id
    ray_secret      = aws_secretsmanager_secret.ray_token.arn
    docker_secret   = var.docker_client_secret_arn
    log_group       = var.log_group.name
  }
}

resource "aws_secretsmanager_secret" "ray_token" {
  #checkov:skip=CKV2_AWS_57:Ray reads its token when it starts: rotating it means restarting every node (docs/operations.md)
  name                    = "${var.name}/ray-token"
  description             = "What Ray's Jobs API and nodes ask for"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = 7
}

resource "aws_security_group" "this" {
  name        = "${var.name}-ray"
  description = "Ray: its own machines, and the control plane's jobs"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-ray" }
}

# EFA wants a group that may send everything to itself, and get everything from itself.
resource "aws_vpc_security_group_ingress_rule" "self" {
  security_group_id            = aws_security_group.this.id
  description                  = "Ray, NCCL and EFA among its own machines"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "self" {
  security_group_id            = aws_security_group.this.id
  description                  = "Ray, NCCL and EFA among its own machines"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_ingress_rule" "jobs" {
  for_each = var.dashboard_security_group_ids

  security_group_id            = aws_security_group.this.id
  description                  = "Jobs API from ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = local.ports.dashboard
  to_port                      = local.ports.dashboard
}

resource "aws_vpc_security_group_egress_rule" "to" {
  for_each = var.egress

  security_group_id            = aws_security_group.this.id
  description                  = "To ${each.key}"
  referenced_security_group_id = each.value.security_group_id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  security_group_id = aws_security_group.this.id
  description       = "To S3 through its endpoint"
  prefix_list_id    = var.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "https" {
  for_each = toset(var.https_cidrs)

  security_group_id = aws_security_group.this.id
  description       = "HTTPS to ${each.key}"
  cidr_ipv4         = each.key
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_network_interface" "head" {
  subnet_id       = var.subnets[var.head.zone]
  security_groups = [aws_security_group.this.id]

  tags = { Name = "${var.name}-ray-head" }
}

resource "aws_route53_record" "head" {
  #checkov:skip=CKV2_AWS_23:it names the head's network interface, which the scanner does not know
  zone_id = var.zone.id
  name    = local.head_host
  type    = "A"
  ttl     = 60
  records = [aws_network_interface.head.private_ip]
}

resource "aws_instance" "head" {
  ami                  = var.ami_id
  instance_type        = var.head.instance_type
  iam_instance_profile = aws_iam_instance_profile.this.name
  ebs_optimized        = true
  monitoring           = true

  network_interface {
    device_index         = 0
    network_interface_id = aws_network_interface.head.id
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    encrypted   = true
    kms_key_id  = var.kms_key_arn
    volume_type = "gp3"
    volume_size = var.head.volume_gb
  }

  user_data_replace_on_change = false
  user_data = templatefile("${path.module}/node.sh.tftpl", merge(local.node, {
    image = var.images.trainer
    gpus  = var.head.gpus
    start = "--head --port=${local.ports.gcs} --dashboard-host=0.0.0.0 --dashboard-port=${local.ports.dashboard}"
  }))

  tags = { Name = "${var.name}-ray-head" }
}

resource "aws_placement_group" "group" {
  for_each = { for name, group in var.groups : name => group if group.efa_interfaces > 0 }

  name     = "${var.name}-${each.key}"
  strategy = "cluster"
}

resource "aws_launch_template" "group" {
  for_each = var.groups

  name_prefix            = "${var.name}-${each.key}-"
  image_id               = var.ami_id
  instance_type          = each.value.instance_type
  ebs_optimized          = true
  update_default_version = true

  iam_instance_profile {
    arn = aws_iam_instance_profile.this.arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  monitoring {
    enabled = true
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.capacity_reservation_id == null ? [] : [each.value.capacity_reservation_id]

    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  # Without EFA one plain interface; with it, one for each card, of which the first carries the addresses.
  dynamic "network_interfaces" {
    for_each = range(max(1, each.value.efa_interfaces))

    content {
      network_card_index          = network_interfaces.value
      device_index                = network_interfaces.value == 0 ? 0 : 1
      interface_type              = each.value.efa_interfaces > 0 ? "efa" : null
      security_groups             = [aws_security_group.this.id]
      associate_public_ip_address = each.value.efa_interfaces > 1 ? null : false
      delete_on_termination       = true
    }
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      encrypted   = true
      kms_key_id  = var.kms_key_arn
      volume_type = "gp3"
      volume_size = each.value.volume_gb
    }
  }

  user_data = base64encode(templatefile("${path.module}/node.sh.tftpl", merge(local.node, {
    image = var.images[each.value.image]
    gpus  = true
    start = "--address=${local.head_host}:${local.ports.gcs}"
  })))

  tag_specifications {
    resource_type = "instance"
    tags          = { Name = "${var.name}-${each.key}" }
  }
}

resource "aws_autoscaling_group" "group" {
  for_each = var.groups

  name                = "${var.name}-${each.key}"
  min_size            = each.value.count
  max_size            = each.value.count
  desired_capacity    = each.value.count
  vpc_zone_identifier = [var.subnets[each.value.zone]]
  placement_group     = each.value.efa_interfaces > 0 ? aws_placement_group.group[each.key].name : null
  health_check_type   = "EC2"

  launch_template {
    id      = aws_launch_template.group[each.key].id
    version = aws_launch_template.group[each.key].latest_version
  }

  tag {
    key                 = "Name"
    value               = "${var.name}-${each.key}"
    propagate_at_launch = true
  }
}
