output "urls" {
  description = "Prefect and MLflow, from inside the network or from `people_cidrs`."
  value       = module.control_plane.urls
}

output "ray_jobs" {
  description = "Ray's Jobs API: LONGSHELL_RAY_JOBS."
  value       = module.ray_cluster.jobs_url
}

output "store" {
  description = "The campaigns' store: LONGSHELL_STORE."
  value       = module.control_plane.store
}

output "docker_hosts" {
  description = "The engines for sandbox.docker.host, one for a campaign."
  value       = module.sandbox_pool.docker_hosts
}

output "buckets" {
  description = "The buckets' names."
  value       = { for name, bucket in module.storage.buckets : name => bucket.name }
}

output "repositories" {
  description = "Where images are pushed to."
  value       = { for name, repository in module.registry.repositories : name => repository.url }
}

output "secrets" {
  description = "Secrets whose values a person puts before anything starts."
  value = merge(module.control_plane.secret_arns, {
    ray-token     = module.ray_cluster.token_secret_arn
    docker-client = module.sandbox_pool.client_secret_arn
    docker-server = module.sandbox_pool.server_secret_arn
  })
}

output "database" {
  description = "The database's host, and where RDS keeps its master's password."
  value       = { host = module.database.address, master_secret_arn = module.database.master_secret_arn }
}

output "alarms" {
  description = "Every alarm; docs/operations.md has a page for each."
  value       = module.observability.alarms
}
