# Docker hosts for what strangers wrote. Reached by Ray's machines alone, with a certificate; reaching the endpoints
# alone. Each has a name of its own, because a box lives on one engine: no balancer may stand before them.

locals {
  hosts = { for index in range(var.hosts.count) : "sandbox-${index}" => "sandbox-${index}.${var.zone.name}" }
  port  = 2376

  # No `userns-remap`: sealing the tests (chattr +i) does not work under it, and opening a backend would refuse. No
  # bridge and no iptables: boxes have no network but the proxy that a job's process is. Boxes bring a seccomp profile,
  # dropped capabilities and no-new-privileges themselves (components/sandbox/docker/profile.py).
  daemon = {
    hosts                 = ["tcp://0.0.0.0:${local.port}", "unix:///var/run/docker.sock"]
    tls                   = true
    tlsverify             = true
    tlscacert             = "/etc/docker/tls/ca.pem"
    tlscert               = "/etc/docker/tls/cert.pem"
    tlskey                = "/etc/docker/tls/key.pem"
    bridge                = "none"
    iptables              = false
    ip6tables             = false
    userland-proxy        = false
    storage-driver        = "overlay2"
    data-root             = "/var/lib/docker"
    log-driver            = "none"
    default-address-pools = [{ base = "172.30.0.0/16", size = 24 }]
    default-ulimits       = { core = { Name = "core", Hard = 0, Soft = 0 } }
  }
}

resource "aws_secretsmanager_secret" "tls" {
  #checkov:skip=CKV2_AWS_57:certificates are issued outside of AWS, and changed by docs/operations.md
  for_each = toset(["server", "client"])

  name                    = "${var.name}/docker-${each.key}"
  description             = "JSON with ca.pem, cert.pem and key.pem of the engines' ${each.key}"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = 7
}

resource "aws_security_group" "this" {
  name        = "${var.name}-sandbox"
  description = "Docker engines: from Ray by TLS, to the endpoints"
  vpc_id      = var.vpc_id

  tags = { Name = "${var.name}-sandbox" }
}

resource "aws_vpc_security_group_ingress_rule" "engine" {
  security_group_id            = aws_security_group.this.id
  description                  = "The engine, from Ray, with a certificate"
  referenced_security_group_id = var.ray_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = local.port
  to_port                      = local.port
}

resource "aws_vpc_security_group_egress_rule" "endpoints" {
  security_group_id            = aws_security_group.this.id
  description                  = "To the interface endpoints"
  referenced_security_group_id = var.endpoints_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  security_group_id = aws_security_group.this.id
  description       = "To the layers of images"
  prefix_list_id    = var.s3_prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_iam_role" "this" {
  name = "${var.name}-sandbox"

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
  name = "${var.name}-sandbox"
  role = aws_iam_role.this.name
}

resource "aws_iam_role_policy" "this" {
  name = "pull-and-log"
  role = aws_iam_role.this.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Images"
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
        Resource = ["${var.log_group.arn}:*"]
      },
      {
        Sid      = "OwnCertificate"
        Effect   = "Allow"
        Action   = ["secretsmanager:GetSecretValue"]
        Resource = [aws_secretsmanager_secret.tls["server"].arn]
      },
      {
        Sid       = "KeyOfThatCertificate"
        Effect    = "Allow"
        Action    = ["kms:Decrypt"]
        Resource  = [var.kms_key_arn]
        Condition = { StringEquals = { "kms:EncryptionContext:SecretARN" = aws_secretsmanager_secret.tls["server"].arn } }
      },
    ]
  })
}

resource "aws_network_interface" "this" {
  for_each = local.hosts

  subnet_id       = var.subnets[var.hosts.zone]
  security_groups = [aws_security_group.this.id]

  tags = { Name = "${var.name}-${each.key}" }
}

resource "aws_route53_record" "this" {
  #checkov:skip=CKV2_AWS_23:it names a host's network interface, which the scanner does not know
  for_each = local.hosts

  zone_id = var.zone.id
  name    = each.value
  type    = "A"
  ttl     = 60
  records = [aws_network_interface.this[each.key].private_ip]
}

resource "aws_instance" "this" {
  for_each = local.hosts

  ami                  = var.ami_id
  instance_type        = var.hosts.instance_type
  iam_instance_profile = aws_iam_instance_profile.this.name
  ebs_optimized        = true
  monitoring           = true

  network_interface {
    device_index         = 0
    network_interface_id = aws_network_interface.this[each.key].id
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
    volume_size = 30
  }

  # Docker's data: XFS with project quotas, so that `sandbox.disk_mb` is a limit and not a guess.
  ebs_block_device {
    device_name = "/dev/sdf"
    encrypted   = true
    kms_key_id  = var.kms_key_arn
    volume_type = "gp3"
    volume_size = var.hosts.data_gb
    iops        = 6000
    throughput  = 500
  }

  user_data_replace_on_change = true
  user_data = templatefile("${path.module}/host.sh.tftpl", {
    region    = var.region
    secret    = aws_secretsmanager_secret.tls["server"].arn
    daemon    = jsonencode(local.daemon)
    image     = var.box_image
    log_group = var.log_group.name
    host      = each.key
  })

  tags = { Name = "${var.name}-${each.key}" }
}
