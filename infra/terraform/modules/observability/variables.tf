variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "region" {
  description = "The region, for the action that recovers an instance."
  type        = string
}

variable "account_id" {
  description = "The account whose alarms may speak to the topic."
  type        = string
}

variable "emails" {
  description = "Who is told."
  type        = set(string)

  validation {
    condition     = length(var.emails) > 0 && alltrue([for address in var.emails : can(regex("^[^@\\s]+@[^@\\s]+$", address))])
    error_message = "emails must have at least one address: an alarm that nobody hears is none."
  }
}

variable "budget_usd" {
  description = "What a month may cost, in US dollars."
  type        = number

  validation {
    condition     = var.budget_usd > 0
    error_message = "budget_usd must be more than 0."
  }
}

variable "log_days" {
  description = "How long logs are kept."
  type        = number

  validation {
    condition     = contains([30, 60, 90, 120, 150, 180, 365, 400, 545, 731], var.log_days)
    error_message = "log_days must be a time that CloudWatch knows, of a month at least: 30, 60, 90, 120, 150, 180, 365, 400, 545 or 731."
  }
}

variable "kms_key_arn" {
  description = "The key for logs and for what the topic holds."
  type        = string
}

variable "head_instance_id" {
  description = "Ray's head."
  type        = string
}

variable "sandbox_hosts" {
  description = "The Docker hosts."
  type        = map(object({ id = string, address = string }))
}

variable "flow_log_group" {
  description = "The log group of the network's flow logs."
  type        = string
}

variable "database" {
  description = "The database's name, and the free gigabytes below which somebody is told."
  type        = object({ identifier = string, least_free_gb = optional(number, 10) })
}

variable "control_plane" {
  description = "The ECS cluster and its services."
  type        = object({ cluster = string, services = list(string) })
}
