# An environment for trying things: one GPU machine as head, one as sampler, one Docker host, a database in one zone.
# Copy it; images and AMIs are made first (README.md). The paper's size is in the comments.
name       = "longshell-example"
region     = "us-east-2"
account_id = "111122223333"

network = {
  cidr  = "10.40.0.0/16"
  zones = ["us-east-2a", "us-east-2b"]
}

images = {
  trainer       = "111122223333.dkr.ecr.us-east-2.amazonaws.com/longshell-example/trainer:0.1.0"
  sampler       = "111122223333.dkr.ecr.us-east-2.amazonaws.com/longshell-example/sampler:0.1.0"
  control_plane = "111122223333.dkr.ecr.us-east-2.amazonaws.com/longshell-example/control-plane:0.1.0"
  box           = "111122223333.dkr.ecr.us-east-2.amazonaws.com/longshell-example/boxes:12"
}

amis = {
  ray     = "ami-0123456789abcdef0"
  sandbox = "ami-0123456789abcdef1"
}

# configs/t1-122b.yaml: 128 devices of the trainer, which one machine does not have (README, "What is not there yet"),
# and 64 of the samplers: eight p5.48xlarge with efa_interfaces = 32 and a capacity reservation.
head = {
  instance_type = "g6.12xlarge"
  zone          = "us-east-2a"
}

groups = {
  samplers = {
    instance_type = "g6.12xlarge"
    count         = 1
    zone          = "us-east-2a"
  }
}

sandbox = {
  zone = "us-east-2a"
}

database = {
  multi_az            = false
  deletion_protection = false
}

emails     = ["on-call@example.com"]
budget_usd = 12000
