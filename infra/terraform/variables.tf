variable "name" {
  description = "Name of this environment, and prefix of all that is in it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{2,19}$", var.name))
    error_message = "name must be 3 to 20 lower-case letters, digits and hyphens, a letter first: it is part of buckets' and DNS names."
  }
}

variable "region" {
  description = "Where everything is."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region must be a region's code, for example us-east-2."
  }
}

variable "account_id" {
  description = "The account that this is applied in: twelve digits. Named, not looked up, so that the wrong credentials cannot build."
  type        = string

  validation {
    condition     = can(regex("^[0-9]{12}$", var.account_id))
    error_message = "account_id must be twelve digits."
  }
}

variable "tags" {
  description = "More tags for everything."
  type        = map(string)
  default     = {}
}

variable "autoscaling_role" {
  description = "Whether to make the account's role of Auto Scaling: false where AWSServiceRoleForAutoScaling exists already."
  type        = bool
  default     = true
}

variable "network" {
  description = "Address range (a /16), zones, and whether every zone has a NAT gateway of its own."
  type = object({
    cidr              = string
    zones             = list(string)
    nat_in_every_zone = optional(bool, false)
  })
}

variable "images" {
  description = "What runs, by tag or digest of this environment's registry; see docs/operations.md for building them."
  type = object({
    trainer       = string
    sampler       = string
    control_plane = string
    box           = string
  })
}

variable "amis" {
  description = "Machine images: of Ray's machines and of the Docker hosts; infra/terraform/README.md says what is in them."
  type        = object({ ray = string, sandbox = string })
}

variable "head" {
  description = "Ray's head, on which jobs and the trainer's ranks run."
  type = object({
    instance_type = string
    zone          = string
    gpus          = optional(bool, true)
    volume_gb     = optional(number, 500)
  })
}

variable "groups" {
  description = "GPU groups beside the head."
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
}

variable "sandbox" {
  description = "The Docker hosts."
  type = object({
    count         = optional(number, 1)
    instance_type = optional(string, "m7i.8xlarge")
    zone          = string
    data_gb       = optional(number, 1000)
  })
}

variable "database" {
  description = "PostgreSQL for Prefect and MLflow."
  type = object({
    instance_class      = optional(string, "db.t4g.medium")
    storage_gb          = optional(number, 50)
    max_storage_gb      = optional(number, 500)
    engine_version      = optional(string, "16.8")
    multi_az            = optional(bool, true)
    deletion_protection = optional(bool, true)
    backup_days         = optional(number, 14)
  })
  default = {}
}

variable "buckets" {
  description = "How long what is kept in artifacts, pools and mlflow."
  type = map(object({
    noncurrent_days = optional(number, 30)
    infrequent_days = optional(number)
    expire_days     = optional(number)
  }))
  default = { artifacts = {}, pools = {}, mlflow = {} }
}

variable "store" {
  description = "The campaigns' store: s3://bucket/prefix, or a folder below /shared; the bucket of artifacts where it is not given."
  type        = string
  default     = null
}

variable "people_cidrs" {
  description = "Private addresses from which people open Prefect and MLflow."
  type        = list(string)
  default     = []
}

variable "https_cidrs" {
  description = "Addresses of judges' endpoints, which jobs may reach by HTTPS."
  type        = list(string)
  default     = []
}

variable "https_names" {
  description = "Names of those endpoints: no other name outside is looked up, from any tier (`*.` before one: all below it)."
  type        = list(string)
  default     = []
}

variable "emails" {
  description = "Who is told of alarms and of the budget."
  type        = set(string)
}

variable "budget_usd" {
  description = "What a month may cost."
  type        = number
}

variable "log_days" {
  description = "How long logs are kept."
  type        = number
  default     = 365
}
