variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "region" {
  description = "The region, for the log driver."
  type        = string
}

variable "vpc_id" {
  description = "The network."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets."
  type        = list(string)
}

variable "image" {
  description = "The control-plane image, by digest or tag of the registry."
  type        = string

  validation {
    condition     = can(regex("[:@]", var.image)) && !endswith(var.image, ":latest")
    error_message = "image must have a tag or a digest, and not `latest`."
  }
}

variable "repository_arn" {
  description = "The repository that it comes from."
  type        = string
}

variable "people_cidrs" {
  description = "Where people open Prefect and MLflow from: a VPN's private addresses."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.people_cidrs : can(cidrhost(cidr, 0)) && can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.)", cidr))])
    error_message = "people_cidrs must be private ranges: MLflow has no login, so nobody else may reach it."
  }
}

variable "egress" {
  description = "What the control plane may connect to beside itself, by name: a security group and a port."
  type        = map(object({ security_group_id = string, port = number }))
}

variable "s3_prefix_list_id" {
  description = "Addresses of S3."
  type        = string
}

variable "ray" {
  description = "Ray's Jobs API, and the secret with its token."
  type        = object({ jobs_url = string, token_secret_arn = string })
}

variable "store" {
  description = "The campaigns' store as the worker and Ray's machines see it: a folder of the shared file system, or s3://bucket/prefix."
  type        = string

  validation {
    condition     = can(regex("^(/shared/.|s3://.)", var.store))
    error_message = "store must be below /shared, which every machine sees, or s3://bucket/prefix."
  }
}

variable "buckets" {
  description = "The buckets artifacts, pools and mlflow."
  type        = map(object({ name = string, arn = string }))
}

variable "shared" {
  description = "The shared file system."
  type        = object({ id = string, arn = string, access_point_id = string, access_point_arn = string, security_group_id = string })
}

variable "kms_key_arn" {
  description = "The key for secrets and buckets."
  type        = string
}

variable "log_groups" {
  description = "Where its containers' output goes, by service: prefect, mlflow, worker."
  type        = map(object({ name = string, arn = string }))
}
