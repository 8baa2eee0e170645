mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name        = "unit"
  kms_key_arn = "arn:aws:kms:us-east-2:111122223333:key/1"
}

run "images_are_what_was_tested_under_their_name" {
  module {
    source = "./modules/registry"
  }

  assert {
    condition     = alltrue([for repository in aws_ecr_repository.this : repository.image_tag_mutability == "IMMUTABLE" && repository.image_scanning_configuration[0].scan_on_push && repository.encryption_configuration[0].encryption_type == "KMS"])
    error_message = "Tags do not move, images are scanned and encrypted."
  }
}

run "a_registry_without_a_way_back_is_refused" {
  command = plan

  module {
    source = "./modules/registry"
  }

  variables {
    kept = 1
  }

  expect_failures = [var.kept]
}
