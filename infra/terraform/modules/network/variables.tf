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
  description = "The key that flow logs are encrypted with."
  type        = string
}

variable "log_days" {
  description = "How long flow logs are kept."
  type        = number
}
