# Which names are looked up. The resolver is subject to no route and no security group, and what it is asked goes to
# whoever owns the name: with it alone a host could send data anywhere. It answers for a whole network, so these are the
# names of every tier; nobody but AWS and those in `https_names` sees a question about one of them.

locals {
  names = concat(
    ["${var.name}.internal", "*.${var.name}.internal", "*.${var.region}.compute.internal", "*.ec2.internal"],
    [for service in ["api.ecr", "logs", "secretsmanager", "s3"] : "${service}.${var.region}.amazonaws.com"],
    ["${var.account_id}.dkr.ecr.${var.region}.amazonaws.com", "*.s3.${var.region}.amazonaws.com"],
    ["s3.amazonaws.com", "*.s3.amazonaws.com"], # as clients say it in us-east-1
    ["*.efs.${var.region}.amazonaws.com", "*.${var.region}.rds.amazonaws.com"],
    var.https_names,
  )
}

resource "aws_route53_resolver_firewall_domain_list" "known" {
  name    = "${var.name}-known"
  domains = local.names
}

resource "aws_route53_resolver_firewall_domain_list" "every" {
  name    = "${var.name}-every"
  domains = ["*"]
}

resource "aws_route53_resolver_firewall_rule_group" "this" {
  name = var.name
}

# What a known name is an alias of (S3's are) is its owner's.
resource "aws_route53_resolver_firewall_rule" "known" {
  name                               = "known"
  firewall_rule_group_id             = aws_route53_resolver_firewall_rule_group.this.id
  firewall_domain_list_id            = aws_route53_resolver_firewall_domain_list.known.id
  firewall_domain_redirection_action = "TRUST_REDIRECTION_DOMAIN"
  priority                           = 100
  action                             = "ALLOW"
}

resource "aws_route53_resolver_firewall_rule" "every" {
  name                    = "every"
  firewall_rule_group_id  = aws_route53_resolver_firewall_rule_group.this.id
  firewall_domain_list_id = aws_route53_resolver_firewall_domain_list.every.id
  priority                = 200
  action                  = "BLOCK"
  block_response          = "NXDOMAIN"
}

resource "aws_route53_resolver_firewall_rule_group_association" "this" {
  name                   = var.name
  firewall_rule_group_id = aws_route53_resolver_firewall_rule_group.this.id
  vpc_id                 = aws_vpc.this.id
  priority               = 101
}

# A firewall that does not answer is not taken for one that allows.
resource "aws_route53_resolver_firewall_config" "this" {
  resource_id        = aws_vpc.this.id
  firewall_fail_open = "DISABLED"
}

resource "aws_cloudwatch_log_group" "names" {
  name              = "/${var.name}/names"
  retention_in_days = var.log_days
  kms_key_id        = var.kms_key_arn
}

resource "aws_route53_resolver_query_log_config" "this" {
  name            = var.name
  destination_arn = aws_cloudwatch_log_group.names.arn
}

resource "aws_route53_resolver_query_log_config_association" "this" {
  resolver_query_log_config_id = aws_route53_resolver_query_log_config.this.id
  resource_id                  = aws_vpc.this.id
}
