variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "region" {
  description = "The region, for the names of the services' endpoints."
  type        = string
}

variable "account_id" {
  description = "The account whose identities may use the endpoints."
  type        = string
}

variable "network" {
  description = "Address range (a /16: each subnet is a /20 of it), zones (two to four), and whether every zone has a NAT gateway of its own."
  type = object({
    cidr              = string
    zones             = list(string)
    nat_in_every_zone = optional(bool, false)
  })

  validation {
    condition     = can(cidrhost(var.network.cidr, 0)) && endswith(var.network.cidr, "/16")
    error_message = "network.cidr must be an IPv4 range of 16 bits, for example 10.40.0.0/16."
  }

  validation {
    condition     = length(var.network.zones) >= 2 && length(var.network.zones) <= 4 && length(distinct(var.network.zones)) == length(var.network.zones)
    error_message = "network.zones must name two to four different zones: the database needs two, a /16 has room for four."
  }
}

variable "kms_key_arn" {
  description = "The key that the logs are encrypted with."
  type        = string
}

variable "log_days" {
  description = "How long flow logs and those of names are kept."
  type        = number
}

variable "https_names" {
  description = "Names outside that may be looked up beside those of this environment and of the services it uses."
  type        = list(string)

  validation {
    condition     = alltrue([for name in var.https_names : can(regex("^(\\*\\.)?([a-z0-9-]+\\.)+[a-z]{2,}$", name))])
    error_message = "https_names must be names of hosts, for example api.example.com, or *.example.com for all below one."
  }
}
