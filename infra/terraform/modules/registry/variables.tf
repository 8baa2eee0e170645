variable "name" {
  description = "Prefix of every name."
  type        = string
}

variable "kms_key_arn" {
  description = "The key that images are encrypted with."
  type        = string
}

variable "images" {
  description = "Repositories: the folders of infra/images, and bases for the tasks' boxes."
  type        = set(string)
  default     = ["trainer", "sampler", "control-plane", "sandbox-host", "boxes"]
}

variable "kept" {
  description = "How many images of each repository are kept."
  type        = number
  default     = 30

  validation {
    condition     = var.kept >= 5
    error_message = "kept must be at least 5, or there is nothing to go back to."
  }
}
