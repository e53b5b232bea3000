"""Every Terraform file against the schema of the AWS provider, where the provider itself is out of reach."""

import functools
import os
import re
import unittest

from plan import kit, provider

FOLDER = kit.harness.target_dir() / "plan-tools" / "schema"
# The first is the oldest.
VERSIONS = os.environ.get("CAIRN_PLAN_SCHEMAS", "").split()
ARCHIVES = [FOLDER / f"{version}.tgz" for version in VERSIONS if (FOLDER / f"{version}.tgz").is_file()]
TYPES_MIN = 1000

GOOD = """
variable "zone" {
  type = string
}

locals {
  gib = 8
}

data "aws_partition" "here" {}

data "aws_iam_policy_document" "serve" {
  dynamic "statement" {
    for_each = [var.zone]

    content {
      actions = ["s3:GetObject"]

      condition {
        test     = "StringEquals"
        variable = data.aws_partition.here.partition
        values   = [var.zone]
      }
    }
  }
}

resource "aws_ebs_volume" "data" {
  count             = 2
  availability_zone = var.zone
  size              = local.gib
  tags = {
    Name = "data"
  }

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_security_group" "clients" {
  ingress {
    protocol  = "tcp"
    from_port = 22
    to_port   = 22
    self      = true
  }
}

resource "aws_launch_template" "nodes" {
  name = aws_ebs_volume.data[0].arn

  metadata_options {
    http_tokens = "required"
  }

  block_device_mappings {
    device_name = "/dev/sdf"

    ebs {
      volume_size = 8
    }
  }
}
"""
# What is replaced in GOOD, by what, and what has to be said of it: all of it, nothing else.
BAD = [
    ("  size  ", "  sise  ", ["aws_ebs_volume.data: no argument sise"]),
    ("  availability_zone = var.zone\n", "", ["aws_ebs_volume.data: availability_zone is required"]),
    ('resource "aws_launch_template"', 'resource "aws_launch_templates"', ["aws_launch_templates.nodes: no such resource type"]),
    ('data "aws_partition" "here"', 'data "aws_partitions" "here"',
     ["data.aws_partitions.here: no such data type", "data.aws_partition.here is not declared"]),
    ("metadata_options {", "metadata_option {", ["aws_launch_template.nodes: no block metadata_option"]),
    ("metadata_options {", "metadata_options = {", ["aws_launch_template.nodes: metadata_options is a block, not an argument"]),
    ("  metadata_options {", "  metadata_options {\n  }\n\n  metadata_options {",
     ["aws_launch_template.nodes: only one block metadata_options may be there"]),
    ("tags = {", "tags {", ["aws_ebs_volume.data: tags is an argument, not a block"]),
    ("volume_size", "size", ["aws_launch_template.nodes: block_device_mappings: ebs: no argument size"]),
    ("    self ", "    selves ", ["aws_security_group.clients: ingress: no argument selves"]),
    ('        test     = "StringEquals"\n', "",
     ["data.aws_iam_policy_document.serve: statement: condition: test is required"]),
    ('      actions = ["s3:GetObject"]', '      action = ["s3:GetObject"]',
     ["data.aws_iam_policy_document.serve: statement: no argument action"]),
    ('["s3:GetObject"]', '"s3:GetObject"',
     ["data.aws_iam_policy_document.serve: statement: actions is a single value, and has to be a list"]),
    ("  count  ", "  counts  ", ["aws_ebs_volume.data: no argument counts"]),
    ("  ebs {", "  ebs {\n      count = 1", ["aws_launch_template.nodes: block_device_mappings: ebs: no argument count"]),
    ("data[0].arn", "data[0].urn", ["aws_ebs_volume.data has no attribute urn"]),
    ("here.partition", "here.partitions", ["data.aws_partition.here has no attribute partitions"]),
    ("aws_ebs_volume.data[0]", "aws_ebs_volume.other[0]", ["aws_ebs_volume.other is not declared"]),
    ("local.gib", "local.mib", ["local.mib is not declared"]),
    ('variable "zone"', 'variable "zones"', ["var.zone is not declared"]),
]


@functools.cache
def schema(archive):
    return provider.Schema(archive)


@unittest.skipUnless(ARCHIVES, "the schema of the AWS provider is not here: NOT TESTED: arguments in Terraform files")
class Schema(unittest.TestCase):
    def test_terraform_files_fit_the_provider(self):
        files = sorted(kit.templates().glob("*/cairn.tf"))
        self.assertTrue(files)
        for archive in ARCHIVES:
            for file in files:
                with self.subTest(schema=archive.name, file=file.parent.name):
                    self.assertEqual(provider.mistakes(file.read_text(), schema(archive)), [])

    @unittest.skipUnless(len(ARCHIVES) == len(VERSIONS), "a schema is not here: NOT TESTED: the oldest version of the provider")
    def test_the_oldest_version_is_the_one_that_is_asked_for(self):
        major, minor, _ = schema(ARCHIVES[0]).version.split(".")
        for file in kit.templates().glob("*/cairn.tf"):
            (asked,) = re.findall(r'source  = "hashicorp/aws"\n +version = "(.*)"', file.read_text())
            self.assertEqual(asked, f">= {major}.{minor}", file)

    def test_the_schema_is_whole(self):
        for archive in ARCHIVES:
            self.assertGreater(len(schema(archive).texts), TYPES_MIN, archive)

    def test_mistakes_are_found(self):
        for archive in ARCHIVES:
            self.assertEqual(provider.mistakes(GOOD, schema(archive)), [], archive)
            for before, after, expected in BAD:
                with self.subTest(schema=archive.name, after=after):
                    self.assertEqual(GOOD.count(before), 1, before)
                    self.assertEqual(provider.mistakes(GOOD.replace(before, after), schema(archive)), expected)
