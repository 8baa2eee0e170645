mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name        = "unit"
  region      = "us-east-2"
  account_id  = "111122223333"
  network     = { cidr = "10.40.0.0/16", zones = ["us-east-2a", "us-east-2b"] }
  kms_key_arn = "arn:aws:kms:us-east-2:111122223333:key/1"
  log_days    = 365
  https_names = ["judge.example.com"]
}

run "the_sandbox_tier_leads_nowhere" {
  module {
    source = "./modules/network"
  }

  assert {
    condition     = length(aws_route_table.sandbox.route) == 0
    error_message = "The sandbox tier's route table must have no route."
  }

  assert {
    condition     = alltrue([for joined in aws_route_table_association.sandbox : joined.route_table_id == aws_route_table.sandbox.id]) && length(aws_route_table_association.sandbox) == length(aws_subnet.sandbox)
    error_message = "Every sandbox subnet must have that table."
  }

  assert {
    condition     = alltrue([for subnet in merge(aws_subnet.public, aws_subnet.private, aws_subnet.sandbox) : !subnet.map_public_ip_on_launch])
    error_message = "No subnet gives out public addresses."
  }

  assert {
    condition     = jsondecode(aws_vpc_endpoint.s3_sandbox.policy).Statement == [{ Sid = "LayersOfImages", Effect = "Allow", Principal = "*", Action = ["s3:GetObject"], Resource = ["arn:aws:s3:::prod-us-east-2-starport-layer-bucket/*"] }]
    error_message = "Through the sandbox tier's S3 endpoint nothing but layers of images can be had, and nothing be put."
  }

  assert {
    condition     = [for said in jsondecode(aws_vpc_endpoint.s3_private.policy).Statement : said.Sid if said.Action != ["s3:GetObject"]] == ["OwnBuckets"] && jsondecode(aws_vpc_endpoint.s3_private.policy).Statement[0].Condition.StringEquals["aws:ResourceAccount"] == var.account_id
    error_message = "Through the private tier's S3 endpoint nothing can be put into a stranger's bucket."
  }

  assert {
    condition     = aws_vpc_endpoint.s3_sandbox.route_table_ids == toset([aws_route_table.sandbox.id]) && !contains(aws_vpc_endpoint.s3_private.route_table_ids, aws_route_table.sandbox.id)
    error_message = "The sandbox tier must not have the private tier's S3 endpoint."
  }

  assert {
    condition     = alltrue([for endpoint in aws_vpc_endpoint.interface : alltrue([for said in jsondecode(endpoint.policy).Statement : said.Condition.StringEquals["aws:PrincipalAccount"] == "111122223333" && alltrue([for action in said.Action : !strcontains(action, "*")])])])
    error_message = "Interface endpoints are for this account, and for named actions."
  }

  assert {
    condition     = length(distinct([for subnet in merge({ for zone, made in aws_subnet.public : "public-${zone}" => made }, { for zone, made in aws_subnet.private : "private-${zone}" => made }, { for zone, made in aws_subnet.sandbox : "sandbox-${zone}" => made }) : subnet.cidr_block])) == 6
    error_message = "Subnets must not share addresses."
  }

  assert {
    condition     = aws_flow_log.this.traffic_type == "ALL" && aws_cloudwatch_log_group.flow.kms_key_id == var.kms_key_arn
    error_message = "Every connection is logged, encrypted."
  }

  assert {
    condition     = aws_route53_resolver_firewall_rule.known.action == "ALLOW" && aws_route53_resolver_firewall_rule.every.action == "BLOCK" && aws_route53_resolver_firewall_rule.known.priority < aws_route53_resolver_firewall_rule.every.priority && aws_route53_resolver_firewall_domain_list.every.domains == toset(["*"]) && aws_route53_resolver_firewall_rule.every.firewall_domain_list_id == aws_route53_resolver_firewall_domain_list.every.id && aws_route53_resolver_firewall_rule.known.firewall_domain_list_id == aws_route53_resolver_firewall_domain_list.known.id
    error_message = "No name is looked up but those that are known."
  }

  assert {
    condition     = alltrue([for name in aws_route53_resolver_firewall_domain_list.known.domains : can(regex("(^|\\.)(unit|us-east-2\\.compute|ec2)\\.internal$|(^|\\.)(api\\.ecr|111122223333\\.dkr\\.ecr|logs|secretsmanager|s3|efs)\\.us-east-2\\.amazonaws\\.com$|^\\*\\.us-east-2\\.rds\\.amazonaws\\.com$|(^|\\.)s3\\.amazonaws\\.com$|^judge\\.example\\.com$", name))]) && contains(aws_route53_resolver_firewall_domain_list.known.domains, "judge.example.com")
    error_message = "Known are this environment, the services it uses, and what was named."
  }

  assert {
    condition     = aws_route53_resolver_firewall_rule_group_association.this.vpc_id == aws_vpc.this.id && aws_route53_resolver_firewall_config.this.resource_id == aws_vpc.this.id && aws_route53_resolver_firewall_config.this.firewall_fail_open == "DISABLED"
    error_message = "The network's resolver is behind the firewall, also when that does not answer."
  }

  assert {
    condition     = aws_route53_resolver_query_log_config_association.this.resource_id == aws_vpc.this.id && aws_route53_resolver_query_log_config.this.destination_arn == aws_cloudwatch_log_group.names.arn && aws_cloudwatch_log_group.names.kms_key_id == var.kms_key_arn
    error_message = "Every question is logged, encrypted."
  }

  assert {
    condition     = length(aws_nat_gateway.this) == 1
    error_message = "One NAT gateway unless every zone shall have one."
  }
}

run "zones_and_range_are_checked" {
  command = plan

  module {
    source = "./modules/network"
  }

  variables {
    network = { cidr = "10.40.0.0/24", zones = ["us-east-2a"] }
  }

  expect_failures = [var.network]
}

run "a_name_of_everything_is_refused" {
  command = plan

  module {
    source = "./modules/network"
  }

  variables {
    https_names = ["*"]
  }

  expect_failures = [var.https_names]
}
