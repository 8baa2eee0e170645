# One environment. Modules know nothing of each other: what one needs of another is handed over here.

locals {
  repositories = module.registry.repositories
}

module "storage" {
  source = "./modules/storage"

  name             = var.name
  region           = var.region
  account_id       = var.account_id
  autoscaling_role = var.autoscaling_role
  buckets          = var.buckets
  shared           = { vpc_id = module.network.vpc_id, subnets = module.network.private_subnets }
  shared_role_arns = { ray = module.ray_cluster.role_arn, worker = module.control_plane.worker_role_arn }
}

module "network" {
  source = "./modules/network"

  name        = var.name
  region      = var.region
  account_id  = var.account_id
  network     = var.network
  https_names = var.https_names
  kms_key_arn = module.storage.kms_key_arn
  log_days    = var.log_days
}

module "registry" {
  source = "./modules/registry"

  name        = var.name
  kms_key_arn = module.storage.kms_key_arn
}

module "database" {
  source = "./modules/database"

  name                      = var.name
  vpc_id                    = module.network.vpc_id
  subnet_ids                = values(module.network.private_subnets)
  client_security_group_ids = { control-plane = module.control_plane.security_group_id }
  kms_key_arn               = module.storage.kms_key_arn
  database                  = var.database
}

module "ray_cluster" {
  source = "./modules/ray_cluster"

  name                         = var.name
  region                       = var.region
  vpc_id                       = module.network.vpc_id
  subnets                      = module.network.private_subnets
  zone                         = module.network.zone
  ami_id                       = var.amis.ray
  images                       = { trainer = var.images.trainer, sampler = var.images.sampler }
  head                         = var.head
  groups                       = var.groups
  kms_key_arn                  = module.storage.kms_key_arn
  buckets                      = module.storage.buckets
  shared                       = module.storage.shared
  repository_arns              = [local.repositories["trainer"].arn, local.repositories["sampler"].arn]
  docker_client_secret_arn     = module.sandbox_pool.client_secret_arn
  log_group                    = module.observability.log_groups["ray"]
  dashboard_security_group_ids = { control-plane = module.control_plane.security_group_id }
  s3_prefix_list_id            = module.network.s3_private_prefix_list_id
  https_cidrs                  = var.https_cidrs

  egress = {
    docker    = { security_group_id = module.sandbox_pool.security_group_id, port = module.sandbox_pool.port }
    endpoints = { security_group_id = module.network.endpoints_security_group_id, port = 443 }
    shared    = { security_group_id = module.storage.shared.security_group_id, port = 2049 }
  }
}

module "sandbox_pool" {
  source = "./modules/sandbox_pool"

  name                        = var.name
  region                      = var.region
  vpc_id                      = module.network.vpc_id
  subnets                     = module.network.sandbox_subnets
  zone                        = module.network.zone
  ami_id                      = var.amis.sandbox
  hosts                       = var.sandbox
  ray_security_group_id       = module.ray_cluster.security_group_id
  endpoints_security_group_id = module.network.endpoints_security_group_id
  s3_prefix_list_id           = module.network.s3_sandbox_prefix_list_id
  kms_key_arn                 = module.storage.kms_key_arn
  repository_arn              = local.repositories["boxes"].arn
  box_image                   = var.images.box
  log_group                   = module.observability.log_groups["sandbox"]
}

module "control_plane" {
  source = "./modules/control_plane"

  name              = var.name
  region            = var.region
  vpc_id            = module.network.vpc_id
  subnet_ids        = values(module.network.private_subnets)
  image             = var.images.control_plane
  repository_arn    = local.repositories["control-plane"].arn
  people_cidrs      = var.people_cidrs
  s3_prefix_list_id = module.network.s3_private_prefix_list_id
  ray               = { jobs_url = module.ray_cluster.jobs_url, token_secret_arn = module.ray_cluster.token_secret_arn }
  store             = coalesce(var.store, "s3://${module.storage.buckets["artifacts"].name}/store")
  buckets           = module.storage.buckets
  shared            = module.storage.shared
  kms_key_arn       = module.storage.kms_key_arn
  log_groups        = { for name in ["prefect", "mlflow", "worker"] : name => module.observability.log_groups[name] }

  egress = {
    database  = { security_group_id = module.database.security_group_id, port = 5432 }
    jobs      = { security_group_id = module.ray_cluster.security_group_id, port = module.ray_cluster.jobs_port }
    endpoints = { security_group_id = module.network.endpoints_security_group_id, port = 443 }
    shared    = { security_group_id = module.storage.shared.security_group_id, port = 2049 }
  }
}

module "observability" {
  source = "./modules/observability"

  name             = var.name
  region           = var.region
  account_id       = var.account_id
  emails           = var.emails
  budget_usd       = var.budget_usd
  log_days         = var.log_days
  kms_key_arn      = module.storage.kms_key_arn
  head_instance_id = module.ray_cluster.head_instance_id
  sandbox_hosts    = module.sandbox_pool.instances
  flow_log_group   = module.network.flow_log_group
  database         = { identifier = module.database.identifier }
  control_plane    = { cluster = module.control_plane.cluster, services = module.control_plane.services }
}

# The file system admits whoever mounts it, and nobody else.
resource "aws_vpc_security_group_ingress_rule" "shared" {
  for_each = {
    ray           = module.ray_cluster.security_group_id
    control-plane = module.control_plane.security_group_id
  }

  security_group_id            = module.storage.shared.security_group_id
  description                  = "NFS from ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 2049
  to_port                      = 2049
}
