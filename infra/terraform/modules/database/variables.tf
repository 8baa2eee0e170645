variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "vpc_id" {
  description = "The network."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets, in two zones at least."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2
    error_message = "RDS wants subnets in two zones."
  }
}

variable "client_security_group_ids" {
  description = "Who may connect, by name: the control plane, and nobody else."
  type        = map(string)
}

variable "kms_key_arn" {
  description = "The key for data, backups, logs and the master's password."
  type        = string
}

variable "database" {
  description = "Size and safety. `multi_az` and `deletion_protection` are what an environment of the example kind may turn off."
  type = object({
    instance_class      = optional(string, "db.t4g.medium")
    storage_gb          = optional(number, 50)
    max_storage_gb      = optional(number, 500)
    engine_version      = optional(string, "16.8")
    multi_az            = optional(bool, true)
    deletion_protection = optional(bool, true)
    backup_days         = optional(number, 14)
  })

  validation {
    condition     = startswith(var.database.engine_version, "16.")
    error_message = "database.engine_version must be a PostgreSQL 16: the parameter group is of that family."
  }

  validation {
    condition     = var.database.backup_days >= 7 && var.database.backup_days <= 35
    error_message = "database.backup_days must be 7 to 35: fewer loses a week-end's campaign, RDS keeps no more."
  }

  validation {
    condition     = var.database.max_storage_gb > var.database.storage_gb
    error_message = "database.max_storage_gb must be more than storage_gb, or a full disk stops every campaign."
  }
}
