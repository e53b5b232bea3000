"""What the tests of templates share: where templates are, a stand-in for AWS, the AWS CLI.

Owns: the local moto server and its life. Must not know: what a test looks at.
"""

import base64
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.request
from unittest import mock

from awscli.clidriver import create_clidriver

from lib import harness

START_SECONDS_MAX = 60
# A loaded machine takes long to start the AWS CLI, which is Python.
COMMAND_SECONDS_MAX = 600
REGION = "us-east-1"
# Moto; it gives the tags of a key in a template to a service that calls their names and values otherwise.
STAND_IN = """
from moto.server import main
from moto.utilities.tagging_service import TaggingService
tag_resource = TaggingService.tag_resource
def tag_any(self, arn, tags):
    renamed = {"Key": self.key_name, "Value": self.value_name}
    tag_resource(self, arn, [{renamed.get(name, name): value for name, value in tag.items()} for tag in tags or []])
TaggingService.tag_resource = tag_any
main()
"""
# One that the stand-in has.
IMAGE = "ami-12c6146b"


def templates():
    """The folder that crates/tools/plan/tests/templates.rs writes."""
    folder = pathlib.Path(os.environ.get("CAIRN_PLAN_TEMPLATES") or harness.target_dir() / "tmp" / "plan-templates")
    if not folder.is_dir():
        raise harness.Failure(f"{folder} is not there: run scripts/test-plan")
    return folder


def run(argv, **options):
    """Runs a program; returns what it printed, or fails with what it complained."""
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, **options)
    if done.returncode:
        raise AssertionError(f"{argv[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


class Test(unittest.TestCase):
    """A test with things that are there until it ends."""

    def enterContext(self, manager):
        # unittest has this from Python 3.11 on only; Ubuntu 22.04 has 3.10.
        entered = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return entered


class Aws:
    """A local stand-in for AWS, and the real command line tool for it."""

    def __init__(self, url):
        self.url = url
        self.driver = None
        self.environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_PAGER": "",
            "AWS_CONFIG_FILE": "/dev/null",
        }

    def __call__(self, *words):
        """Runs `aws WORDS` in this process, where it need not start each time, and returns its answer."""
        said, complaints = io.StringIO(), io.StringIO()
        with (mock.patch.dict(os.environ, self.environment, clear=True),
              contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaints)):
            self.driver = self.driver or create_clidriver()
            status = self.driver.main(["--output", "json", *map(str, words)])
        if status:
            raise AssertionError(f"aws {words} ended with {status}:\n{said.getvalue()[-4000:]}{complaints.getvalue()[-4000:]}")
        return json.loads(said.getvalue()) if said.getvalue().strip() else None

    def network(self):
        """A network, a subnet, a group of clients, a key pair: what a user has."""
        vpc = self("ec2", "create-vpc", "--cidr-block", "10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = self("ec2", "create-subnet", "--vpc-id", vpc, "--cidr-block", "10.0.1.0/24",
                      "--availability-zone", f"{REGION}a")["Subnet"]["SubnetId"]
        group = self("ec2", "create-security-group", "--vpc-id", vpc, "--group-name", f"clients-{vpc}",
                     "--description", "clients")["GroupId"]
        key = f"key-{vpc}"
        self("ec2", "create-key-pair", "--key-name", key)
        return {"Vpc": vpc, "Subnet": subnet, "AvailabilityZone": f"{REGION}a", "SecurityGroup": group,
                "ClientNetwork": "10.0.0.0/16", "ClusterName": "files", "LoginAddress": "10.0.0.7/32",
                "KeyPair": key, "PackageUrl": "s3://packages/cairn.deb",
                "PackageSha256": "0" * 64, "Image": IMAGE}

    def create(self, name, template, parameters):
        """Creates a stack, waits for it, and returns its outputs."""
        words = [f"ParameterKey={key},ParameterValue={value.replace(',', chr(92) + ',')}" for key, value in parameters.items()]
        self("cloudformation", "create-stack", "--stack-name", name, "--template-body", f"file://{template}",
             "--capabilities", "CAPABILITY_IAM", "--parameters", *words)
        self("cloudformation", "wait", "stack-create-complete", "--stack-name", name)
        stack = self("cloudformation", "describe-stacks", "--stack-name", name)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def resources(self, name):
        """Physical ids by logical id."""
        listed = self("cloudformation", "describe-stack-resources", "--stack-name", name)["StackResources"]
        # The stand-in lists resources without an id that have none, or whose condition does not hold, and without any
        # name what it does not know: alarms and policies for snapshots.
        return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in listed if each.get("PhysicalResourceId")}

    def delete(self, name):
        self("cloudformation", "delete-stack", "--stack-name", name)
        self("cloudformation", "wait", "stack-delete-complete", "--stack-name", name)

    def user_data(self, template_id):
        """User data of the newest version of a launch template, as an instance gets it."""
        versions = self("ec2", "describe-launch-template-versions", "--launch-template-id", template_id)
        return base64.b64decode(versions["LaunchTemplateVersions"][-1]["LaunchTemplateData"]["UserData"]).decode()


@contextlib.contextmanager
def aws(host="127.0.0.1"):
    """A moto server on a free port of this machine; it is gone afterwards."""
    port = harness.next_port()
    argv = [sys.executable, "-c", STAND_IN, "--host", host, "--port", str(port)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://{host}:{port}"

    def answers():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5).status == 200
        return False

    try:
        harness.wait_until(answers, START_SECONDS_MAX, "moto's start")
        yield Aws(url)
    finally:
        server.terminate()
        server.wait(START_SECONDS_MAX)
