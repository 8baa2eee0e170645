variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "region" {
  description = "The region, for the log service's principal."
  type        = string
}

variable "account_id" {
  description = "The account that owns the key; part of the buckets' names, which are the world's."
  type        = string
}

variable "buckets" {
  description = "Days after which old versions go, and after which objects move to infrequent access or end (absent: never), by bucket: artifacts (campaigns), pools (tasks), mlflow."
  type = map(object({
    noncurrent_days = optional(number, 30)
    infrequent_days = optional(number)
    expire_days     = optional(number)
  }))

  validation {
    condition     = toset(keys(var.buckets)) == toset(["artifacts", "pools", "mlflow"])
    error_message = "buckets must have exactly artifacts, pools and mlflow."
  }

  validation {
    condition     = alltrue([for rule in values(var.buckets) : rule.noncurrent_days >= 7])
    error_message = "noncurrent_days must be at least 7: old versions are what a deleted campaign is restored from."
  }

  validation {
    condition     = alltrue([for rule in values(var.buckets) : rule.infrequent_days == null ? true : rule.infrequent_days >= 30])
    error_message = "infrequent_days must be at least 30, the least that S3 takes."
  }
}

variable "shared" {
  description = "Where the shared file system is mounted from (subnet ids by zone) and the network that it is in."
  type = object({
    vpc_id  = string
    subnets = map(string)
  })
}

variable "shared_role_arns" {
  description = "The roles that may mount the shared file system, by name."
  type        = map(string)
}

variable "autoscaling_role" {
  description = "Whether to make the account's role of Auto Scaling, which the key's policy names; it can be made once in an account."
  type        = bool
}
