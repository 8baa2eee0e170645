variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "region" {
  description = "The region, for the registry's login."
  type        = string
}

variable "vpc_id" {
  description = "The network."
  type        = string
}

variable "subnets" {
  description = "Sandbox subnet ids by zone: those without a default route."
  type        = map(string)
}

variable "zone" {
  description = "The private DNS zone, in which hosts are `sandbox-<n>.<zone>`."
  type        = object({ id = string, name = string })
}

variable "ami_id" {
  description = "Amazon Linux with Docker Engine 20.10 or later, xfsprogs, the AWS CLI and the CloudWatch agent: nothing can be installed in the sandbox tier."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.ami_id))
    error_message = "ami_id must be one image (ami-...), not a name that may mean another tomorrow."
  }
}

variable "hosts" {
  description = "How many Docker hosts, of which type and zone, and the gigabytes of their data volume. A campaign uses one (`sandbox.docker.host`)."
  type = object({
    count         = optional(number, 1)
    instance_type = optional(string, "m7i.8xlarge")
    zone          = string
    data_gb       = optional(number, 1000)
  })

  validation {
    condition     = var.hosts.count >= 1 && var.hosts.count <= 32
    error_message = "hosts.count must be 1 to 32."
  }

  validation {
    condition     = var.hosts.data_gb >= 100
    error_message = "hosts.data_gb must be at least 100: images that were built may take 50 (`sandbox.built_mb`)."
  }
}

variable "ray_security_group_id" {
  description = "The only group that may reach the engines."
  type        = string
}

variable "endpoints_security_group_id" {
  description = "The interface endpoints: with S3's layers of images, all that hosts may reach."
  type        = string
}

variable "s3_prefix_list_id" {
  description = "Addresses of S3."
  type        = string
}

variable "kms_key_arn" {
  description = "The key for volumes and secrets."
  type        = string
}

variable "repository_arn" {
  description = "The repository of the boxes' bases."
  type        = string
}

variable "box_image" {
  description = "The base that boxes without a Dockerfile start from (`sandbox.docker.image`), by tag or digest of the registry."
  type        = string

  validation {
    condition     = can(regex("[:@]", var.box_image)) && !endswith(var.box_image, ":latest")
    error_message = "box_image must have a tag or a digest, and not `latest`."
  }
}

variable "log_group" {
  description = "Where the engines' own logs go. What boxes write is kept nowhere but in their trials."
  type        = object({ name = string, arn = string })
}
