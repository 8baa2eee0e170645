variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "region" {
  description = "The region, for the registry's login and the log driver."
  type        = string
}

variable "vpc_id" {
  description = "The network."
  type        = string
}

variable "subnets" {
  description = "Private subnet ids by zone."
  type        = map(string)
}

variable "zone" {
  description = "The private DNS zone, in which the head is `ray.<zone>`."
  type        = object({ id = string, name = string })
}

variable "ami_id" {
  description = "An image with Docker, NVIDIA's driver and container toolkit, the EFA driver, amazon-efs-utils and the AWS CLI."
  type        = string

  validation {
    condition     = can(regex("^ami-[0-9a-f]{8,17}$", var.ami_id))
    error_message = "ami_id must be one image (ami-...), not a name that may mean another tomorrow."
  }
}

variable "images" {
  description = "What head and groups run, by digest or tag of the registry: trainer, sampler."
  type        = object({ trainer = string, sampler = string })

  validation {
    condition     = alltrue([for image in values(var.images) : can(regex("[:@]", image)) && !endswith(image, ":latest")])
    error_message = "images must have a tag or a digest, and not `latest`."
  }
}

variable "head" {
  description = "The head. Ray starts a job's driver on it, and a trainer's ranks are processes of that machine, so it has the trainer's GPUs."
  type = object({
    instance_type = string
    zone          = string
    gpus          = optional(bool, true)
    volume_gb     = optional(number, 500)
  })
}

variable "groups" {
  description = "Groups of equal machines beside the head: instance type, how many, zone, EFA interfaces (0: none), image, capacity reservation."
  type = map(object({
    instance_type           = string
    count                   = number
    zone                    = string
    image                   = optional(string, "sampler")
    efa_interfaces          = optional(number, 0)
    volume_gb               = optional(number, 500)
    capacity_reservation_id = optional(string)
  }))
  default = {}

  validation {
    condition     = alltrue([for group in values(var.groups) : contains(["trainer", "sampler"], group.image)])
    error_message = "A group's image must be trainer or sampler."
  }

  validation {
    condition     = alltrue([for group in values(var.groups) : group.count >= 0 && group.count <= 64 && group.efa_interfaces >= 0 && group.efa_interfaces <= 32])
    error_message = "A group has 0 to 64 machines, and each of them 0 to 32 EFA interfaces."
  }
}

variable "kms_key_arn" {
  description = "The key for volumes, buckets and secrets."
  type        = string
}

variable "buckets" {
  description = "The buckets artifacts (read and written) and pools (read)."
  type        = map(object({ name = string, arn = string }))
}

variable "shared" {
  description = "The shared file system."
  type        = object({ id = string, arn = string, access_point_id = string, access_point_arn = string, security_group_id = string })
}

variable "repository_arns" {
  description = "The repositories that its images come from."
  type        = list(string)
}

variable "docker_client_secret_arn" {
  description = "The secret with the certificate that the sandbox hosts ask for."
  type        = string
}

variable "log_group" {
  description = "Where its containers' output goes."
  type        = object({ name = string, arn = string })
}

variable "dashboard_security_group_ids" {
  description = "Who may use the Jobs API, by name: the control plane."
  type        = map(string)
}

variable "egress" {
  description = "Where its machines may connect to beside each other, by name: a security group and a port."
  type        = map(object({ security_group_id = string, port = number }))
}

variable "s3_prefix_list_id" {
  description = "Addresses of S3."
  type        = string
}

variable "https_cidrs" {
  description = "Addresses that jobs may reach by HTTPS, for judges' endpoints; none by default."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.https_cidrs : can(cidrhost(cidr, 0))])
    error_message = "https_cidrs must be address ranges."
  }
}
