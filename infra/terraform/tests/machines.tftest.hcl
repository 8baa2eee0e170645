mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name                         = "unit"
  region                       = "us-east-2"
  vpc_id                       = "vpc-1"
  subnets                      = { us-east-2a = "subnet-1" }
  zone                         = { id = "Z1", name = "unit.internal" }
  ami_id                       = "ami-0123456789abcdef0"
  kms_key_arn                  = "arn:aws:kms:us-east-2:111122223333:key/1"
  images                       = { trainer = "registry.example/unit/trainer:1", sampler = "registry.example/unit/sampler:1" }
  head                         = { instance_type = "p5.48xlarge", zone = "us-east-2a" }
  groups                       = { samplers = { instance_type = "p5.48xlarge", count = 8, zone = "us-east-2a", efa_interfaces = 32 }, small = { instance_type = "g6.xlarge", count = 1, zone = "us-east-2a" } }
  buckets                      = { artifacts = { name = "a", arn = "arn:aws:s3:::a" }, pools = { name = "p", arn = "arn:aws:s3:::p" }, mlflow = { name = "m", arn = "arn:aws:s3:::m" } }
  shared                       = { id = "fs-1", arn = "arn:aws:elasticfilesystem:us-east-2:111122223333:file-system/fs-1", access_point_id = "fsap-1", access_point_arn = "arn:aws:elasticfilesystem:us-east-2:111122223333:access-point/fsap-1", security_group_id = "sg-shared" }
  repository_arns              = ["arn:aws:ecr:us-east-2:111122223333:repository/trainer"]
  docker_client_secret_arn     = "arn:aws:secretsmanager:us-east-2:111122223333:secret:client"
  log_group                    = { name = "/unit/ray", arn = "arn:aws:logs:us-east-2:111122223333:log-group:/unit/ray" }
  dashboard_security_group_ids = { control-plane = "sg-control" }
  egress                       = { docker = { security_group_id = "sg-sandbox", port = 2376 } }
  s3_prefix_list_id            = "pl-1"

  hosts                       = { zone = "us-east-2a", count = 2 }
  ray_security_group_id       = "sg-ray"
  endpoints_security_group_id = "sg-endpoints"
  repository_arn              = "arn:aws:ecr:us-east-2:111122223333:repository/boxes"
  box_image                   = "registry.example/unit/boxes:1"
}

run "ray_has_what_its_jobs_need_and_no_more" {
  module {
    source = "./modules/ray_cluster"
  }

  assert {
    condition     = alltrue([for said in jsondecode(aws_iam_role_policy.this.policy).Statement : said.Effect == "Allow" && alltrue([for action in said.Action : !strcontains(action, "*")])])
    error_message = "No action of the role may be a wildcard."
  }

  assert {
    condition     = [for said in jsondecode(aws_iam_role_policy.this.policy).Statement : said.Sid if contains(flatten([said.Resource]), "*")] == ["Login"]
    error_message = "Only the registry's login, which knows no resource, is for every resource."
  }

  assert {
    condition     = alltrue([for said in jsondecode(aws_iam_role_policy.this.policy).Statement : !anytrue([for action in said.Action : startswith(action, "iam:") || startswith(action, "ec2:") || startswith(action, "sts:")])])
    error_message = "Jobs do nothing about machines or identities."
  }

  assert {
    condition     = flatten([for said in jsondecode(aws_iam_role_policy.this.policy).Statement : said.Resource if contains(said.Action, "s3:PutObject")]) == ["arn:aws:s3:::a/*"]
    error_message = "Jobs write campaigns' artifacts alone."
  }

  assert {
    condition     = aws_instance.head.metadata_options[0].http_tokens == "required" && aws_instance.head.metadata_options[0].http_put_response_hop_limit == 1 && aws_instance.head.root_block_device[0].encrypted
    error_message = "The head wants IMDSv2, one hop, and an encrypted disk."
  }

  assert {
    condition     = alltrue([for template in aws_launch_template.group : template.metadata_options[0].http_tokens == "required" && template.metadata_options[0].http_put_response_hop_limit == 1 && alltrue([for disk in template.block_device_mappings : disk.ebs[0].encrypted == "true"])])
    error_message = "Groups want IMDSv2, one hop, and encrypted disks."
  }

  assert {
    condition     = length(aws_launch_template.group["samplers"].network_interfaces) == 32 && alltrue([for card in aws_launch_template.group["samplers"].network_interfaces : card.interface_type == "efa"]) && keys(aws_placement_group.group) == ["samplers"]
    error_message = "A group with EFA has an interface a card, and is placed together."
  }

  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.jobs : rule.referenced_security_group_id == "sg-control" && rule.from_port == 8265 && rule.to_port == 8265 && rule.cidr_ipv4 == null]) && aws_vpc_security_group_ingress_rule.self.referenced_security_group_id == aws_security_group.this.id
    error_message = "Ray is reached by itself and, at the Jobs API, by the control plane."
  }

  assert {
    condition     = length(aws_vpc_security_group_egress_rule.https) == 0
    error_message = "No address outside is reached unless it is named."
  }

  assert {
    condition     = strcontains(aws_instance.head.user_data, "RAY_AUTH_MODE=token") && !strcontains(aws_instance.head.user_data, "--privileged") && strcontains(base64decode(aws_launch_template.group["small"].user_data), "--address=ray.unit.internal:6379")
    error_message = "Nodes ask for the token, and join the head by its name."
  }

  assert {
    condition     = alltrue([for data in [aws_instance.head.user_data, base64decode(aws_launch_template.group["small"].user_data)] : strcontains(data, "systemctl enable --now --no-block longshell-ray") && strcontains(data, "WantedBy=multi-user.target") && !strcontains(data, "--restart")])
    error_message = "Nodes become ready at every boot, by a unit that tries until there are secrets."
  }
}

run "engines_are_reached_by_ray_alone_and_reach_endpoints_alone" {
  module {
    source = "./modules/sandbox_pool"
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.engine.referenced_security_group_id == "sg-ray" && aws_vpc_security_group_ingress_rule.engine.cidr_ipv4 == null && aws_vpc_security_group_ingress_rule.engine.from_port == 2376 && aws_vpc_security_group_ingress_rule.engine.to_port == 2376
    error_message = "The only way in is Ray's, to the port with TLS."
  }

  assert {
    condition     = aws_vpc_security_group_egress_rule.endpoints.referenced_security_group_id == "sg-endpoints" && aws_vpc_security_group_egress_rule.s3.prefix_list_id == "pl-1" && aws_vpc_security_group_egress_rule.endpoints.cidr_ipv4 == null && aws_vpc_security_group_egress_rule.s3.cidr_ipv4 == null
    error_message = "The ways out are the endpoints and S3."
  }

  assert {
    condition     = toset(flatten([for said in jsondecode(aws_iam_role_policy.this.policy).Statement : said.Action])) == toset(["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer", "ecr:GetAuthorizationToken", "logs:CreateLogStream", "logs:PutLogEvents", "secretsmanager:GetSecretValue", "kms:Decrypt"])
    error_message = "Hosts pull, log, and read their own certificate."
  }

  assert {
    condition     = alltrue([for host in aws_instance.this : host.metadata_options[0].http_tokens == "required" && host.metadata_options[0].http_put_response_hop_limit == 1 && host.root_block_device[0].encrypted && alltrue([for disk in host.ebs_block_device : disk.encrypted])])
    error_message = "Hosts want IMDSv2, one hop, and encrypted disks."
  }

  assert {
    condition     = alltrue([for host in aws_instance.this : strcontains(host.user_data, "\"tlsverify\":true") && strcontains(host.user_data, "pquota") && !strcontains(host.user_data, "userns-remap")])
    error_message = "Engines ask for a certificate, count disks, and leave the user namespace alone: sealing does not work in one."
  }

  assert {
    condition     = alltrue([for host in aws_instance.this : strcontains(host.user_data, "systemctl enable --now --no-block longshell-engine") && strcontains(host.user_data, "systemctl mask --now amazon-ssm-agent")])
    error_message = "Hosts become ready at every boot, and have no agent that would send what is refused."
  }

  assert {
    condition     = output.docker_hosts == ["tcp://sandbox-0.unit.internal:2376", "tcp://sandbox-1.unit.internal:2376"]
    error_message = "Each engine has its own name."
  }
}

run "images_without_a_name_of_their_own_are_refused" {
  command = plan

  module {
    source = "./modules/ray_cluster"
  }

  variables {
    ami_id      = "amazon-linux"
    images      = { trainer = "registry.example/unit/trainer:latest", sampler = "registry.example/unit/sampler" }
    groups      = { odd = { instance_type = "g6.xlarge", count = 1, zone = "us-east-2a", image = "other" } }
    https_cidrs = ["everywhere"]
  }

  expect_failures = [var.ami_id, var.images, var.groups, var.https_cidrs]
}

run "hosts_without_room_are_refused" {
  command = plan

  module {
    source = "./modules/sandbox_pool"
  }

  variables {
    hosts     = { zone = "us-east-2a", count = 0, data_gb = 10 }
    box_image = "debian:latest"
  }

  expect_failures = [var.hosts, var.box_image]
}
